"""What makes the ledger append-only for everybody: triggers, made from the schema itself.

They are (re)made after every migration for every table there is, so a new table cannot be
forgotten. They hold on any connection, with SQLite's default pragmas too:

    T_no_update, T_no_delete   nothing is changed or removed
    T_no_replace               an insert may not meet a row with the same key: REPLACE would
                               delete that row, silently where recursive_triggers is off
    T_in_order                 (chained tables) the row is the next one of its chain
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from ddops.ledger.chain import COLUMNS, ROOT, quoted

#: The tables that describe the ledger itself stand outside the chain.
UNCHAINED = ("_sqlite_migrations", "meta")


def tables(conn: sqlite3.Connection) -> list[str]:
    """Every table but SQLite's own, by name."""
    found = (str(r[0]) for r in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
    return sorted(name for name in found if not name.startswith("sqlite_"))


def chained(conn: sqlite3.Connection) -> list[str]:
    """The tables whose rows are links of a chain."""
    return [t for t in tables(conn) if t not in UNCHAINED and set(COLUMNS) <= set(columns(conn, t))]


def columns(conn: sqlite3.Connection, table: str) -> list[str]:
    """A table's columns, in order."""
    return [str(r["name"]) for r in conn.execute(f"PRAGMA table_info({quoted(table)})")]


def keys(conn: sqlite3.Connection, table: str) -> list[list[str]]:
    """Every set of columns that must be unique, primary key first."""
    info = conn.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    found = [[str(r["name"]) for r in sorted(info, key=lambda r: r["pk"]) if r["pk"]]]
    for index in conn.execute(f"PRAGMA index_list({quoted(table)})").fetchall():
        if index["unique"]:
            parts = conn.execute(f"PRAGMA index_info({quoted(index['name'])})").fetchall()
            found.append([str(p["name"]) for p in parts])
    return [list(k) for k in dict.fromkeys(tuple(sorted(f)) for f in found if f)]


def install(conn: sqlite3.Connection) -> None:
    """Make the view `chain` and all triggers anew. Belongs into the migration's transaction."""
    conn.execute("DROP VIEW IF EXISTS chain")
    conn.execute(_chain_view(chained(conn)))
    for name, sql in expected(conn).items():
        conn.execute(f"DROP TRIGGER IF EXISTS {quoted(name)}")
        conn.execute(sql)


def expected(conn: sqlite3.Connection) -> dict[str, str]:
    """Name and SQL of every trigger that must be there."""
    links = chained(conn)
    return {
        name: sql
        for table in tables(conn)
        for name, sql in _triggers(conn, table, links if table in links else [])
    }


def missing(conn: sqlite3.Connection) -> list[str]:
    """Triggers that are not there, or not as we made them."""
    have = dict(conn.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
    return sorted(name for name, sql in expected(conn).items() if have.get(name) != sql)


def _triggers(conn: sqlite3.Connection, table: str, links: list[str]) -> Iterator[tuple[str, str]]:
    yield _trigger(table, "no_update", "UPDATE", "", "rows are never changed")
    yield _trigger(table, "no_delete", "DELETE", "", "rows are never deleted")
    same = [
        f"EXISTS (SELECT 1 FROM {quoted(table)} WHERE "  # noqa: S608
        + " AND ".join(f"{quoted(c)} = NEW.{quoted(c)}" for c in key)
        + ")"
        for key in keys(conn, table)
    ]
    if same:
        when = " OR ".join(same)
        yield _trigger(table, "no_replace", "INSERT", when, "a row has this key already")
    if links:
        yield _trigger(table, "in_order", "INSERT", _out_of_order(links), "not the next row")


def _trigger(table: str, kind: str, event: str, when: str, why: str) -> tuple[str, str]:
    name = f"{table}_{kind}"
    clause = f" WHEN {when}" if when else ""
    message = f"the ledger is append-only: {table}: {why}".replace("'", "''")
    return name, (
        f"CREATE TRIGGER {quoted(name)} BEFORE {event} ON {quoted(table)}{clause} "
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def _out_of_order(links: list[str]) -> str:
    """True when NEW is not the successor of its chain's newest row."""
    newest = ", ".join(
        f"coalesce((SELECT max(seq) FROM {quoted(t)} WHERE ledger = NEW.ledger), 0)"  # noqa: S608
        for t in links
    )
    before = (
        "coalesce((SELECT hash FROM chain WHERE ledger = NEW.ledger AND seq = NEW.seq - 1), "  # noqa: S608
        f"'{ROOT}')"
    )
    # max() of a single argument would be the aggregate.
    return f"NEW.seq IS NOT 1 + max(0, {newest}) OR NEW.prev IS NOT {before}"


def _chain_view(links: list[str]) -> str:
    parts = (
        f"SELECT ledger, seq, '{t}' AS tbl, prev, hash FROM {quoted(t)}"  # noqa: S608
        for t in links
    )
    return "CREATE VIEW chain AS " + " UNION ALL ".join(parts)
