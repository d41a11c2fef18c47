"""Rows out of the ledger, for other tools: JSON lines, CSV, Parquet.

A whole ledger goes out as its chains, row by row, in order: what stands in such a file can be
checked against the hashes it carries. A table or a view goes out alone.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO

from ddops.errors import DdopsError, UsageError
from ddops.ledger import chain, connect, guards
from ddops.ledger.chain import Scalar, quoted

#: Rows that one Parquet row group holds.
_GROUP = 20_000


class Format(StrEnum):
    """How rows are written."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


def whole(path: Path) -> Iterator[Mapping[str, object]]:
    """Every row of every chain, in order, with the name of its table."""
    with _reading(path) as conn:
        for table, row in chain.links(conn, guards.chained(conn)):
            yield {"table": table, **_plain(row)}


def table(path: Path, name: str) -> Iterator[Mapping[str, object]]:
    """The rows of one table or view."""
    with _reading(path) as conn:
        for row in conn.execute(f"SELECT * FROM {_known(conn, name)}"):  # noqa: S608
            yield _plain(dict(row))


def columns(path: Path, name: str) -> list[str]:
    """A table's or view's columns. Raises UsageError for a name that is neither."""
    with _reading(path) as conn:
        _known(conn, name)
        return guards.columns(conn, name)


def write(
    out: IO[str], rows: Iterable[Mapping[str, object]], form: Format, names: Sequence[str]
) -> int:
    """Write rows as JSON lines or CSV; answers how many. In CSV, NULL and "" look alike."""
    count = 0
    if form is Format.CSV:
        table = csv.DictWriter(out, names, extrasaction="raise", lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow(row)
            count += 1
        return count
    for row in rows:
        # ASCII: any text survives, whatever the encoding of the stream.
        out.write(json.dumps(row, separators=(",", ":")) + "\n")
        count += 1
    return count


def write_parquet(path: Path, source: Path, name: str) -> int:
    """One table or view as Parquet, in groups of rows; needs pyarrow. Answers how many."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise DdopsError(
            "cannot write Parquet",
            why="pyarrow is not installed",
            next="pip install pyarrow, or take --format jsonl",
        ) from e
    kinds = {"INTEGER": pyarrow.int64(), "INT": pyarrow.int64(), "REAL": pyarrow.float64()}
    with _reading(source) as conn:
        listed = conn.execute(f"PRAGMA table_info({_known(conn, name)})").fetchall()
        types = _declared(conn, name, {str(r["name"]): str(r["type"]) for r in listed})
        fields = [pyarrow.field(n, kinds.get(t, pyarrow.string())) for n, t in types.items()]
        schema = pyarrow.schema(fields)
        count = 0
        with pyarrow.parquet.ParquetWriter(path, schema) as out:
            cursor = conn.execute(f"SELECT * FROM {quoted(name)}")  # noqa: S608
            while rows := [_plain(dict(r)) for r in cursor.fetchmany(_GROUP)]:
                out.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                count += len(rows)
    return count


@contextmanager
def private(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, 0600, that takes its place when all went well.

    Nothing is overwritten: a file that is there is an error.
    """
    if path.exists():
        raise UsageError(
            f"{path} is there already",
            why="nothing is overwritten",
            next="give another name, or move it away",
        )
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        os.link(beside, path)  # unlike rename, this fails when somebody else made it
    except OSError as e:
        raise DdopsError(
            f"cannot write {path}",
            why=e.strerror or str(e),
            next=f"see whether there is room and you may write: ls -ld {path.parent}",
        ) from e
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """One moment of the file, on a connection that cannot write."""
    with closing(connect.connect(path, readonly=True)) as conn, connect.errors(path, "read"):
        conn.execute("PRAGMA query_only = ON")
        conn.execute("BEGIN")
        yield conn


def _known(conn: sqlite3.Connection, name: str) -> str:
    sql = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
    names = [str(r["name"]) for r in conn.execute(sql)]
    if name not in names or name.startswith("sqlite_"):
        raise UsageError(
            f"the ledger has no table or view {name!r}",
            why=f"there are {', '.join(n for n in names if not n.startswith('_'))}",
            next="give one of these",
        )
    return quoted(name)


def _declared(conn: sqlite3.Connection, name: str, types: Mapping[str, str]) -> dict[str, str]:
    """Types of columns; an expression of a view has none, so its first values are asked."""
    out = dict(types)
    for column in (c for c, t in types.items() if not t):
        sql = f"""SELECT typeof({quoted(column)}) AS t FROM {quoted(name)}
WHERE {quoted(column)} IS NOT NULL LIMIT 1"""  # noqa: S608
        found = conn.execute(sql).fetchone()
        out[column] = str(found["t"]).upper() if found else "TEXT"
    return out


def _plain(row: Mapping[str, Scalar]) -> dict[str, object]:
    """Bytes as base64; everything else is JSON already."""
    return {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in row.items()}
