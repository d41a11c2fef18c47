"""The chain: every row names the one before it by hash, whatever table they are in.

hash = sha256 of the canonical JSON of {ledger, seq, prev, table, row}, where `row` holds the
other columns. Columns that are NULL are left out: a column added later does not change the
hashes of older rows. A BLOB stands there as "sha256:" and the digest of its bytes.
"""

from __future__ import annotations

import hashlib
import heapq
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from ddops.ledger.records import Head
from ddops.model import digest

Scalar: TypeAlias = str | int | float | bytes | None
COLUMNS = ("ledger", "seq", "prev", "hash")
_LINK = frozenset(COLUMNS)
#: What the first row of a chain follows.
ROOT = "0" * 64


def row_hash(table: str, row: Mapping[str, Scalar]) -> str:
    """The hash that `row` of `table` must carry; its own `hash` entry is not looked at."""
    # Once for each of a million samples: no call in the loop but for a BLOB.
    rest = {
        k: _blob(v) if isinstance(v, bytes) else v
        for k, v in row.items()
        if v is not None and k not in _LINK
    }
    link = {"ledger": row["ledger"], "seq": row["seq"], "prev": row["prev"]}
    return digest({**link, "table": table, "row": rest})


def _blob(value: bytes) -> str:
    return f"sha256:{hashlib.sha256(value).hexdigest()}"


def quoted(name: str) -> str:
    """An SQL identifier. Names come from the schema, never from a caller."""
    return '"' + name.replace('"', '""') + '"'


def head(conn: sqlite3.Connection, tables: Iterable[str], ledger: str) -> Head:
    """The newest row of a chain; sequence 0 and `ROOT` when there is none."""
    best = Head(ledger=ledger, seq=0, hash=ROOT)
    for table in tables:
        # One seek each: the primary key is (ledger, seq).
        sql = f"SELECT seq, hash FROM {quoted(table)} WHERE ledger = ? ORDER BY seq DESC LIMIT 1"  # noqa: S608
        found = conn.execute(sql, (ledger,)).fetchone()
        if found is not None and found["seq"] > best.seq:
            best = Head(ledger=ledger, seq=found["seq"], hash=found["hash"])
    return best


@dataclass(frozen=True, slots=True)
class _Link:
    table: str
    row: Mapping[str, Scalar]
    place: tuple[str, int]

    def __str__(self) -> str:
        ledger, seq = self.place
        return f"{self.table} seq {seq} of ledger {ledger}"


_place = attrgetter("place")


def problems(
    conn: sqlite3.Connection, tables: Iterable[str], heads: Iterable[Head]
) -> Iterator[str]:
    """What is wrong with the chains, row by row; every chain starts at 1 and has no gap.

    `heads` are heads noted earlier: rows that must still be there, with that hash.
    """
    noted = {(h.ledger, h.seq): h.hash for h in heads if h.seq}
    last: _Link | None = None
    for link in heapq.merge(*(_rows(conn, t) for t in tables), key=_place):
        if last is not None and last.place[0] != link.place[0]:
            last = None
        yield from _judge(last, link)
        wanted = noted.pop(link.place, link.row["hash"])
        if wanted != link.row["hash"]:
            yield f"{link}: its hash is not the one noted earlier"
        last = link
    for ledger, seq in noted:
        yield f"sequence {seq} of ledger {ledger} was noted earlier and is gone"


def links(
    conn: sqlite3.Connection, tables: Iterable[str], *, ledger: str | None = None, after: int = 0
) -> Iterator[tuple[str, Mapping[str, Scalar]]]:
    """Rows with their table, in order: of every chain, or of one behind row `after`."""
    found = (_rows(conn, t, ledger, after) for t in tables)
    for link in heapq.merge(*found, key=_place):
        yield link.table, link.row


def _judge(last: _Link | None, link: _Link) -> Iterator[str]:
    seq = link.place[1]
    before, prev = (last.place[1], last.row["hash"]) if last else (0, ROOT)
    if seq == before:
        yield f"{link}: the same sequence as {last}"
        return
    if seq != before + 1:
        gap = str(before + 1) if seq == before + 2 else f"{before + 1} to {seq - 1}"
        yield f"{link}: sequence {gap} before it is missing"
    elif link.row["prev"] != prev:
        yield f"{link}: does not follow {last or 'the root'}: one of the two was changed"
    if link.row["hash"] != row_hash(link.table, link.row):
        yield f"{link}: content does not match its hash"


def _rows(
    conn: sqlite3.Connection, table: str, ledger: str | None = None, after: int = 0
) -> Iterator[_Link]:
    where = "" if ledger is None else "WHERE ledger = :ledger AND seq > :after"
    sql = f"SELECT * FROM {quoted(table)} {where} ORDER BY ledger, seq"  # noqa: S608
    for row in conn.execute(sql, {"ledger": ledger, "after": after} if where else {}):
        yield _Link(table, dict(row), (row["ledger"], row["seq"]))
