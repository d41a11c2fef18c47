"""Is a managed tree upstream and series, no more, and is it what runs? Pure, but for one look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ddops.tree.host import ManagedTree
from ddops.tree.series import Series, read_series


def look_at_tree(
    managed: ManagedTree, services: Sequence[str], lookup: Callable[[str], Path]
) -> tuple[dict[str, object], Series]:
    """The tree's status against the series of the engine it says it is."""
    first = managed.status(Series("", ()), [])
    series = read_series(str(table_of(first["pin"])["engine"]), lookup)
    return managed.status(series, services), series


def judge_tree(seen: dict[str, object], series: Series) -> list[str]:
    """What keeps the tree from being upstream and series, and from being what runs."""
    there, gone = names_of(seen["applied"]), names_of(seen["superseded"])
    out = [f"{p.name} is not applied" for p in series.patches
           if p.name not in there and p.name not in gone]  # fmt: skip
    if seen["unfinished"]:
        out.append("a change was cut short")
    if seen["dirty"]:
        out.append(f"edited by hand: {', '.join(names_of(seen['dirty'])[:8])}")
    if not seen["pure"] and not out:
        out.append("it has commits beyond the series")
    for name, raw in table_of(seen["running"]).items():
        row = table_of(raw)
        if row["equal"]:
            continue
        files = list(dict.fromkeys([*names_of(row["differs"]), *names_of(row["since"])]))
        out.append(f"{name} runs other code ({row['package']}): {', '.join(files[:8])}")
    return out


def names_of(value: object) -> list[str]:
    """A JSON list as texts; empty for anything else."""
    return [str(v) for v in value] if isinstance(value, list) else []


def table_of(value: object) -> dict[str, object]:
    """A JSON object; empty for anything else."""
    return value if isinstance(value, dict) else {}
