"""A reading of the ledger as typed values. Pure; `books` makes what is parsed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddops.board.model import Books, CheckSeen, GateSeen, HostBooks, RunSeen, TaskSeen


def parse_books(raw: Mapping[str, Any], at: float) -> Books:
    """A reading; one that is not whole is an error that shows on the board."""
    try:
        return _books(raw, at)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Books(at, f"the ledger's reading is not readable: {type(error).__name__}: {error}")


def _books(raw: Mapping[str, Any], at: float) -> Books:
    tasks = raw.get("tasks")
    return Books(
        at=at,
        error=str(raw.get("error", "")),
        hosts={str(n): _host(h) for n, h in raw.get("hosts", {}).items()},
        gates={str(n): [GateSeen(**g) for g in rows] for n, rows in raw.get("gates", {}).items()},
        runs=tuple(RunSeen(**r) for r in raw.get("runs", ())),
        tasks=None if tasks is None else tuple(TaskSeen(**t) for t in tasks),
        deployments=tuple((float(t), str(h), str(w)) for t, h, w in raw.get("deployments", ())),
    )


def _host(raw: Mapping[str, Any]) -> HostBooks:
    findings = tuple(CheckSeen(**f) for f in raw.get("findings", ()))
    return HostBooks(**{**raw, "findings": findings})
