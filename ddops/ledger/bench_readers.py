"""Reading what was measured. Readers answer over all chains of the file."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from typing import cast

from ddops.errors import DdopsError, UsageError
from ddops.ledger.bench_records import (
    FIGURES,
    Device,
    Identity,
    NewSample,
    Run,
    Status,
    StoredCell,
)
from ddops.ledger.chain import COLUMNS, Scalar
from ddops.ledger.clean import when
from ddops.ledger.readers import Readers

_RUN = """SELECT r.*, (r.ledger, r.id) IN (SELECT ledger, id FROM valid_run WHERE id = r.id) AS ok
FROM run r"""
_SAMPLE = "SELECT * FROM sample WHERE ledger = :ledger AND run = :run ORDER BY n"
_RAW = "SELECT * FROM raw WHERE ledger = :ledger AND run = :run AND kind = :kind ORDER BY part"


class BenchReaders(Readers):
    """Runs by id or by the first digits of it; cells by key."""

    def run(self, run_id: str) -> Run:
        """One run. Raises UsageError when none, or more than one, begins with `run_id`."""
        low = self._clean.text(run_id)
        sql = f"{_RUN} WHERE r.id >= :low AND r.id < :high ORDER BY r.ledger = :own DESC LIMIT 9"
        marks = {"low": low, "high": low + "\U0010ffff", "own": self.ledger_id}
        found = self._rows(sql, marks) if low else []
        ids = list(dict.fromkeys(str(r["id"]) for r in found))
        if len(ids) == 1 or low in ids:
            return _run(next(r for r in found if r["id"] == (low if low in ids else ids[0])))
        raise UsageError(
            f"not one run: {low!r}",
            why=f"it begins {', '.join(ids)}" if ids else "no run has this id",
            next="ddops ledger show runs",
        )

    def runs(
        self, cell: str | None = None, *, valid_only: bool = True, limit: int = 1000
    ) -> list[Run]:
        """Runs of a cell, or of all, oldest first; the valid ones alone unless told otherwise."""
        table = "valid_run" if valid_only else "run"
        chosen = f"SELECT ledger, id FROM {table} WHERE :cell IS NULL OR cell = :cell"  # noqa: S608
        sql = f"""{_RUN} WHERE (r.ledger, r.id) IN ({chosen})
ORDER BY r.started, r.ledger, r.seq LIMIT :limit"""
        return [_run(r) for r in self._rows(sql, {"cell": cell, "limit": max(0, limit)})]

    def cell(self, key: str) -> StoredCell | None:
        """One cell by its key, or by the first digits if only one begins so."""
        sql = """SELECT * FROM cell WHERE key >= :low AND key < :high
ORDER BY ledger = :own DESC LIMIT 9"""
        marks = {"low": key, "high": key + "g", "own": self.ledger_id}
        found = self._rows(sql, marks) if key else []
        keys = {str(r["key"]) for r in found}
        if len(keys) > 1:
            raise UsageError(
                f"{self._clean.text(key)} is not one cell",
                why=f"it begins {', '.join(sorted(k[:12] for k in keys))}",
                next="give more digits",
            )
        return _cell(found[0]) if found else None

    def cells(self, suite: str | None = None, service: str | None = None) -> list[StoredCell]:
        """Cells of a suite or a service, oldest first."""
        sql = """SELECT * FROM cell WHERE (:suite IS NULL OR suite = :suite)
