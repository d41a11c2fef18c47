"""Adding what was measured: cells, runs with all that belongs to them, findings, trees."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from enum import Enum

from ddops.errors import DdopsError, RefusedError
from ddops.ledger.bench_records import (
    FIGURES,
    Cell,
    Identity,
    NewCondition,
    NewRun,
    NewSample,
    RawData,
    Status,
)
from ddops.ledger.chain import Scalar
from ddops.ledger.clean import stamp
from ddops.ledger.writers import Writers
from ddops.model import Verdict, canonical, short

#: Bytes of raw data in one row, before compression.
RAW_PART = 4 * 1024 * 1024
#: Columns of type REAL: SQLite gives 3 back as 3.0, so 3.0 must be what is hashed.
_REAL = frozenset(f for f in FIGURES if f.endswith(("_ms", "_tps", "c_eff"))) | {
    "power_w",
    "limit_w",
    "temp_c",
    "util_pct",
    "noise",
}
_INT64 = 2**63
#: Short texts (prompt ids, outcomes, finish reasons) repeat; their redacted form is kept.
_CACHE = 20_000

_CELL = "SELECT key FROM cell WHERE ledger = :ledger AND key = :key"
_LAUNCH = """SELECT "release", host FROM launch WHERE ledger = :ledger AND nonce = :nonce"""
_GATE = "SELECT name, launch, verdict FROM gate WHERE ledger = :ledger AND id = :id"
_TREE = "SELECT upstream, series, plugin, files FROM tree WHERE ledger = :ledger AND digest = :sha"
_RUNS = "SELECT ledger, id FROM run WHERE id = :id ORDER BY ledger = :own DESC"


class BenchWriters(Writers):
    """Rows of the bench. A run and all its parts go in together, or not at all."""

    def add_tree(
        self,
        sha: str,
        *,
        upstream: str,
        series: str = "",
        plugin: str = "",
        files: Mapping[str, object] | None = None,
        at: datetime | None = None,
    ) -> str:
        """An engine's source tree by its digest (git's or sha256). The same content once only."""
        clean = self._clean
        ident = clean.ident(sha, "the digest of a tree")
        content: dict[str, Scalar] = {
            "upstream": clean.text(upstream),
            "series": clean.text(series),
            "plugin": clean.text(plugin),
            "files": clean.json(files or {}),
        }
        with self._writing():
            found = self._rows(_TREE, {"ledger": self.ledger_id, "sha": ident})
            if not found:
                self._append("tree", {"digest": ident, **content, "at": self._at(at)})
                return ident
        unlike = [k for k, v in content.items() if found[0][k] != v]
        if unlike:
            raise DdopsError(
                f"tree {short(ident)} is recorded with other content",
                why=f"{', '.join(unlike)} differ, and a digest stands for one content",
                next="find out which of the two was made by hand; the ledger was not changed",
            )
        return ident

    def add_cell(self, cell: Cell, *, at: datetime | None = None) -> str:
        """The cell's key. A cell that is there is left alone: its key is its content."""
        clean = self._clean
        vary, fix = clean.json(cell.vary), clean.json(cell.fix)
        if (vary, fix) != (canonical(dict(cell.vary)), canonical(dict(cell.fix))):
            raise DdopsError(
                "this cell cannot be recorded",
                why="its parameters hold a secret or a number JSON does not know, and its key is "
                "taken of what is stored",
                next="give secrets by reference, e.g. env:NAME",
            )
        row: dict[str, Scalar] = {
            "key": cell.key,
            "suite": clean.ident(cell.suite, "a suite's name"),
            "family": cell.family,
            "comparable": cell.comparable,
            "service": clean.text(cell.service),
            "label": clean.text(cell.label),
            "concurrency": cell.concurrency,
            "vary": vary,
            "fix": fix,
        }
        with self._writing():
            if not self._rows(_CELL, {"ledger": self.ledger_id, "key": cell.key}):
                self._append("cell", {**row, "at": self._at(at)})
        return cell.key

    def add_run(
        self,
        run: NewRun,
        samples: Iterable[NewSample] = (),
        conditions: Iterable[NewCondition] = (),
        raw: Iterable[RawData] = (),
    ) -> str:
        """Store one run whole, in one transaction. Answers its id.

        Raises RefusedError for a valid run that its launch, gates or identity do not carry; store
        it as invalid or unbound, with the reason, instead. `samples` may be a generator.
        """
        with self._writing():
            run_id = self._new_id()
            row = self._run_row(run, run_id)
            self._check_gates(run)
            self._append("run", row)
            self._append_many("run_gate", self._bound(run, run_id))
            self._append_many("sample", self._rows_of(samples, run_id))
            self._append_many("condition", self._rows_of(conditions, run_id))
            self._append_many("raw", self._parts(raw, run_id))
        return run_id

    def add_finding(
        self,
        kind: str,
        subject: str,
        text: str,
        runs: Iterable[str],
        *,
        by: str,
        evidence: Mapping[str, object] | None = None,
        at: datetime | None = None,
    ) -> str:
        """What was concluded, from which runs; the view `conclusion` says whether it stands.

        `kind`: recommendation, report, comparison, baseline or note. Answers the row's id.
        """
        clean = self._clean
        wanted = list(dict.fromkeys(runs))
        if not wanted:
            raise DdopsError(
                "a finding without runs cannot be recorded",
                why="nothing could ever withdraw it",
                next="name the runs it was drawn from",
            )
        row: dict[str, Scalar] = {
            "id": self._new_id(),
            "kind": clean.ident(kind, "a kind of finding"),
            "subject": clean.text(subject),
            "text": clean.text(text),
            "evidence": clean.json(evidence or {}),
            "by": clean.text(by),
        }
        with self._writing():
            places = [self._place(run) for run in wanted]
            self._append("finding", {**row, "at": self._at(at)})
            links = ({"finding": row["id"], "of": of, "run": run} for of, run in places)
            self._append_many("finding_run", links)
        return str(row["id"])

    def _place(self, run: str) -> tuple[str, str]:
        """Which chain a run stands in; the own one first."""
        found = self._rows(_RUNS, {"id": run, "own": self.ledger_id})
        if not found:
            raise DdopsError(
                f"the ledger has no run {self._clean.text(run)}",
                why="a finding names runs that are there",
                next="ddops ledger show runs",
            )
        return str(found[0]["ledger"]), str(found[0]["id"])

    def _run_row(self, run: NewRun, run_id: str) -> dict[str, Scalar]:
        clean = self._clean
        release, host = None, self._host_id(run.host) if run.host is not None else None
        if run.launch is not None:
            nonce = clean.ident(run.launch, "a launch's nonce")
            found = self._rows(_LAUNCH, {"ledger": self.ledger_id, "nonce": nonce})
            if not found:
                raise DdopsError(
                    f"the ledger does not know the launch {nonce}",
                    why="a run names the server start it measured, so that row comes first",
                    next="call add_launch before, or store the run as unbound",
                )
            release, host = found[0]["release"], found[0]["host"]
        reason = clean.text(run.reason)
        if (run.status is Status.VALID) != (reason == ""):
            raise DdopsError(
                f"a run that is {run.status.value} {'has' if reason else 'lacks'} a reason",
                why="every status but valid says why, and a valid one has nothing to say",
                next="give `reason` exactly when the status is not valid",
            )
        figures = {name: _number(name, getattr(run, name)) for name in FIGURES}
        return {
            "id": run_id,
            "cell": clean.hex64(run.cell, "the key of a cell"),
            "launch": run.launch,
            "release": release,
            "tree": clean.ident(run.tree, "the digest of a tree") if run.tree else None,
            "host": host,
            "gate": run.gates[0] if run.gates else None,
            "repeat": run.repeat,
            "status": Status(run.status).value,
            "reason": reason,
            "identity": Identity(run.identity).value,
            "device_class": run.device_class.value,
            "device": clean.text(run.device),
            "started": stamp(run.started),
            "ended": stamp(run.ended),
            **figures,
            "tool": clean.text(run.tool),
            "by": clean.text(run.by),
            "protocol": clean.json(run.protocol),
            "window": clean.json(run.window),
            "environment": clean.json(run.environment),
            "metrics": clean.json(run.metrics),
        }

    def _check_gates(self, run: NewRun) -> None:
        """A valid run is carried by passed gates of the very server start it measured."""
        why = []
        for gate in run.gates:
            found = self._rows(_GATE, {"ledger": self.ledger_id, "id": gate})
            if not found:
                why.append(f"the ledger has no gate {self._clean.text(gate)}")
            elif run.launch is None or found[0]["launch"] != run.launch:
                why.append(f"gate {found[0]['name']} judged launch {found[0]['launch']}")
            elif run.status is Status.VALID and found[0]["verdict"] != Verdict.PASS.value:
                why.append(f"gate {found[0]['name']} says {found[0]['verdict']}")
        if run.status is Status.VALID:
            if run.launch is None:
                why.append("no launch is named")
            if run.identity is Identity.NONE:
                why.append("nothing shows which server answered")
            if not run.gates:
                why.append("no gate is named")
            if run.requests <= 0:
                why.append("it has no requests")
        if why:
            raise RefusedError(
                f"this run cannot be recorded as {run.status.value}",
                why="; ".join(why),
                next="record it as invalid or unbound, with the reason",
            )

    def _bound(self, run: NewRun, run_id: str) -> Iterator[dict[str, Scalar]]:
        for gate in dict.fromkeys(run.gates):
            yield {"run": run_id, "launch": run.launch, "gate": gate}

    def _rows_of(
        self, items: Iterable[NewSample] | Iterable[NewCondition], run_id: str
    ) -> Iterator[dict[str, Scalar]]:
        """Fields are columns by name. One list of names a call: this runs once a request."""
        names: tuple[str, ...] = ()
        seen: dict[str, str] = {}
        for item in items:
            names = names or tuple(f.name for f in fields(item))
            row: dict[str, Scalar] = {"run": run_id}
            for name in names:
                value = getattr(item, name)
                if value is None:
                    continue
                kind = type(value)
                if kind is str:
                    if (known := seen.get(value)) is None:
                        known = self._clean.text(value)
                        if len(seen) < _CACHE:
                            seen[value] = known
                    row[name] = known
                elif kind is int and name not in _REAL and -_INT64 <= value < _INT64:
                    row[name] = value
                else:
                    row[name] = self._other(name, value)
            yield row

    def _other(self, name: str, value: object) -> Scalar:
        if isinstance(value, Mapping):
            return self._clean.json(value)
        if isinstance(value, Enum):
            return str(value.value)
        if isinstance(value, str):
            return self._clean.text(value)
        return _number(name, value)

    def _parts(self, raw: Iterable[RawData], run_id: str) -> Iterator[dict[str, Scalar]]:
        for item in raw:
            kind = self._clean.ident(item.kind, "a kind of raw data")
            data = self._clean.raw_text(item.data) if item.text else item.data
            for part, start in enumerate(range(0, max(1, len(data)), RAW_PART)):
                piece = data[start : start + RAW_PART]
                yield {
                    "run": run_id,
                    "kind": kind,
                    "part": part,
                    "codec": "zlib",
                    "size": len(piece),
                    "data": zlib.compress(piece, 6),
                }


def _number(name: str, value: object) -> int | float | None:
    """A number as SQLite will give it back, which it does not do with NaN."""
    if value is None:
        return None
    if isinstance(value, int | float) and math.isfinite(value):
        if name in _REAL:
            return float(value)
        if int(value) == value and -_INT64 <= value < _INT64:
            return int(value)
    raise DdopsError(
        f"{name} cannot be recorded",
        why=f"{value!r} is no finite number of its kind",
        next="give None for what was not measured",
    )
