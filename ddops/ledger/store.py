"""The open ledger: one connection, one lock, rows added in order."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from ddops.errors import DdopsError, RefusedError
from ddops.ledger import chain, connect, guards, schema
from ddops.ledger.chain import Scalar, quoted
from ddops.ledger.clean import Cleaner, stamp
from ddops.ledger.records import Head

Now = Callable[[], datetime]


def utc_now() -> datetime:
    """The machine's clock, in UTC."""
    return datetime.now(UTC)


class Store:
    """Connection, transactions and the chain. Usable from any thread, one at a time."""

    def __init__(
        self, conn: sqlite3.Connection, path: Path, cleaner: Cleaner, clock: Now, readonly: bool
    ) -> None:
        self.path = path
        self.readonly = readonly
        self._conn = conn
        self._clean = cleaner
        self._clock = clock
        self._lock = threading.RLock()
        self._depth = 0
        with connect.errors(path):
            self._chained = tuple(guards.chained(conn))
            found = conn.execute("SELECT value FROM meta WHERE key = 'ledger'").fetchone()
        if found is None:
            raise DdopsError(
                f"the ledger {path} has lost its id",
                why="its table meta has no row 'ledger'",
                next="restore the last backup",
            )
        #: The id of this ledger's own chain.
        self.ledger_id = str(found[0])

    def close(self) -> None:
        """Close the connection; an open batch is rolled back."""
        with self._lock:
            self._conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def head(self) -> Head:
        """The newest row of this ledger's own chain. Note it elsewhere; give it to `verify`."""
        with self._lock, connect.errors(self.path, "read"):
            return chain.head(self._conn, self._chained, self.ledger_id)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Several rows or none: an exception takes back all that was added inside.

        Holds the ledger's write lock: others wait, at most 10 s. Keep it short.
        """
        with self._writing():
            yield

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction, the outermost one deciding. IMMEDIATE: the head cannot move."""
        if self.readonly:
            raise RefusedError(
                f"the ledger {self.path} is open for reading only",
                why="a reader never writes",
                next="open it without readonly",
            )
        with self._lock:
            if self._depth == 0:
                with connect.errors(self.path, "write to"):
                    self._conn.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                with connect.errors(self.path, "write to"):
                    yield self._conn
                    if self._depth == 1:
                        self._conn.execute("COMMIT")
            except BaseException:
                if self._depth == 1 and self._conn.in_transaction:
                    self._conn.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def _append(self, table: str, values: Mapping[str, Scalar]) -> None:
        """Add one row to the chain. `table` and the keys of `values` are constants of ours."""
        with self._writing() as conn:
            head = chain.head(conn, self._chained, self.ledger_id)
            row: dict[str, Scalar] = {
                "ledger": self.ledger_id,
                "seq": head.seq + 1,
                "prev": head.hash,
                **values,
            }
            row["hash"] = chain.row_hash(table, row)
            names = ", ".join(quoted(c) for c in row)
            marks = ", ".join("?" * len(row))
            sql = f"INSERT INTO {quoted(table)} ({names}) VALUES ({marks})"  # noqa: S608
            with connect.errors(self.path, f"add a row of {table}"):
                conn.execute(sql, tuple(row.values()))

    def _append_many(self, table: str, rows: Iterable[Mapping[str, Scalar]]) -> int:
        """Add many rows of one table; the head is looked up once. Answers how many.

        `rows` may be a generator, but must not write. Absent columns are NULL.
        """
        with self._writing() as conn:
            names = guards.columns(conn, table)
            marks = ", ".join("?" * len(names))
            listed = ", ".join(quoted(c) for c in names)
            sql = f"INSERT INTO {quoted(table)} ({listed}) VALUES ({marks})"  # noqa: S608
            head = chain.head(conn, self._chained, self.ledger_id)
            links = self._linked(table, rows, head, names)
            with connect.errors(self.path, f"add rows of {table}"):
                return conn.executemany(sql, links).rowcount

    def _linked(
        self, table: str, rows: Iterable[Mapping[str, Scalar]], head: Head, names: list[str]
    ) -> Iterator[tuple[Scalar, ...]]:
        """Each row as a link behind `head`, its values in the order of `names`."""
        seq, prev = head.seq, head.hash
        for values in rows:
            seq += 1
            row: dict[str, Scalar] = {"ledger": self.ledger_id, "seq": seq, "prev": prev, **values}
            prev = row["hash"] = chain.row_hash(table, row)
            yield tuple(map(row.get, names))

    def _rows(self, sql: str, params: Mapping[str, Scalar]) -> list[sqlite3.Row]:
        with self._lock, connect.errors(self.path, "read"):
            return self._conn.execute(sql, dict(params)).fetchall()

    def _at(self, at: datetime | None) -> str:
        return stamp(at if at is not None else self._clock())

    @staticmethod
    def _new_id() -> str:
        return secrets.token_hex(8)


def open_store(path: Path, clock: Now, readonly: bool) -> sqlite3.Connection:
    """Make, check and migrate the file; a reader only checks."""
    if readonly:
        if not path.exists():
            raise DdopsError(
                f"no ledger at {path}",
                why="nothing was recorded in this project yet",
                next="deploy something, or point ddops at another project",
            )
    else:
        connect.create(path)
    conn = connect.connect(path, readonly=readonly)
    try:
        pending = schema.check(conn, path)
        if not readonly:
            connect.use_wal(conn, path)
            schema.migrate(conn, path, clock())
        elif pending:
            raise RefusedError(
                f"the ledger {path} is older than this ddops",
                why=f"it needs {', '.join(pending)}, and a reader never migrates",
                next="run a command that writes, e.g. a deploy",
            )
    except BaseException:
        conn.close()
        raise
    return conn
