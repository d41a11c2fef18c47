"""The tables, as migrations. A released migration is never edited; a change is a new one.

Every chained table has `ledger, seq, prev, hash`, the primary key (ledger, seq) and no rowid: a
hidden rowid would be one more key by which INSERT OR REPLACE can remove a row. Keys and foreign
keys include `ledger`, so a chain is whole by itself and can be merged beside others that know
the same release or host. Triggers are not written here: `guards` makes them for all tables.
JSON columns have no json_valid() check: SQLite forbids that function in a schema it does not
trust, and any tool must be able to open the file.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ddops import __version__
from ddops.errors import DdopsError, RefusedError
from ddops.ledger import bench_schema, guards, runbook_schema, step_0002, step_0005
from ddops.ledger.clean import stamp
from ddops.ledger.connect import APPLICATION_ID, errors
from ddops.ledger.links import END as _END
from ddops.ledger.links import LINK as _LINK

if TYPE_CHECKING:  # it takes longer to load than a ledger takes to open; a migration loads it
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

_SET = "ddops"
_FIRST = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    "CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID",
    f"""CREATE TABLE host ({_LINK}
  id TEXT NOT NULL, name TEXT NOT NULL, pins TEXT NOT NULL,
  UNIQUE (ledger, id), {_END}""",
    f"""CREATE TABLE facts ({_LINK}
  id TEXT NOT NULL, host TEXT NOT NULL, at TEXT NOT NULL,
  digest TEXT NOT NULL CHECK (length(digest) = 64),
  simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
  json TEXT NOT NULL,
  UNIQUE (ledger, id), FOREIGN KEY (ledger, host) REFERENCES host (ledger, id), {_END}""",
    f"""CREATE TABLE "release" ({_LINK}
  digest TEXT NOT NULL CHECK (length(digest) = 64), service TEXT NOT NULL,
  upstream TEXT NOT NULL, spec TEXT NOT NULL, series TEXT NOT NULL,
  lock TEXT NOT NULL, plugin TEXT NOT NULL, model TEXT NOT NULL, draft TEXT NOT NULL,
  at TEXT NOT NULL,
  UNIQUE (ledger, digest), {_END}""",
    f"""CREATE TABLE deployment ({_LINK}
  op_id TEXT NOT NULL, service TEXT NOT NULL, "release" TEXT NOT NULL, host TEXT NOT NULL,
  at TEXT NOT NULL, "by" TEXT NOT NULL, previous TEXT CHECK (length(previous) = 64),
  UNIQUE (ledger, op_id), FOREIGN KEY (ledger, host) REFERENCES host (ledger, id),
  FOREIGN KEY (ledger, "release") REFERENCES "release" (ledger, digest), {_END}""",
    f"""CREATE TABLE transition ({_LINK}
  op_id TEXT NOT NULL, n INTEGER NOT NULL CHECK (n > 0), state TEXT NOT NULL,
  verdict TEXT NOT NULL CHECK (verdict IN ('ok', 'skip', 'fail', 'unknown')),
  evidence TEXT NOT NULL, at TEXT NOT NULL,
  UNIQUE (ledger, op_id, n),
  FOREIGN KEY (ledger, op_id) REFERENCES deployment (ledger, op_id), {_END}""",
    f"""CREATE TABLE launch ({_LINK}
  nonce TEXT NOT NULL, deployment TEXT NOT NULL, host TEXT NOT NULL, "release" TEXT NOT NULL,
  started TEXT NOT NULL,
  UNIQUE (ledger, nonce), FOREIGN KEY (ledger, host) REFERENCES host (ledger, id),
  FOREIGN KEY (ledger, deployment) REFERENCES deployment (ledger, op_id),
  FOREIGN KEY (ledger, "release") REFERENCES "release" (ledger, digest), {_END}""",
    f"""CREATE TABLE gate ({_LINK}
  id TEXT NOT NULL, launch TEXT, deployment TEXT NOT NULL, name TEXT NOT NULL,
  verdict TEXT NOT NULL
    CHECK (verdict IN ('PASS', 'INFO', 'WARN', 'FAIL', 'UNKNOWN', 'SKIP')),
  message TEXT NOT NULL, evidence TEXT NOT NULL, at TEXT NOT NULL,
  UNIQUE (ledger, id), FOREIGN KEY (ledger, launch) REFERENCES launch (ledger, nonce),
  FOREIGN KEY (ledger, deployment) REFERENCES deployment (ledger, op_id), {_END}""",
    "CREATE INDEX facts_host ON facts (host)",
    'CREATE INDEX release_digest ON "release" (digest)',
    "CREATE INDEX deployment_host ON deployment (host, service)",
    "CREATE INDEX deployment_op ON deployment (op_id)",
    "CREATE INDEX transition_op ON transition (op_id)",
    "CREATE INDEX launch_host ON launch (host)",
    "CREATE INDEX launch_nonce ON launch (nonce)",
    "CREATE INDEX gate_launch ON gate (launch)",
    "CREATE INDEX gate_deployment ON gate (deployment)",
)


def _first(db: Database) -> None:
    for statement in _FIRST:
        db.conn.execute(statement)


@dataclass(frozen=True, slots=True)
class Step:
    """One migration: `since` is the first ddops that knows it."""

    name: str
    since: str
    apply: Callable[[Database], None]


STEPS: tuple[Step, ...] = (
    Step("0001_deployments", "0.1.0", _first),
    Step("0002_snapshots", "0.1.0", step_0002.second),
    Step("0003_bench", "0.1.0", bench_schema.apply),
    Step("0004_runbooks", "0.1.0", runbook_schema.apply),
    Step("0005_quick_views", "0.1.0", step_0005.apply),
)


def check(conn: sqlite3.Connection, path: Path, steps: tuple[Step, ...] = STEPS) -> list[str]:
    """Names of the migrations still to do. Refuses what is no ledger, or is newer than we are."""
    with errors(path):
        app_id = conn.execute("PRAGMA application_id").fetchone()[0]
        there = guards.tables(conn)
        if app_id != APPLICATION_ID and there:
            raise DdopsError(
                f"{path} is not a ledger",
                why=f"it is another program's SQLite database (tables {', '.join(there[:5])})",
                next="move it away, or point ddops at another project",
            )
        done = _applied(conn) if "_sqlite_migrations" in there else []
        known = {s.name for s in steps}
        newer = [name for name in done if name not in known]
        if newer:
            raise RefusedError(
                f"the ledger {path} is newer than this ddops",
                why=f"it has {', '.join(newer)}, which ddops {__version__} does not know",
                next=_needed(conn, newer),
            )
    return [s.name for s in steps if s.name not in done]


def migrate(
    conn: sqlite3.Connection, path: Path, now: datetime, steps: tuple[Step, ...] = STEPS
) -> None:
    """Bring the schema up to date, one transaction for each migration.

    Others may be doing the same: what is pending is asked again under the write lock.
    """
    since = {s.name: s.since for s in steps}
    while check(conn, path, steps):
        db, migrations = _wrap(conn), _registered(steps)
        with errors(path, "migrate"):
            conn.execute("BEGIN IMMEDIATE")
            try:
                pending = check(conn, path, steps)
                if pending:
                    migrations.apply(db, stop_before=pending[1:2])
                    guards.install(conn)
                    _note(conn, pending[0], since[pending[0]], now)
                conn.execute("COMMIT")
            except BaseException:
                if conn.in_transaction:
                    conn.execute("ROLLBACK")
                raise


def _note(conn: sqlite3.Connection, name: str, since: str, now: datetime) -> None:
    """What an older ddops will be told to install; at the first migration, the ledger's id."""
    add = "INSERT INTO meta (key, value) VALUES (?, ?)"
    conn.execute(add, (f"needs:{name}", since))
    if conn.execute("SELECT 1 FROM meta WHERE key = 'ledger'").fetchone() is None:
        conn.execute(add, ("ledger", str(uuid.uuid4())))
        conn.execute(add, ("created", stamp(now)))


def _needed(conn: sqlite3.Connection, names: list[str]) -> str:
    notes = dict(conn.execute("SELECT key, value FROM meta WHERE key LIKE 'needs:%'"))
    found = [str(notes[f"needs:{n}"]) for n in names if f"needs:{n}" in notes]
    return f"pip install 'ddops>={found[-1]}'" if found else "install a newer ddops"


def _applied(conn: sqlite3.Connection) -> list[str]:
    """What sqlite-utils has written down of the migrations it did."""
    asked = "SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY rowid"
    return [str(name) for (name,) in conn.execute(asked, (_SET,))]


def _registered(steps: tuple[Step, ...]) -> Migrations:
    from sqlite_utils.migrations import Migrations

    out = Migrations(_SET)
    for step in steps:
        out(name=step.name)(step.apply)
    return out


def _wrap(conn: sqlite3.Connection) -> Database:
    from sqlite_utils import Database

    # Plugins of sqlite-utils are other people's code; they do not get at this connection.
    return Database(conn, execute_plugins=False)
