"""The engine's code: its environment's package with the project's patch series on it.

Each pair of environment and series has a folder of its own, so that an older release keeps the
code it was proven with, and a rollback needs no patch taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddops.inventory.model import Host
from ddops.model import digest
from ddops.plan import Change, Proposal
from ddops.provision.envs import EnvRecipe
from ddops.provision.side import NOTHING, HostSide, Query
from ddops.tree.host import ManagedTree
from ddops.tree.series import Patch, Series, read_series

Lookup = Callable[[str], Path]
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class EngineCode:
    """Which code an engine runs: `lock` names the environment, `series` the patches on it."""

    lock: str
    engine: str
    series: Series
    plugin: str

    @property
    def digest(self) -> str:
        """Names the folder; empty where the environment's own package runs as it came."""
        return digest({"lock": self.lock, "series": self.series.digest}) if self.patched else ""

    @property
    def patched(self) -> bool:
        return bool(self.series.patches)


def engine_code(recipe: EnvRecipe, lookup: Lookup) -> EngineCode:
    """The code of an environment with the project's series of its engine."""
    series = read_series(recipe.engine, lookup)
    return EngineCode(recipe.digest, recipe.engine, series, recipe.plugin)


@dataclass(frozen=True, slots=True)
class CodeStep:
    """Patched engine code, made on the host from the environment's own package.

    Tried patch by patch before anything is written, three-way where it must be; the folder
    appears by a rename. What was edited by hand there is shown, kept under a git ref, and put back.
    """

    id: str
    title: str
    side: HostSide
    host: Host
    code: EngineCode

    @property
    def place(self) -> str:
        return self.side.layout.code(self.code.digest)

    def query(self) -> Query:
        return {"code": [self.place]}

    def observe(self) -> Proposal:
        seen = self.side.state(code=[self.place])["code"][self.place]
        if not isinstance(seen, Mapping) or seen.get("digest") != self.code.digest:
            made = f"make {self.place}: {self.code.engine} and {len(self.code.series.patches)}"
            return Proposal(Change.CREATE, (f"{made} patches", *_patch_lines(self.code.series)))
        wrong = edits(seen)
        if not wrong:
            return NOTHING
        return Proposal(Change.UPDATE, (*wrong, *map(str, _list(seen.get("diff")))))

    def apply(self) -> None:
        ManagedTree(self.side.transport, self.host, self.place).make_code(
            self.side.layout.env(self.code.lock), self.code.digest, self.code.series
        )


def edits(seen: Mapping[str, object]) -> list[str]:
    """What differs from the record, in words; empty for code that is as it was made."""
    out = []
    for kind in ("changed", "missing", "extra"):
        if paths := [str(p) for p in _list(seen.get(kind))]:
            more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            out.append(f"{kind} by hand: {', '.join(paths[:_SHOWN])}{more}")
    return out


def _patch_lines(series: Series) -> list[str]:
    """Each patch with its subject, then what it changes, for a plan's whole diff."""
    lines = [f"apply {p.name}: {p.subject}" for p in series.patches]
    for patch in series.patches:
        lines += _hunks(patch)
    return lines


def _hunks(patch: Patch) -> list[str]:
    text = patch.data.decode("utf-8", "replace")
    start = text.find("\ndiff --git ")
    return text[start + 1 :].splitlines()[:200] if start >= 0 else []


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()
