"""A consistent copy of a ledger in use: one file, private, verified before it gets its name."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from ddops.errors import DdopsError
from ddops.ledger import chain, connect, export, guards, verify
from ddops.ledger.records import Head


def run(source: Path, to: Path, ledger: str) -> Head:
    """Copy while others write. Answers the copy's own head: note it, `verify` takes it.

    The copy is a plain file without a write-ahead log, so it can be read from a read-only
    disk. Nothing is overwritten. Raises DdopsError when the copy does not verify.
    """
    with export.private(to) as part:
        with (
            connect.errors(part, "write"),
            closing(connect.connect(source, readonly=True)) as ours,
            closing(connect.connect(part)) as copy,
        ):
            ours.backup(copy)  # all pages in one step: one moment, whoever writes meanwhile
            mode = copy.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
            head = chain.head(copy, guards.chained(copy), ledger)
        wrong = [] if mode == "delete" else [f"journal mode {mode}"]
        wrong += verify.run(part, [head])
        if wrong:
            raise DdopsError(
                f"the copy of {source} is not what was written: {wrong[0]}",
                why="; ".join(wrong[1:4]) or "it was not kept",
                next="ddops ledger verify",
            )
    return head
