"""The migration `0002_snapshots`: snapshots, their copies, their drills."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


_LINK = """
  ledger TEXT NOT NULL, seq INTEGER NOT NULL CHECK (seq > 0),
  prev TEXT NOT NULL CHECK (length(prev) = 64), hash TEXT NOT NULL CHECK (length(hash) = 64),"""
_END = "PRIMARY KEY (ledger, seq)) STRICT, WITHOUT ROWID"
_TABLES = (
    f"""CREATE TABLE snapshot ({_LINK}
  id TEXT NOT NULL CHECK (length(id) = 64), host TEXT NOT NULL, at TEXT NOT NULL,
  tree TEXT NOT NULL, "release" TEXT CHECK (length("release") = 64), manifest TEXT NOT NULL,
  UNIQUE (ledger, id), FOREIGN KEY (ledger, host) REFERENCES host (ledger, id), {_END}""",
    f"""CREATE TABLE snapshot_copy ({_LINK}
  id TEXT NOT NULL, snapshot TEXT NOT NULL, place TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('verified', 'failed', 'removed')),
  evidence TEXT NOT NULL, at TEXT NOT NULL,
  UNIQUE (ledger, id), FOREIGN KEY (ledger, snapshot) REFERENCES snapshot (ledger, id), {_END}""",
    f"""CREATE TABLE snapshot_drill ({_LINK}
  id TEXT NOT NULL, snapshot TEXT NOT NULL, place TEXT NOT NULL,
  verdict TEXT NOT NULL CHECK (verdict IN ('PASS', 'FAIL')),
  evidence TEXT NOT NULL, at TEXT NOT NULL,
  UNIQUE (ledger, id), FOREIGN KEY (ledger, snapshot) REFERENCES snapshot (ledger, id), {_END}""",
    "CREATE INDEX snapshot_host ON snapshot (host)",
    "CREATE INDEX snapshot_copy_of ON snapshot_copy (snapshot)",
    "CREATE INDEX snapshot_drill_of ON snapshot_drill (snapshot)",
)


def second(db: Database) -> None:
    """Make the tables."""
    for statement in _TABLES:
        db.conn.execute(statement)
