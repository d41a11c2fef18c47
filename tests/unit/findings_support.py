"""Candidates and populations by hand, for the pure parts of recommend and report."""

from __future__ import annotations

from collections.abc import Iterable

from ddops.recommend.model import Basis, Candidate, Config, Measured, Population
from ddops.recommend.pick import candidates


def config(name: str, algorithm: str = "none", **vary: object) -> Config:
    return Config(key=name, name=name, vary={"algorithm": algorithm, **vary})


def runs(
    of: Config,
    level: int,
    launches: Iterable[float],
    *,
    group: str = "g",
    commit: float | None = None,
    repeats: int = 1,
) -> list[Measured]:
    """One run a launch and repeat."""
    found = []
    for n, tps in enumerate(launches):
        for repeat in range(repeats):
            ident = f"{of.name}-{group}-{level}-{n}-{repeat}"
            found.append(
                Measured(
                    id=ident, launch=f"{of.name}-{group}-{n}", release="r", tree="", cell=ident,
                    group=group, config=of, level=level, started="2026-01-01",
                    output_tps=tps, requests=10,
                    commit_tokens=None if commit is None else round(1000 * commit),
                    commit_steps=None if commit is None else 1000,
                )
            )  # fmt: skip
    return found


def candidate(of: Config, level: int, launches: Iterable[float], **more: object) -> Candidate:
    return candidates(runs(of, level, launches, **more))[0]  # type: ignore[arg-type]


def population(measured: list[Measured], **alike: dict[str, str]) -> Population:
    groups = {r.group for r in measured}
    return Population(
        service="k26", host="box", host_class="pcie", device_class="gpu", device="8x GPU",
        basis=Basis.MEASURED, gpus={r.config.key: 8 for r in measured}, runs=measured,
        alike={g: alike.get(g, {"fix.prompts": g}) for g in groups},
    )  # fmt: skip


def around(value: float, n: int = 6) -> list[float]:
    """`n` launches, half a percent apart."""
    return [value * (1 + 0.005 * (i - (n - 1) / 2) / max(1, n - 1)) for i in range(n)]
