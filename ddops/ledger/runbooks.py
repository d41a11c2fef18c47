"""Runs of runbooks, their journal, and tasks: rows in, rows out.

A run is open until its journal says `completed` or `aborted`. Whether somebody is at work on an
open one is a question of a lock, not of the ledger (`ddops.runbook.hold`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ddops.errors import LockHeldError, UsageError
from ddops.ledger.chain import Scalar
from ddops.ledger.clean import when
from ddops.ledger.writers import Writers
from ddops.model import digest

#: Journal words after which a run is over.
OVER = ("completed", "aborted")
PRIORITIES = ("high", "medium", "low")
STATUSES = ("pending", "in_progress", "completed", "blocked")

_OVER = """EXISTS (SELECT 1 FROM runbook_event e WHERE e.ledger = r.ledger AND e.run = r.id
AND e.step = '' AND e.state IN ('completed', 'aborted'))"""
_NEXT = "SELECT coalesce(max(n), 0) + 1 AS n FROM runbook_event WHERE ledger = :own AND run = :run"
_TASKS = "SELECT * FROM task ORDER BY id"
_OF_RUN = """SELECT e.*, e.at AS updated_at FROM task_entry e
WHERE e.ledger = :own AND e.runbook_run = :run AND e.n = (SELECT max(n) FROM task_entry x
WHERE x.ledger = e.ledger AND x.id = e.id) ORDER BY e.id"""
_ENTRY = """SELECT * FROM task_entry WHERE ledger = :own AND id = :id
ORDER BY n DESC LIMIT 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task of a run: `step` is the step it stands for."""

    step: str
    content: str
    priority: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as it is now. `runbook_run` is None for one that a person added."""

    id: int
    runbook_run: str | None
    content: str
    priority: str
    status: str
    owner: str
    evidence: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One run of a runbook, with the whole text that it runs by."""

    id: str
    runbook: str
    source: str
    digest: str
    params: Mapping[str, object]
    hosts: tuple[str, ...]
    by: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One word of a run's journal; `step` is empty where it is about the run itself."""

    n: int
    step: str
    state: str
    evidence: Mapping[str, object]
    by: str
    at: datetime


