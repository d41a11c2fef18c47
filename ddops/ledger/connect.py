"""The ledger's file and its connections: private, WAL, foreign keys, clear errors.

No code here opens the database file by itself: closing such a descriptor would drop the POSIX
locks that SQLite holds on it in the same process (sqlite.org/howtocorrupt.html, 2.2).
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddops.errors import DdopsError, UsageError

BUSY_S = 10.0
#: "ddop": how `file` and we tell a ledger from another SQLite database.
APPLICATION_ID = 0x64646F70
#: The first with STRICT tables.
#: The smallest page SQLite knows, in bytes.
SMALLEST = 512
NEEDS_SQLITE = (3, 37, 0)


def create(path: Path) -> None:
    """Make the file, 0600, and its missing folders, 0700. An existing file is left alone."""
    try:
        for folder in reversed([p for p in path.parents if not p.exists()]):
            folder.mkdir(mode=0o700, exist_ok=True)
        # mknod, not open: it has no descriptor to close (see above), and it is atomic. SQLite
        # gives -wal and -shm the mode of this file.
        os.mknod(path, 0o600 | stat.S_IFREG)
    except FileExistsError:
        return
    except OSError as e:
        raise DdopsError(
            f"cannot create the ledger {path}",
            why=e.strerror or str(e),
            next=f"make {path.parent} a folder you can write",
        ) from e


def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open an existing file. Reads it once, writes nothing; autocommit, any thread."""
    if sqlite3.sqlite_version_info < NEEDS_SQLITE:
        raise DdopsError(
            f"SQLite {sqlite3.sqlite_version} is too old for the ledger",
            why="STRICT tables need 3.37",
            next="use a Python built with a newer SQLite (uv python install 3.12)",
        )
    _not_tiny(path)
    with errors(path):
        conn = _connect(path, "mode=ro" if readonly else "mode=rw")
        try:
            try:
                _settle(conn)
            except sqlite3.OperationalError:
                if not (readonly and _frozen(path)):
                    raise
                conn.close()
                conn = _connect(path, "mode=ro&immutable=1")
                _settle(conn)
        except BaseException:
            conn.close()
            raise
    return conn


def _not_tiny(path: Path) -> None:
    """SQLite takes a file of a few bytes for an empty database, and would write over it."""
    try:
        size = path.stat().st_size
    except OSError:
        return  # connecting will say what is wrong
    if 0 < size < SMALLEST:
        raise DdopsError(
            f"{path} is not a ledger",
            why=f"it has {size} bytes, no SQLite database is so small; it was left as it is",
            next="move it away, or point ddops at another project",
        )


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    conn = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,  # the ledger has its own lock
    )
    conn.row_factory = sqlite3.Row
    return conn


def _settle(conn: sqlite3.Connection) -> None:
    for pragma in (
        f"busy_timeout = {int(BUSY_S * 1000)}",
        "foreign_keys = ON",
        "recursive_triggers = ON",  # without it REPLACE deletes without firing delete triggers
        "trusted_schema = OFF",
        "synchronous = FULL",
    ):
        conn.execute(f"PRAGMA {pragma}")
    # The first read: what is no database, or is damaged at its root, fails here.
    conn.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _frozen(path: Path) -> bool:
    """Whether nobody can be writing: SQLite cannot make its -shm here and no WAL is left.

    A ledger on a read-only disk (a backup, a bundle) can then be read as immutable.
    """
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        return False
    return path.is_file() and not os.access(path.parent, os.W_OK)


def use_wal(conn: sqlite3.Connection, path: Path) -> None:
    """Switch to WAL if it is not on. Waits up to `BUSY_S` for others doing the same."""
    deadline = time.monotonic() + BUSY_S
    with errors(path):
        while True:
            try:
                mode = conn.execute("PRAGMA journal_mode").fetchone()[0]
                if mode != "wal":
                    mode = conn.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as e:
                # SQLite does not call the busy handler for this switch in every case.
                if not is_busy(e) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
    if mode != "wal":
        raise DdopsError(
            f"cannot use a write-ahead log for the ledger {path}",
            why=f"SQLite keeps journal mode {mode}: this file system has no shared memory",
            next="keep the project on a local disk",
        )


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else held a lock for longer than we wait."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def errors(path: Path, doing: str = "use") -> Iterator[None]:
    """Turn SQLite's errors into ours: what, why, next."""
    try:
        yield
    except sqlite3.Error as e:
        raise _explain(e, path, doing) from e
    except OverflowError as e:
        raise UsageError(
            f"cannot {doing} the ledger {path}",
            why="a number is too large: it holds whole numbers of 64 bits",
            next="give a smaller number",
        ) from e


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _explain(error: sqlite3.Error, path: Path, doing: str) -> DdopsError:
    code, why = _code(error), str(error)
    if code == sqlite3.SQLITE_NOTADB:
        return DdopsError(
            f"{path} is not a ledger",
            why=f"it is no SQLite database ({why}); it was left as it is",
            next=f"move it away, or point ddops at another project: file {path}",
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return DdopsError(
            f"the ledger {path} is damaged",
            why=f"{why}; it was left as it is",
            next="copy the file with its -wal aside, then restore the last backup",
        )
    if is_busy(error):
        return DdopsError(
            f"the ledger {path} is busy",
            why=f"another process held it for more than {BUSY_S:.0f} s ({why})",
            next=f"see who holds it: fuser {path}",
        )
    if code == sqlite3.SQLITE_FULL:
        return DdopsError(
            f"no room to write the ledger {path}", why=why, next=f"df -h {path.parent}"
        )
    if code == sqlite3.SQLITE_CONSTRAINT:
        return DdopsError(f"the ledger refused to {doing}", why=why, next="ddops ledger verify")
    return DdopsError(f"cannot {doing} the ledger {path}", why=why, next=f"ls -l {path.parent}")
