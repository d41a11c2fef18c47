"""Withdrawing numbers: one row says why, nothing is deleted, every answer changes at once."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ddops.errors import UsageError
from ddops.ledger import query
from ddops.ledger.bench_readers import BenchReaders
from ddops.ledger.bench_writers import BenchWriters
from ddops.ledger.chain import Scalar

_DIGEST = re.compile(r"[0-9a-f]{4,64}\Z")
#: Runs that one retraction may name. More are possible by tree or release, which are rules.
MOST = 1_000_000


class Scope(StrEnum):
    """What a retraction is about. TREE and RELEASE hold for runs that come later, too.

    A TREE may be given by its own digest, or by that of its patch series or of the plugin.
    """

    TREE = "tree"
    RELEASE = "release"
    RUN = "run"
    WHERE = "where"


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnRun:
    """A run that a retraction names. `counted` says whether it was valid until then."""

    id: str
    ledger: str
    label: str
    started: str
    counted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FallenFinding:
    """A conclusion drawn from such runs. `stood` says whether it still stood until then."""

    id: str
    kind: str
    subject: str
    text: str
    at: str
    stood: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """What a retraction takes away. `id` is empty when it was only looked at."""

    id: str
    scope: Scope
    value: str
    reason: str
    runs: Sequence[WithdrawnRun]
    findings: Sequence[FallenFinding]


_ORDER = " ORDER BY r.started, r.ledger, r.seq"
_OF = {
    Scope.TREE: """(r.tree = :value OR EXISTS (SELECT 1 FROM "release" l
WHERE l.ledger = r.ledger AND l.digest = r."release" AND :value IN (l.series, l.plugin)))""",
    Scope.RELEASE: 'r."release" = :value',
    Scope.RUN: "r.id = :value",
}
_KNOWN = {
    Scope.TREE: 'SELECT digest AS x FROM tree UNION SELECT series FROM "release" '
    'UNION SELECT plugin FROM "release"',
    Scope.RELEASE: 'SELECT digest AS x FROM "release"',
    Scope.RUN: "SELECT id AS x FROM run",
}
_FOUND = """SELECT r.id, r.ledger, r.started, coalesce(c.label, '') AS label,
  (r.ledger, r.id) IN (SELECT ledger, id FROM valid_run) AS counted
FROM run r LEFT JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell WHERE """
_FALLEN = """SELECT f.ledger, f.id, f.kind, f.subject, f.text, f.at, f.stands FROM conclusion f
ORDER BY f.at, f.id"""
_CITED = 'SELECT ledger, finding, "of", run FROM finding_run'


class Retractions(BenchWriters, BenchReaders):
    """`retract` beside all that the bench writes and reads."""

    def retract(
        self,
        scope: Scope,
        value: str,
        *,
        reason: str,
        by: str,
        at: datetime | None = None,
        dry_run: bool = False,
    ) -> Withdrawal:
        """Withdraw runs: of a tree, of a release, one run, or all that an SQL condition names.

        One transaction; answers every run and every conclusion it takes away. Digests and ids
        may be their first digits. `value` of WHERE is a condition on the columns of `run`.
        With `dry_run` nothing is written. Raises UsageError when nothing is meant.
        """
        if not reason.strip():
            raise UsageError(
                "a retraction needs a reason",
                why="who reads the numbers later must learn what was wrong with them",
                next="--reason 'mask fault: sibling attends to cousin'",
            )
        with nullcontext() if dry_run else self._writing():
            if scope is Scope.WHERE:
                runs = self._where(value)
            else:
                value = self._whole(scope, value)
                marks = {"value": value}
                runs = [_withdrawn(r) for r in self._rows(_FOUND + _OF[scope] + _ORDER, marks)]
            if not runs and scope in (Scope.RUN, Scope.WHERE):
                raise UsageError(
                    "no run is meant",
                    why="the condition names none, so nothing was withdrawn",
                    next="ddops ledger show runs",
                )
            findings = self._fallen({(r.ledger, r.id) for r in runs})
            ident = "" if dry_run else self._retract(scope, value, reason, by, at, runs)
        return Withdrawal(
            id=ident, scope=scope, value=value, reason=reason, runs=runs, findings=findings
        )

    def _retract(
        self,
        scope: Scope,
        value: str,
        reason: str,
        by: str,
        at: datetime | None,
        runs: Sequence[WithdrawnRun],
    ) -> str:
        ident = self._new_id()
        row: dict[str, Scalar] = {
            "id": ident,
            "scope": scope.value,
            "value": self._clean.text(value),
            "reason": self._clean.text(reason),
            "by": self._clean.text(by),
        }
        self._append("retraction", {**row, "at": self._at(at)})
        links = ({"retraction": ident, "of": r.ledger, "run": r.id} for r in runs)
        self._append_many("withdrawn", links)
        return ident

    def _whole(self, scope: Scope, value: str) -> str:
        """The one whole digest or id that begins so. A whole digest may be unknown as yet."""
        if not _DIGEST.match(value):
            raise UsageError(
                f"not the {scope.value} of a retraction: {self._clean.text(value)!r}",
                why="it is 4 to 64 lower-case hex digits",
                next="ddops ledger show runs",
            )
        sql = f"SELECT DISTINCT x FROM ({_KNOWN[scope]}) WHERE x >= :low AND x < :high"  # noqa: S608
        marks = {"low": value, "high": value + "g"}
        found = sorted(str(r["x"]) for r in self._rows(sql, marks))
        if value in found or (not found and len(value) in (40, 64) and scope is not Scope.RUN):
            return value
        if len(found) == 1:
            return found[0]
        raise UsageError(
            f"{value} is not one {scope.value}",
            why=f"it begins {', '.join(found[:8])}" if found else "the ledger knows none such",
            next="give more digits" if found else "give the whole digest to withdraw what comes",
        )

    def _where(self, condition: str) -> list[WithdrawnRun]:
        """Runs that a condition names, found by the connection that can only read.

        It sees what is committed. Nobody else can commit while we hold the write lock.
        """
        sql = f"SELECT ledger, id FROM run WHERE ({condition}\n)"  # noqa: S608
        named = query.run(self.path, sql, max_rows=MOST)
        meant = {(str(r.get("ledger")), str(r.get("id"))) for r in named}
        rows = self._rows(f"{_FOUND} true{_ORDER}", {})
        return [_withdrawn(r) for r in rows if (r["ledger"], r["id"]) in meant]

    def _fallen(self, runs: set[tuple[str, str]]) -> list[FallenFinding]:
        cited = {
            (r["ledger"], r["finding"])
            for r in self._rows(_CITED, {})
            if (r["of"], r["run"]) in runs
        }
        return [
            FallenFinding(
                id=r["id"],
                kind=r["kind"],
                subject=r["subject"],
                text=r["text"],
                at=r["at"],
                stood=bool(r["stands"]),
            )
            for r in self._rows(_FALLEN, {})
            if (r["ledger"], r["id"]) in cited
        ]


def _withdrawn(row: sqlite3.Row) -> WithdrawnRun:
    return WithdrawnRun(
        id=row["id"],
        ledger=row["ledger"],
        label=row["label"],
        started=row["started"],
        counted=bool(row["counted"]),
    )