AND (:service IS NULL OR service = :service) ORDER BY at, ledger, seq"""
        return [_cell(r) for r in self._rows(sql, {"suite": suite, "service": service})]

    def samples(self, run: Run) -> list[NewSample]:
        """The run's requests in order."""
        marks = {"ledger": run.ledger, "run": run.id}
        return [_sample(r) for r in self._rows(_SAMPLE, marks)]

    def conditions(self, run: Run) -> list[dict[str, Scalar]]:
        """What the run's devices looked like, by time."""
        sql = "SELECT * FROM condition WHERE ledger = :ledger AND run = :run ORDER BY n"
        return [dict(r) for r in self._rows(sql, {"ledger": run.ledger, "run": run.id})]

    def raw(self, run: Run, kind: str) -> bytes:
        """What `add_run` was given under this kind, whole. Raises DdopsError when there is none."""
        found = self._rows(_RAW, {"ledger": run.ledger, "run": run.id, "kind": kind})
        if not found:
            raise DdopsError(
                f"run {run.id} has no raw data of kind {self._clean.text(kind)!r}",
                why="none was stored with it",
                next="ddops ledger show runs",
            )
        return b"".join(zlib.decompress(r["data"]) for r in found)

    def withdrawals(self, run: Run) -> list[Mapping[str, Scalar]]:
        """The retractions that hold for a run, with their reasons."""
        sql = """SELECT DISTINCT t.id, t.scope, t.value, t.reason, t."by", t.at
FROM withdrawn_run w JOIN retraction t ON t.ledger = w.retracted_in AND t.id = w.retraction
WHERE w.ledger = :ledger AND w.run = :run ORDER BY t.at"""
        return [dict(r) for r in self._rows(sql, {"ledger": run.ledger, "run": run.id})]

    def imported(self, sha: str, tool: str) -> str | None:
        """The run that was imported from the text with this sha256, if any."""
        sql = "SELECT id, protocol FROM run WHERE tool = :tool AND instr(protocol, :sha)"
        for row in self._rows(sql, {"tool": tool, "sha": sha}):
            own = _object(row["protocol"]).get("own")
            if isinstance(own, Mapping) and own.get("sha256") == sha:
                return str(row["id"])
        return None

    def retractions(self) -> list[Mapping[str, Scalar]]:
        """Every retraction with how many runs it named, oldest first."""
        sql = """SELECT t.ledger, t.id, t.scope, t.value, t.reason, t."by", t.at,
  (SELECT count(*) FROM withdrawn w WHERE w.ledger = t.ledger AND w.retraction = t.id) AS runs
FROM retraction t ORDER BY t.at, t.ledger, t.seq"""
        return [dict(r) for r in self._rows(sql, {})]

    def conclusions(self, runs: Sequence[str] = ()) -> list[Mapping[str, Scalar]]:
        """What was concluded and whether it stands; of the given runs alone where some are."""
        sql = "SELECT * FROM conclusion ORDER BY at, ledger, id"
        found: list[Mapping[str, Scalar]] = [dict(r) for r in self._rows(sql, {})]
        if not runs:
            return found
        marks = {f"r{i}": run for i, run in enumerate(runs)}
        names = ", ".join(f":{k}" for k in marks)
        links = f"SELECT DISTINCT ledger, finding FROM finding_run WHERE run IN ({names})"  # noqa: S608
        about = {(r["ledger"], r["finding"]) for r in self._rows(links, marks)}
        return [f for f in found if (f["ledger"], f["id"]) in about]


def _object(text: str) -> Mapping[str, object]:
    return cast("dict[str, object]", json.loads(text))


def _run(row: sqlite3.Row) -> Run:
    return Run(
        id=row["id"],
        cell=row["cell"],
        launch=row["launch"],
        release=row["release"],
        tree=row["tree"],
        repeat=row["repeat"],
        status=Status(row["status"]),
        reason=row["reason"],
        valid=bool(row["ok"]),
        identity=Identity(row["identity"]),
        device_class=Device(row["device_class"]),
        device=row["device"],
        started=when(row["started"]),
        ended=when(row["ended"]),
        figures={name: row[name] for name in FIGURES},
        tool=row["tool"],
        by=row["by"],
        protocol=_object(row["protocol"]),
        window=_object(row["window"]),
        environment=_object(row["environment"]),
        metrics=_object(row["metrics"]),
        ledger=row["ledger"],
        seq=row["seq"],
    )


def _cell(row: sqlite3.Row) -> StoredCell:
    return StoredCell(
        key=row["key"],
        suite=row["suite"],
        family=row["family"],
        comparable=row["comparable"],
        service=row["service"],
        label=row["label"],
        concurrency=row["concurrency"],
        vary=_object(row["vary"]),
        fix=_object(row["fix"]),
        ledger=row["ledger"],
        seq=row["seq"],
    )


def _sample(row: sqlite3.Row) -> NewSample:
    values = {k: v for k, v in dict(row).items() if k not in (*COLUMNS, "run")}
    ok, detail = values["identity_ok"], values["detail"]
    values["identity_ok"] = None if ok is None else bool(ok)
    values["detail"] = None if detail is None else _object(detail)
    return NewSample(**values)
