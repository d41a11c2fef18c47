"""Taking over whole chains from another ledger: a colleague's, or a backup's newer rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ddops.errors import DdopsError, RefusedError, UsageError
from ddops.ledger import chain, connect, guards, schema, verify
from ddops.ledger.chain import Scalar, quoted
from ddops.ledger.records import Head
from ddops.ledger.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Rows taken over from one chain; 0 where the file knew as much or more."""

    ledger: str
    rows: int
    head: Head


class Merging(Store):
    """`merge` for an open ledger."""

    def merge(self, other: Path) -> list[Merged]:
        """Take over what `other` has more of each chain. One transaction; the same again is 0.

        Raises RefusedError, and changes nothing, when `other` is not whole, is newer than this
        ddops, or holds another history of a chain than this file does.
        """
        if other.resolve() == self.path.resolve():
            raise RefusedError("a ledger cannot be merged into itself", next="name another file")
        pending = _missing(other)
        if pending:
            raise RefusedError(
                f"{other} is older than this ddops",
                why=f"it needs {', '.join(pending)}, and a merge changes one file, not two",
                next="let its owner run this ddops on it once, e.g. a deploy, then merge",
            )
        wrong = verify.run(other, [])
        if wrong:
            raise RefusedError(
                f"{other} is not what was written: {wrong[0]}",
                why="; ".join(wrong[1:4]),
                next="get an undamaged copy: ddops ledger backup FILE",
            )
        with closing(connect.connect(other, readonly=True)) as theirs:
            theirs.execute("BEGIN")
            with self._writing() as ours, connect.errors(self.path, "merge into"):
                # A retraction or a gate may stand before what it names, in another chain.
                ours.execute("PRAGMA defer_foreign_keys = ON")
                return [self._take(ours, theirs, name, other) for name in _chains(theirs)]

    def _take(
        self, ours: sqlite3.Connection, theirs: sqlite3.Connection, name: str, other: Path
    ) -> Merged:
        tables = guards.chained(theirs)
        mine, new = chain.head(ours, self._chained, name), chain.head(theirs, tables, name)
        at = min(mine.seq, new.seq)
        if at and _hash(ours, name, at) != _hash(theirs, name, at):
            raise RefusedError(
                f"{other} holds another history of ledger {name}",
                why=f"row {at} is not the same in both: one file was written to after a copy "
                "of it was, or one was rewritten",
                next="keep both files apart and find out who wrote which: ddops ledger verify",
            )
        if new.seq <= mine.seq:
            return Merged(ledger=name, rows=0, head=mine)
        count = 0
        for table, row in chain.links(theirs, tables, ledger=name, after=mine.seq):
            _insert(ours, table, row)
            count += 1
        if count != new.seq - mine.seq:
            raise DdopsError(
                f"{other} changed while it was read", why=f"{count} rows", next="merge again"
            )
        return Merged(ledger=name, rows=count, head=new)


def _missing(other: Path) -> list[str]:
    """Migrations that the other file lacks. What is no ledger is not the file that was meant."""
    try:
        with closing(connect.connect(other, readonly=True)) as theirs:
            if not theirs.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise DdopsError(f"{other} is not a ledger", why="it is empty")
            return schema.check(theirs, other)
    except RefusedError:
        raise
    except DdopsError as error:
        raise UsageError(error.what, why=error.why, next="name a ledger.db of ddops") from error


def _chains(conn: sqlite3.Connection) -> list[str]:
    return [str(r[0]) for r in conn.execute("SELECT DISTINCT ledger FROM chain ORDER BY ledger")]


def _hash(conn: sqlite3.Connection, ledger: str, seq: int) -> str:
    sql = "SELECT hash FROM chain WHERE ledger = ? AND seq = ?"
    return str(conn.execute(sql, (ledger, seq)).fetchone()[0])


def _insert(conn: sqlite3.Connection, table: str, row: Mapping[str, Scalar]) -> None:
    names = ", ".join(quoted(c) for c in row)
    marks = ", ".join("?" * len(row))
    conn.execute(
        f"INSERT INTO {quoted(table)} ({names}) VALUES ({marks})",  # noqa: S608
        tuple(row.values()),
    )
