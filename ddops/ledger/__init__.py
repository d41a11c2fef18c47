"""The ledger: what was done, when, to which host, with what evidence; never changed, only added.

One SQLite file. Any tool may read it; triggers keep every tool from changing it; a hash chain
shows whether somebody did. See docs/reference/ledger.md and docs/adr/0004-ledger.md.

    with Ledger.open(path, redactor=redactor) as ledger:
        ledger.add_host("b300", pins)
        ledger.add_release(digest, service="k26", spec=spec, ...)
        ledger.add_deployment(op_id, service="k26", release=digest, host="b300", by="ann")
        ledger.add_transition(op_id, "locked", Outcome.OK, {"lock": lock_id})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from ddops.command import Redactor
from ddops.ledger import backup as _backup
from ddops.ledger import query as _query
from ddops.ledger import verify as _verify
from ddops.ledger.bench_records import (
    Cell,
    Device,
    Identity,
    NewCondition,
    NewRun,
    NewSample,
    RawData,
    Run,
    Status,
    StoredCell,
)
from ddops.ledger.chain import Scalar
from ddops.ledger.clean import Cleaner
from ddops.ledger.merge import Merged, Merging
from ddops.ledger.records import (
    COMMITTED,
    ENDED_BADLY,
    Deployment,
    Gate,
    Head,
    Launch,
    Outcome,
    Release,
    StoredFacts,
    StoredHost,
    Transition,
)
from ddops.ledger.retract import FallenFinding, Retractions, Scope, Withdrawal, WithdrawnRun
from ddops.ledger.runbooks import JournalEntry, NewTask, Runbooks, StoredRun, Task
from ddops.ledger.snapshots import Copy, Drill, Snapshots, StoredSnapshot
from ddops.ledger.store import Now, open_store, utc_now

__all__ = [
    "COMMITTED",
    "ENDED_BADLY",
    "Cell",
    "Copy",
    "Deployment",
    "Device",
    "Drill",
    "FallenFinding",
    "Gate",
    "Head",
    "Identity",
    "JournalEntry",
    "Launch",
    "Ledger",
    "Merged",
    "NewCondition",
    "NewRun",
    "NewSample",
    "NewTask",
    "Outcome",
    "RawData",
    "Release",
    "Run",
    "Scalar",
    "Scope",
    "Status",
    "StoredCell",
    "StoredFacts",
    "StoredHost",
    "StoredRun",
    "StoredSnapshot",
    "Task",
    "Transition",
    "Withdrawal",
    "WithdrawnRun",
]


class Ledger(Snapshots, Runbooks, Retractions, Merging):
    """An open ledger. Use as a context manager; may be shared by threads, not across fork."""

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        redactor: Redactor,
        clock: Now = utc_now,
        readonly: bool = False,
    ) -> Self:
        """Open, and unless `readonly` create (folder 0700, file 0600) and migrate.

        Raises RefusedError for a ledger of a newer ddops, DdopsError for what is no ledger, is
        damaged, is missing (readonly) or stays busy for 10 s. Nothing is changed then.
        """
        path = Path(path)
        conn = open_store(path, clock, readonly)
        try:
            return cls(conn, path, Cleaner(redactor), clock, readonly)
        except BaseException:
            conn.close()
            raise

    def verify(self, *heads: Head) -> list[str]:
        """What is wrong, as sentences that name the row; empty when all is well.

        Rows cut off the end of a chain leave no trace in it: pass a `head()` noted earlier.
        """
        return _verify.run(self.path, heads)

    def backup(self, to: Path) -> Head:
        """A consistent, verified copy, 0600, while others write. Answers its head: note it.

        Raises UsageError for a file that is there, DdopsError when the copy does not verify.
        """
        return _backup.run(self.path, to, self.ledger_id)

    def query(
        self,
        sql: str,
        params: Sequence[Scalar] | Mapping[str, Scalar] = (),
        *,
        max_rows: int = _query.MAX_ROWS,
        timeout_s: float = _query.TIMEOUT_S,
    ) -> list[dict[str, Scalar]]:
        """The rows of one SELECT, by column name. It cannot write, attach or load anything.

        Raises UsageError for other statements, bad SQL or more than `max_rows` rows, DdopsError
        after `timeout_s`. Rows of an open `batch` are not seen.
        """
        return _query.run(self.path, sql, params, max_rows=max_rows, timeout_s=timeout_s)
