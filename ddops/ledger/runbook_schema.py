"""The migration `0004_runbooks`: runs of runbooks, their journal, and the team's tasks.

A task changes, and rows do not: each change is a row of `task_entry`, and the view `task` shows
every task of this ledger as its newest row has it, but for those of runs that were aborted: nobody
has to do them any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddops.ledger.links import END, LINK

if TYPE_CHECKING:
    from sqlite_utils import Database

_PRIORITY = "'high', 'medium', 'low'"
_STATUS = "'pending', 'in_progress', 'completed', 'blocked'"
#: What a journal may say: of the run itself where `step` is empty, of one of its steps else.
_STATES = (
    "'started', 'resumed', 'waiting', 'completed', 'failed', 'aborted',"
    " 'begun', 'skipped', 'done', 'approved', 'remedied'"
)

_TABLES = (
    f"""CREATE TABLE runbook_run ({LINK}
  id TEXT NOT NULL, runbook TEXT NOT NULL, source TEXT NOT NULL,
  digest TEXT NOT NULL CHECK (length(digest) = 64), params TEXT NOT NULL, hosts TEXT NOT NULL,
  "by" TEXT NOT NULL, at TEXT NOT NULL,
  UNIQUE (ledger, id), {END}""",
    f"""CREATE TABLE runbook_event ({LINK}
  run TEXT NOT NULL, n INTEGER NOT NULL CHECK (n > 0), step TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ({_STATES})),
  evidence TEXT NOT NULL, "by" TEXT NOT NULL, at TEXT NOT NULL,
  UNIQUE (ledger, run, n),
  FOREIGN KEY (ledger, run) REFERENCES runbook_run (ledger, id), {END}""",
    f"""CREATE TABLE task_entry ({LINK}
  id INTEGER NOT NULL CHECK (id > 0), n INTEGER NOT NULL CHECK (n > 0),
  runbook_run TEXT, step TEXT NOT NULL, content TEXT NOT NULL CHECK (content <> ''),
  priority TEXT NOT NULL CHECK (priority IN ({_PRIORITY})),
  status TEXT NOT NULL CHECK (status IN ({_STATUS})),
  owner TEXT NOT NULL, evidence TEXT NOT NULL, created_at TEXT NOT NULL, at TEXT NOT NULL,
  UNIQUE (ledger, id, n),
  FOREIGN KEY (ledger, runbook_run) REFERENCES runbook_run (ledger, id), {END}""",
    "CREATE INDEX runbook_run_id ON runbook_run (id)",
    "CREATE INDEX runbook_event_run ON runbook_event (run)",
    "CREATE INDEX task_entry_run ON task_entry (runbook_run)",
    """CREATE VIEW task AS
SELECT e.id, e.runbook_run, e.content, e.priority, e.status, e.owner, e.evidence, e.created_at,
  e.at AS updated_at
FROM task_entry e WHERE e.ledger = (SELECT value FROM meta WHERE key = 'ledger')
AND NOT EXISTS (SELECT 1 FROM task_entry x
  WHERE x.ledger = e.ledger AND x.id = e.id AND x.n > e.n)
AND NOT EXISTS (SELECT 1 FROM runbook_event a WHERE a.ledger = e.ledger
  AND a.run = e.runbook_run AND a.step = '' AND a.state = 'aborted')""",
)


def apply(db: Database) -> None:
    """Make the tables and the view."""
    for statement in _TABLES:
        db.conn.execute(statement)