class Runbooks(Writers):
    """Rows of runbooks and tasks. All of them are of this ledger's own chain."""

    def add_runbook_run(
        self,
        run_id: str,
        *,
        runbook: str,
        source: str,
        params: Mapping[str, object],
        hosts: Sequence[str],
        by: str,
        tasks: Sequence[NewTask],
    ) -> None:
        """Begin a run, with a pending task for each step, in one transaction.

        Raises LockHeldError while another run of the same runbook is open on one of the hosts,
        UsageError for a text that holds what looks like a secret.
        """
        clean = self._clean
        if clean.text(source) != source:
            raise UsageError(
                f"the runbook {runbook} holds what looks like a secret",
                why="its whole text is kept in the ledger, to resume by",
                next="give it a parameter of type `secret`, which takes a reference",
            )
        row: dict[str, Scalar] = {
            "id": clean.ident(run_id, "a run's id"),
            "runbook": clean.ident(runbook, "a runbook's name"),
            "source": source,
            "digest": digest(source),
            "params": clean.json(params),
            "hosts": json.dumps(list(hosts)),
            "by": clean.text(by),
        }
        with self._writing():
            self._refuse_second(runbook, hosts)
            self._append("runbook_run", {**row, "at": self._at(None)})
            self._event(run_id, "", "started", {}, by)
            for task in tasks:
                self._new_task(task, run_id, by)

    def add_runbook_event(
        self,
        run_id: str,
        step: str,
        state: str,
        *,
        by: str,
        evidence: Mapping[str, object] | None = None,
        status: str | None = None,
        words: str = "",
    ) -> None:
        """A word of the journal; with `status`, the step's task changes with it, or neither."""
        with self._writing():
            self._event(run_id, step, state, evidence or {}, by)
            if status is not None:
                self._move(run_id, step, status, words, by)

    def abort_runbook_run(self, run_id: str, *, by: str, reason: str) -> None:
        """End a run for good: its tasks that are not completed are blocked, and say by whom."""
        words = f"the run was aborted by {by}" + (f": {reason}" if reason else "")
        with self._writing():
            self._event(run_id, "", "aborted", {"reason": reason}, by)
            for row in self._rows(_OF_RUN, {"own": self.ledger_id, "run": run_id}):
                if row["status"] != "completed":
                    self._moved(row, "blocked", words, by)

    def runbook_run(self, prefix: str) -> StoredRun | None:
        """The run whose id begins so; None for none. Raises UsageError for several."""
        sql = """SELECT * FROM runbook_run WHERE ledger = :own
AND substr(id, 1, length(:prefix)) = :prefix ORDER BY id = :prefix DESC, seq DESC LIMIT 9"""
        found = self._rows(sql, {"own": self.ledger_id, "prefix": prefix}) if prefix else []
        if len(found) > 1 and found[0]["id"] != prefix:
            raise UsageError(
                f"{prefix} is not one run",
                why=f"it begins {', '.join(r['id'] for r in found)}",
                next="give more of it",
            )
        return _run(found[0]) if found else None

    def runbook_runs(self, *, open_only: bool = False, limit: int = 50) -> list[StoredRun]:
        """The last runs, newest first."""
        where = f"AND NOT {_OVER}" if open_only else ""
        sql = f"""SELECT r.* FROM runbook_run r WHERE r.ledger = :own {where}
ORDER BY r.seq DESC LIMIT :limit"""  # noqa: S608
        return [_run(r) for r in self._rows(sql, {"own": self.ledger_id, "limit": limit})]

    def runbook_events(self, run_id: str) -> list[JournalEntry]:
        """A run's journal, first to last."""
        sql = "SELECT * FROM runbook_event WHERE ledger = :own AND run = :run ORDER BY n"
        return [
            JournalEntry(
                n=r["n"], step=r["step"], state=r["state"], evidence=json.loads(r["evidence"]),
                by=r["by"], at=when(r["at"]),
            )
            for r in self._rows(sql, {"own": self.ledger_id, "run": run_id})
        ]  # fmt: skip

    # ---- tasks

    def add_task(self, content: str, *, priority: str, owner: str) -> int:
        """A task of a person's own. Answers its number."""
        _one_of(priority, PRIORITIES, "priority")
        with self._writing():
            return self._new_task(NewTask(step="", content=content, priority=priority), None, owner)

    def set_task(self, task_id: int, status: str, *, evidence: str, owner: str) -> Task:
        """Change a task that a person added. Those of a run change with the run alone."""
        _one_of(status, STATUSES, "status")
        with self._writing():
            found = self._rows(_ENTRY, {"own": self.ledger_id, "id": task_id})
            if not found:
                raise UsageError(f"there is no task {task_id}", next="ddops task list")
            if found[0]["runbook_run"] is not None:
                raise UsageError(
                    f"task {task_id} is a step of run {found[0]['runbook_run']}",
                    why="it changes with the run, so that it says what really happened",
                    next=f"ddops runbook log {found[0]['runbook_run']}",
                )
            self._moved(found[0], status, evidence, owner)
        return next(t for t in self.tasks() if t.id == task_id)

    def tasks(self, *, run_id: str | None = None) -> list[Task]:
        """Tasks as they are now, by number; with `run_id` that run's, an aborted one's too."""
        rows = self._rows(_OF_RUN, {"own": self.ledger_id, "run": run_id}) if run_id else (
            self._rows(_TASKS, {}))  # fmt: skip
        return [
            Task(
                id=r["id"], runbook_run=r["runbook_run"], content=r["content"],
                priority=r["priority"], status=r["status"], owner=r["owner"],
                evidence=r["evidence"], created_at=when(r["created_at"]),
                updated_at=when(r["updated_at"]),
            )
            for r in rows
        ]  # fmt: skip

    # ---- rows

    def _refuse_second(self, runbook: str, hosts: Sequence[str]) -> None:
        for other in self.runbook_runs(open_only=True, limit=1_000_000):
            both = set(hosts) & set(other.hosts)
            if other.runbook == runbook and (both or not hosts):
                on = f" on {', '.join(sorted(both))}" if both else ""
                raise LockHeldError(
                    f"{runbook}{on} is run by {other.by}, as {other.id}, since"
                    f" {other.at:%Y-%m-%d %H:%M} UTC",
                    why="it is not over; two runs of one runbook would get in each other's way",
                    next=f"ddops runbook log {other.id}; resume it, or abort it",
                )

    def _event(
        self, run_id: str, step: str, state: str, evidence: Mapping[str, object], by: str
    ) -> None:
        n = self._rows(_NEXT, {"own": self.ledger_id, "run": run_id})[0]["n"]
        row: dict[str, Scalar] = {
            "run": run_id, "n": int(n), "step": step, "state": state,
            "evidence": self._clean.json(evidence), "by": self._clean.text(by),
        }  # fmt: skip
        self._append("runbook_event", {**row, "at": self._at(None)})

    def _new_task(self, task: NewTask, run_id: str | None, owner: str) -> int:
        sql = "SELECT coalesce(max(id), 0) + 1 AS id FROM task_entry WHERE ledger = :own"
        task_id = int(self._rows(sql, {"own": self.ledger_id})[0]["id"])
        now = self._at(None)
        row: dict[str, Scalar] = {
            "id": task_id, "n": 1, "runbook_run": run_id, "step": task.step,
            "content": self._clean.text(task.content), "priority": task.priority,
            "status": "pending", "owner": self._clean.text(owner), "evidence": "",
            "created_at": now, "at": now,
        }  # fmt: skip
        self._append("task_entry", row)
        return task_id

    def _move(self, run_id: str, step: str, status: str, words: str, by: str) -> None:
        sql = """SELECT * FROM task_entry WHERE ledger = :own AND runbook_run = :run
AND step = :step ORDER BY n DESC LIMIT 1"""
        found = self._rows(sql, {"own": self.ledger_id, "run": run_id, "step": step})
        if found:
            self._moved(found[0], status, words, by)

    def _moved(self, last: sqlite3.Row, status: str, evidence: str, owner: str) -> None:
        kept = ("id", "runbook_run", "step", "content", "priority", "created_at")
        row: dict[str, Scalar] = {k: last[k] for k in kept}
        row |= {
            "n": int(last["n"]) + 1, "status": status, "owner": self._clean.text(owner),
            "evidence": self._clean.text(evidence), "at": self._at(None),
        }  # fmt: skip
        self._append("task_entry", row)


def _one_of(word: str, known: Sequence[str], what: str) -> None:
    if word not in known:
        raise UsageError(f"not a {what}: {word!r}", next=f"one of: {', '.join(known)}")


def _run(row: sqlite3.Row) -> StoredRun:
    return StoredRun(
        id=row["id"], runbook=row["runbook"], source=row["source"], digest=row["digest"],
        params=json.loads(row["params"]), hosts=tuple(json.loads(row["hosts"])), by=row["by"],
        at=when(row["at"]),
    )  # fmt: skip
