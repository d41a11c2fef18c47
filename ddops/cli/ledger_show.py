"""What `ddops ledger show` shows: lists by word, a run or a cell by its id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddops.ledger import Ledger, Run

Row = Mapping[str, object]


def deployments(book: Ledger, limit: int) -> list[Row]:
    """The last deployments and how each ended."""
    rows: list[Row] = []
    for d in book.deployments(limit=limit):
        states = book.transitions(d.op_id)
        last = f"{states[-1].state} {states[-1].verdict.value}" if states else "no transition"
        rows.append(
            {
                "at": str(d.at),
                "host": d.host,
                "service": d.service,
                "release": d.release,
                "last": last,
                "op_id": d.op_id,
            }
        )
    return rows


def runs(book: Ledger, limit: int) -> list[Row]:
    """The last runs. One that does not count shows no number: its reason stands there instead."""
    sql = """SELECT r.id AS run, r.started, r.status,
  (r.ledger, r.id) IN (SELECT ledger, id FROM valid_run) AS counts,
  r.device_class AS class, round(r.output_tps, 1) AS output_tps, c.label, r.reason
FROM run r LEFT JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
ORDER BY r.started DESC, r.seq DESC LIMIT ?"""
    rows: list[Row] = []
    for r in book.query(sql, (limit,)):
        if r["counts"]:
            rows.append({**r, "counts": True})
        else:
            why = r["reason"] or "withdrawn, or a gate failed: ddops ledger show RUN"
            rows.append({**r, "counts": False, "output_tps": None, "reason": why})
    return rows


def cells(book: Ledger, limit: int) -> list[Row]:
    """The last cells with a valid run, summed up."""
    sql = """SELECT substr(cell, 1, 12) AS cell, suite, device_class AS class, launches, runs,
  round(output_tps_mean, 1) AS output_tps, round(ttft_p50_ms_mean, 1) AS ttft_p50_ms,
  round(tpot_p50_ms_mean, 2) AS tpot_p50_ms, round(commit_length, 2) AS commit_length, label
FROM cell_summary ORDER BY last DESC LIMIT ?"""
    return list(book.query(sql, (limit,)))


def conclusions(book: Ledger, limit: int) -> list[Row]:
    """What was concluded last, and whether it stands."""
    found = book.conclusions()[-limit:]
    keys = ("at", "kind", "subject", "runs", "lost", "stands", "text", "id")
    return [{k: bool(f[k]) if k == "stands" else f[k] for k in keys} for f in reversed(found)]


def retractions(book: Ledger, limit: int) -> list[Row]:
    """The last retractions."""
    keys = ("at", "scope", "value", "runs", "by", "id", "reason")
    return [{k: r[k] for k in keys} for r in reversed(book.retractions()[-limit:])]


LISTS: Mapping[str, Callable[[Ledger, int], list[Row]]] = {
    "deployments": deployments,
    "runs": runs,
    "cells": cells,
    "conclusions": conclusions,
    "retractions": retractions,
}


def one(book: Ledger, name: str) -> dict[str, object]:
    """All there is about one run, or about one cell. Raises UsageError when it is neither."""
    cell = book.cell(name)
    if cell is not None:
        listed = [{"id": r.id, "started": r.started, "valid": r.valid} for r in book.runs(cell.key)]
        return _json({**asdict(cell), "valid_runs": listed})
    run = book.run(name)
    return _json({**asdict(run), **_around(book, run)})


def _around(book: Ledger, run: Run) -> dict[str, object]:
    cell = book.cell(run.cell)
    gates = book.gates(run.launch) if run.launch else []
    return {
        "label": cell.label if cell else "",
        "vary": dict(cell.vary) if cell else {},
        "fix": dict(cell.fix) if cell else {},
        "samples": len(book.samples(run)),
        "gates": [{"id": g.id, "name": g.name, "verdict": g.verdict.value} for g in gates],
        "withdrawn": book.withdrawals(run),
        "conclusions": [
            {"id": c["id"], "kind": c["kind"], "text": c["text"], "stands": bool(c["stands"])}
            for c in book.conclusions([run.id])
        ],
    }


def _json(value: dict[str, object]) -> dict[str, object]:
    return {k: str(v) if isinstance(v, datetime) else v for k, v in value.items()}
