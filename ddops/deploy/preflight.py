"""`flags_ok`: the installed engine parses the very launch line before the old service stops."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ddops.errors import DdopsError

SCHEMA = "ddops.preflight/1"


@dataclass(frozen=True, slots=True)
class Preflight:
    """What the engine's own parser said. `faults` are words for people, one an option.

    `silent`: no parser answered, so nothing was said of the launch line. `broken` is then what is
    wrong with the engine's environment.
    """

    engine: str | None
    faults: tuple[str, ...]
    warnings: tuple[str, ...]
    silent: bool = False
    broken: tuple[str, ...] = ()

    @property
    def evidence(self) -> dict[str, object]:
        found: dict[str, object] = {
            "engine": self.engine, "faults": self.faults, "warnings": self.warnings,
        }  # fmt: skip
        return found | ({"environment": self.broken} if self.broken else {})


def parse_preflight(text: str, wanted: str) -> Preflight:
    """Read `hostside/preflight.py`'s answer; `wanted` is the release's engine version.

    An engine of another version than the release names is a fault: its options are not those that
    were judged.
    """
    try:
        raw = json.loads(text)
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}")
        faults = [_fault(f) for f in raw["faults"]]
        warnings = tuple(str(w) for w in raw["warnings"])
        engine, error = raw["engine"], raw["error"]
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise DdopsError(
            "the engine's parser answered nothing readable", why=f"{type(why).__name__}: {why}"
        ) from why
    if error:
        faults.append(str(error)[:600])
    elif engine != wanted:
        faults.append(f"sglang {engine} is installed, and the release is for {wanted}")
    known = engine if isinstance(engine, str) else None
    return Preflight(known, tuple(faults), warnings, silent=bool(error))


def _fault(row: Mapping[str, object]) -> str:
    option, what, near = row["option"], str(row["what"]), row.get("nearest")
    words = what if str(option) in what else f"{option}: {what}"
    return f"{words}; nearest is {near}" if near else words
