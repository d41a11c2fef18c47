"""What to measure next to be sure, as a command that can be run. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from ddops.bench.stats import smallest_p
from ddops.bench.stats_verdict import ALPHA
from ddops.recommend.model import (
    Candidate,
    Certainty,
    Choice,
    Config,
    Crossover,
    Next,
    Population,
)

#: An interval of a crossover wider than this ratio is worth a level inside it.
WIDE = 1.5
_ARM = re.compile(r"[a-z0-9][a-z0-9._-]*(?:\+[a-z0-9=,._-]+)?\Z")
_SPEC = ("algorithm", "budget", "topk", "block")


def what_next(
    population: Population,
    found: Sequence[Candidate],
    heads: Mapping[int, Choice],
    crossings: Sequence[Crossover],
) -> list[Next]:
    """At most one line a question, the most telling first."""
    out = []
    for c in crossings:
        if c.high / c.low > WIDE:
            out.append(_crossing(population, c))
    open_ones = [c for c in heads.values() if c.certainty is Certainty.LEADS]
    if open_ones:
        out.append(_launches(population, open_ones))
    alone = [c for c in heads.values() if c.certainty is Certainty.ALONE]
    if alone:
        levels = [c.level for c in alone]
        why = f"at {', '.join(map(str, levels))} nothing stands beside it: add an arm to compare"
        configs = list(dict.fromkeys(c.chosen.config for c in alone))
        out.append(_next(population, why, levels, configs, 4))
    missing = _missing(found, heads)
    for level, configs in missing.items():
        names = ", ".join(c.name for c in configs)
        why = f"at {level} these were not measured alike: {names}"
        out.append(_next(population, why, [level], [heads[level].chosen.config, *configs], 3))
    return out


def _crossing(population: Population, c: Crossover) -> Next:
    inside = levels_inside(c.low, c.high, c.at, c.ends)
    why = f"{c.below.name} gives way to {c.above.name} somewhere from {c.low:.3g} to {c.high:.3g}"
    return _next(population, why, inside or list(c.ends), [c.below, c.above], 3)


def levels_inside(
    low: float, high: float, at: float | None, ends: tuple[int, int], most: int = 3
) -> list[int]:
    """Whole numbers inside an interval, even in log; the point's neighbours first."""
    wanted = [] if at is None else [math.floor(at), math.ceil(at)]
    span = math.log(high / low)
    wanted += [round(low * math.exp(span * (i + 1) / (most + 1))) for i in range(most)]
    inside = [n for n in dict.fromkeys(wanted) if ends[0] < n < ends[1]]
    return sorted(inside[: most + 2])


def launches_needed(rivals: int) -> int:
    """The least launches a side with which one of so many tests can be significant."""
    n = 3
    while smallest_p(n, n) > ALPHA / max(1, rivals):
        n += 1
    return n


def _launches(population: Population, open_ones: Sequence[Choice]) -> Next:
    """One line for all concurrencies whose lead is not proven."""
    everyone = [c for o in open_ones for c in (o.chosen, *(r.candidate for r in o.rivals))]
    need = max(launches_needed(len(o.rivals)) for o in open_ones)
    least = min(c.estimate.launches for c in everyone)
    levels = [o.level for o in open_ones]
    word = "launch" if least == 1 else "launches"
    why = (
        f"at {', '.join(map(str, levels))} the lead rests on {least} {word} a side; "
        f"{need} can prove it"
    )
    return _next(population, why, levels, [c.config for c in everyone], need)


def _missing(found: Sequence[Candidate], heads: Mapping[int, Choice]) -> dict[int, list[Config]]:
    """Configurations that are chosen at one concurrency and were not measured at another."""
    chosen = {c.chosen.config.key: c.chosen.config for c in heads.values()}
    out: dict[int, list[Config]] = {}
    for level, choice in heads.items():
        here = {c.config.key for c in found if (c.group, c.level) == (choice.group, level)}
        near = [c.config for c in found if c.config.key in here]
        lacking = [
            c for k, c in chosen.items() if k not in here and not any(c.like(n) for n in near)
        ]
        if lacking:
            out[level] = lacking
    return out


def _next(
    population: Population,
    why: str,
    levels: Sequence[int],
    configs: Sequence[Config],
    launches: int,
) -> Next:
    lines = [f"levels = {sorted(levels)}", f"launches = {launches}"]
    arms = [arm for c in dict.fromkeys(configs) if (arm := arm_of(c))]
    return Next(
        why=why,
        command=f"ddops bench sweep {population.host or population.service}",
        levels=sorted(levels),
        suite=f"suites/{population.service}/sweep.toml",
        lines=[*lines, *(line for arm in arms for line in ("", *arm))],
    )


def arm_of(config: Config) -> tuple[str, ...]:
    """The `[[arms]]` table of a configuration whose name is that of a profile or its variant."""
    if not _ARM.match(config.name):
        return ()
    base, _, axes = config.name.partition("+")
    lines = ["[[arms]]", f'profile = "{base}"']
    if axes:
        pairs = [a.partition("=")[::2] for a in axes.split(",")]
        inside = ", ".join(
            f'"{"spec" if k in _SPEC else "launch"}.{k}" = [{_toml(v)}]' for k, v in pairs
        )
        lines.append(f"axes = {{ {inside} }}")
    return tuple(lines)


def _toml(text: str) -> str:
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        return text
    return {"True": "true", "False": "false"}.get(text, f'"{text}"')
