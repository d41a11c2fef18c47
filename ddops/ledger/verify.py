"""Is the file what was written? Pages, keys, guards, and the chain row by row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from ddops.errors import DdopsError
from ddops.ledger import chain, connect, guards
from ddops.ledger.chain import quoted
from ddops.ledger.records import Head

#: The chained tables that must be there.
TABLES = (
    *("cell", "condition", "deployment", "facts", "finding", "finding_run", "gate", "host"),
    *("launch", "raw", "release", "retraction", "run", "run_gate", "runbook_event"),
    *("runbook_run", "sample", "snapshot", "snapshot_copy", "snapshot_drill", "task_entry"),
    *("transition", "tree", "withdrawn"),
)
_MOST = 100


def run(path: Path, heads: Iterable[Head]) -> list[str]:
    """Problems as sentences, at most 100 of a kind; empty when all is well.

    Looks at one moment of the file through a connection of its own, while others may write.
    """
    try:
        with closing(connect.connect(path, readonly=True)) as conn:
            # Text that is no UTF-8 was not written by us: it must fail its hash, not the reader.
            conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
            conn.execute("BEGIN")
            return [
                *_some(_pages(conn)),
                *_some(_schema(conn)),
                *_some(_foreign_keys(conn)),
                *_some(chain.problems(conn, guards.chained(conn), heads)),
            ]
    except DdopsError as e:
        return [str(e)]


def _some(found: Iterator[str]) -> Iterator[str]:
    """The first problems of a kind; damage met on the way is one more."""
    count = 0
    try:
        for problem in found:
            count += 1
            if count > _MOST:
                yield "and more of this kind"
                return
            yield problem
    except sqlite3.Error as e:
        yield f"cannot read on: {e}"


def _pages(conn: sqlite3.Connection) -> Iterator[str]:
    for row in conn.execute("PRAGMA integrity_check"):
        if row[0] != "ok":
            yield f"integrity: {row[0]}"


def _schema(conn: sqlite3.Connection) -> Iterator[str]:
    there = guards.chained(conn)
    yield from (f"table {t} is missing" for t in TABLES if t not in there)
    for table in guards.tables(conn):
        if table not in there and table not in guards.UNCHAINED:
            yield f"table {table} is not one of the ledger's"
    yield from (f"trigger {t} is missing or changed" for t in guards.missing(conn))


def _foreign_keys(conn: sqlite3.Connection) -> Iterator[str]:
    """`PRAGMA foreign_key_check` names no row of a table without rowid, so ask once more."""
    broken = {(str(r["table"]), int(r["fkid"])) for r in conn.execute("PRAGMA foreign_key_check")}
    for table, fkid in sorted(broken):
        listed = conn.execute(f"PRAGMA foreign_key_list({quoted(table)})").fetchall()
        parts = [r for r in listed if r["id"] == fkid]
        parent = str(parts[0]["table"])
        same = " AND ".join(f"p.{quoted(r['to'])} = c.{quoted(r['from'])}" for r in parts)
        there = " AND ".join(f"c.{quoted(r['from'])} IS NOT NULL" for r in parts)
        sql = f"""SELECT c.ledger, c.seq FROM {quoted(table)} c WHERE {there}
AND NOT EXISTS (SELECT 1 FROM {quoted(parent)} p WHERE {same})"""  # noqa: S608
        for row in conn.execute(sql):
            yield f"{table} seq {row['seq']} of ledger {row['ledger']}: its {parent} is missing"
