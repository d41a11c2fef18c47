"""Reads from the ledger what the board shows: read only, as JSON-like data.

A ledger that is missing, older or newer is a reason to show, never an end of the board.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddops.board.model import CheckSeen, GateSeen, HostBooks, RunSeen, TaskSeen
from ddops.command import Redactor
from ddops.compat import Finding
from ddops.errors import DdopsError
from ddops.ledger import Ledger
from ddops.model import Verdict

MOST_RUNS, MOST_DEPLOYMENTS = 300, 100
#: Judges the facts of a host as `ddops check` would; None where it cannot.
Judge = Callable[[str, Mapping[str, object]], Sequence[Finding]]

_RUNS = """SELECT r.id, r.started AS at, coalesce(h.name, '') AS host,
  coalesce(r."release", '') AS "release", r.status,
  (r.ledger, r.id) IN (SELECT ledger, id FROM valid_run) AS counts,
  r.device_class, coalesce(c.label, '') AS label, coalesce(c.family, '') AS family,
  coalesce(c.suite, '') AS suite, r.concurrency, r.output_tps,
  r.ttft_p50_ms AS ttft_ms, r.tpot_p50_ms AS tpot_ms,
  1.0 * r.commit_tokens / nullif(r.commit_steps, 0) AS "commit", r.reason
FROM run r LEFT JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
LEFT JOIN launch l ON l.ledger = r.ledger AND l.nonce = r.launch
LEFT JOIN host h ON h.ledger = r.ledger AND h.id = coalesce(r.host, l.host)
ORDER BY r.started DESC, r.seq DESC LIMIT ?"""
_TASKS = """SELECT id, coalesce(runbook_run, '') AS run, content, priority, status,
  coalesce(owner, '') AS owner, coalesce(evidence, '') AS evidence,
  coalesce(updated_at, created_at, '') AS at FROM task ORDER BY id DESC LIMIT 500"""


class Reader:
    """Keeps what facts were judged to, so that each collection is judged once."""

    def __init__(self, path: Path, redactor: Redactor, judge: Judge) -> None:
        self._path = path
        self._redactor = redactor
        self._judge = judge
        self._judged: dict[str, tuple[dict[str, int], list[CheckSeen]]] = {}
        self._last: tuple[object, dict[str, Any]] = (None, {})

    def read(self, hosts: Iterable[str], nonces: Iterable[str]) -> dict[str, Any]:
        """One reading, for these hosts and these server starts. Its `error` is never raised.

        The very same object again while the file and the question are the same.
        """
        asked = (tuple(hosts), tuple(nonces), self._stamp())
        if asked != self._last[0]:
            self._last = (asked, self._read(*asked[:2]))
        return self._last[1]

    def _stamp(self) -> tuple[object, ...]:
        """Changes whenever somebody writes to the ledger: SQLite writes to one of the two files."""
        found = []
        for name in (self._path, self._path.with_name(f"{self._path.name}-wal")):
            try:
                seen = name.stat()
            except OSError:
                found.append((0, 0))
                continue
            # A reader that comes first makes an empty log, and takes it away again.
            found.append((seen.st_size, seen.st_mtime_ns if seen.st_size else 0))
        return tuple(found)

    def _read(self, hosts: Sequence[str], nonces: Sequence[str]) -> dict[str, Any]:
        if not self._path.exists():
            return {"error": f"no ledger at {self._path.name}: nothing was recorded yet"}
        try:
            with Ledger.open(self._path, redactor=self._redactor, readonly=True) as book:
                return self._all(book, list(hosts), list(nonces))
        except DdopsError as error:
            return {"error": str(error)}

    def _all(self, book: Ledger, hosts: list[str], nonces: list[str]) -> dict[str, Any]:
        drills = book.drills(limit=200)
        return {
            "hosts": {h: asdict(self._host(book, h, drills)) for h in hosts},
            "gates": {n: [asdict(_gate(g)) for g in book.gates(n)] for n in nonces},
            "runs": [asdict(_run(r)) for r in book.query(_RUNS, (MOST_RUNS,))],
            "tasks": [asdict(_task(r)) for r in book.query(_TASKS)],
            "deployments": [_deployment(book, d) for d in book.deployments(limit=MOST_DEPLOYMENTS)],
        }

    def _host(self, book: Ledger, host: str, drills: Sequence[Any]) -> HostBooks:
        if book.host(host) is None:
            return HostBooks()
        taken = {s.id: s for s in book.snapshots(host=host, limit=50)}
        newest = next(iter(taken.values()), None)
        copies = book.copies(newest.id) if newest else []
        drill = next((d for d in drills if d.snapshot in taken), None)
        facts = book.facts_latest(host)
        counts, findings = self._checks(host, facts.digest, facts.json) if facts else ({}, [])
        good = sum(c.state == "verified" for c in copies)
        return HostBooks(
            snapshot_at=newest.at.timestamp() if newest else None,
            snapshot_copies=f"{good} of {len(copies)} copies verified" if newest else "",
            drill_at=drill.at.timestamp() if drill else None,
            drill_verdict=drill.verdict if drill else "",
            facts_at=facts.at.timestamp() if facts else None,
            simulated=facts.simulated if facts else False,
            counts=counts,
            findings=tuple(findings),
        )

    def _checks(
        self, host: str, digest: str, facts: Mapping[str, object]
    ) -> tuple[dict[str, int], list[CheckSeen]]:
        key = f"{host} {digest}"
        if key not in self._judged:
            found = self._judge(host, facts)
            counts = {v.value: n for v in Verdict if (n := sum(f.verdict is v for f in found))}
            quiet = (Verdict.PASS, Verdict.SKIP)
            shown = [
                CheckSeen(f.check, f.verdict.value, f.title, f.seen, f.refuses)
                for f in sorted(found, key=lambda f: not f.refuses)
                if f.verdict not in quiet
            ]
            self._judged[key] = counts, shown
        return self._judged[key]


def _gate(g: Any) -> GateSeen:
    return GateSeen(g.name, g.verdict.value, g.message, dict(g.evidence), g.at.timestamp())


def _deployment(book: Ledger, d: Any) -> tuple[float, str, str]:
    states = book.transitions(d.op_id)
    last = f"{states[-1].state} {states[-1].verdict.value}" if states else "no transition"
    at = states[-1].at if states else d.at
    return at.timestamp(), d.host, f"deploy of {d.service} {d.release[:12]} by {d.by}: {last}"


def _run(row: Mapping[str, Any]) -> RunSeen:
    return RunSeen(**{**row, "counts": bool(row["counts"]), "at": stamp(str(row["at"]))})


def _task(row: Mapping[str, Any]) -> TaskSeen:
    return TaskSeen(**row)


def stamp(text: str) -> float:
    """Seconds since the epoch of a time as the ledger writes it; UTC where it names no zone."""
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
