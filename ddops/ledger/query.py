"""Free SQL for people, which can only read, and only so much for so long.

Three walls: a connection opened read-only, `query_only`, and an authorizer that lets nothing
through but reading this database.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from ddops.errors import DdopsError, UsageError
from ddops.ledger import connect
from ddops.ledger.chain import Scalar

MAX_ROWS = 10_000
TIMEOUT_S = 10.0
#: One value, in bytes: no expression may build a bigger one.
MAX_VALUE = 64 * 1024 * 1024
#: Virtual machine steps between two looks at the clock.
_STEPS = 10_000
#: Pragmas that take a table's or an index's name, and only read.
_BY_NAME = frozenset(
    ("table_info", "table_xinfo", "index_list", "index_info", "index_xinfo", "foreign_key_list")
)
#: Pragmas that read when they get no value, and would set something with one.
_BARE = frozenset(("table_list", "user_version", "application_id", "schema_version", "encoding"))
_READS = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE))
#: Functions that reach outside the database in some builds.
_OUTSIDE = frozenset(("load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"))


def run(
    path: Path,
    sql: str,
    params: Sequence[Scalar] | Mapping[str, Scalar] = (),
    *,
    max_rows: int = MAX_ROWS,
    timeout_s: float = TIMEOUT_S,
) -> list[dict[str, Scalar]]:
    """All rows of one reading statement. More rows or more time than allowed is an error."""
    deadline = time.monotonic() + timeout_s
    with closing(connect.connect(path, readonly=True)) as conn:
        conn.execute("PRAGMA query_only = ON")
        # Their first use asks the authorizer for an update of sqlite_master, so use them once
        # before it is there; evidence is JSON, and people want to look into it.
        conn.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        conn.set_authorizer(_authorize)
        conn.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        conn.row_factory = None
        try:
            cursor, rows = _ask(conn, sql, params, max_rows + 1)
        except sqlite3.Error as e:
            raise _explain(e, path, timeout_s) from e
        except (sqlite3.Warning, ValueError, OverflowError) as e:
            raise _refused(str(e)) from e
        if cursor.description is None:
            raise _refused("the statement answers no rows")
    if len(rows) > max_rows:
        raise UsageError(
            f"the query answers more than {max_rows} rows",
            why="an answer is never cut short silently",
            next="add LIMIT, or count and group in the query",
        )
    names = _names([d[0] for d in cursor.description])
    return [dict(zip(names, row, strict=True)) for row in rows]


def _ask(
    conn: sqlite3.Connection,
    sql: str,
    params: Sequence[Scalar] | Mapping[str, Scalar],
    most: int,
) -> tuple[sqlite3.Cursor, list[tuple[Scalar, ...]]]:
    """The statement's cursor and its first rows.

    Text that is damaged or was written by others is shown as well as it can be. It is asked for
    again then: a function of ours for each text takes longer than all the rest.
    """
    try:
        cursor = conn.execute(sql, params)
        return cursor, cursor.fetchmany(most)
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
    conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
    cursor = conn.execute(sql, params)
    return cursor, cursor.fetchmany(most)


def _authorize(
    action: int, one: str | None, two: str | None, _db: str | None, _by: str | None
) -> int:
    if action in _READS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (two or "").lower() not in _OUTSIDE:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA:
        name = (one or "").lower()
        if name in _BY_NAME or (name in _BARE and two is None):
            return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _names(found: Sequence[str]) -> list[str]:
    """Column names made unique, or a dict would lose a column: n, n_2, n_3."""
    out: list[str] = []
    for name in found:
        unique, again = name, 1
        while unique in out:
            again += 1
            unique = f"{name}_{again}"
        out.append(unique)
    return out


def _explain(error: sqlite3.Error, path: Path, timeout_s: float) -> DdopsError:
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_INTERRUPT:
        return DdopsError(
            f"the query was stopped after {timeout_s:g} s",
            why="it did not end in the time it had",
            next="ask for less, e.g. one service or a LIMIT",
        )
    if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_TOOBIG, None):
        return _refused(str(error))
    try:
        with connect.errors(path, "read"):
            raise error
    except DdopsError as e:
        return e


def _refused(why: str) -> UsageError:
    return UsageError(
        "the ledger cannot answer this query",
        why=why,
        next="give one SELECT; columns are in docs/reference/ledger.md",
    )
