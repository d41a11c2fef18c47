"""The migration `0005_quick_views`: the same answers, in a time that faults do not change.

`(a, b) NOT IN (SELECT ...)` with two columns makes SQLite walk the whole list for each run, as it
cannot know that no column is NULL; so one failed gate made every view ten times slower. One column
is looked up instead. `conclusion` judged each run twice and read it from the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddops.ledger.bench_schema import COUNTS, summary_view, valid_view

if TYPE_CHECKING:
    from sqlite_utils import Database

_SLOW = "(r.ledger, r.id) NOT IN (SELECT ledger, run FROM ungated_run)"
#: A ledger's id is a UUID, so two pairs never give one text.
_QUICK = "r.ledger || ' ' || r.id NOT IN (SELECT ledger || ' ' || run FROM ungated_run)"

#: What was concluded, and whether it still stands: not once one of its runs no longer counts.
_CONCLUSION = """CREATE VIEW conclusion AS
SELECT f.ledger, f.id, f.kind, f.subject, f.text, f."by", f.at, count(x.run) AS runs,
  count(x.run) - count(v.id) AS lost, count(x.run) > 0 AND count(x.run) = count(v.id) AS stands
FROM finding f LEFT JOIN finding_run x ON x.ledger = f.ledger AND x.finding = f.id
LEFT JOIN (SELECT ledger, id FROM valid_run) v ON v.ledger = x."of" AND v.id = x.run
GROUP BY f.ledger, f.id"""


def apply(db: Database) -> None:
    """The three views anew. They hold no rows, so no hash changes."""
    counts = COUNTS.replace(_SLOW, _QUICK)
    for view in ("conclusion", "cell_summary", "valid_run"):
        db.conn.execute(f"DROP VIEW {view}")
    # All that `valid_run` asks of one run, found by its id.
    db.conn.execute('CREATE INDEX run_counts ON run (id, ledger, status, tree, "release")')
    db.conn.execute("DROP INDEX run_id")
    for view in (valid_view(counts), summary_view(counts), _CONCLUSION):
        db.conn.execute(view)
