"""Migration 0003: what was measured, on what, and what was withdrawn.

launch > run > sample. A run is bound to its gates through the launch's nonce by foreign keys: a
gate of another server start cannot be named, whoever writes the row. Views show valid runs only;
a retraction changes every answer at once, also for runs that are added or merged later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddops.ledger.links import END, LINK

if TYPE_CHECKING:
    from sqlite_utils import Database

_STATUS = "'valid', 'invalid', 'unbound', 'void'"

#: Narrow columns first, documents last: a scan for figures does not read what overflows a page.
_RUN = f"""CREATE TABLE run ({LINK}
  id TEXT NOT NULL, cell TEXT NOT NULL, launch TEXT, "release" TEXT, tree TEXT, host TEXT,
  gate TEXT, repeat INTEGER NOT NULL CHECK (repeat > 0),
  status TEXT NOT NULL CHECK (status IN ({_STATUS})), reason TEXT NOT NULL,
  identity TEXT NOT NULL CHECK (identity IN ('proven', 'bracketed', 'none')),
  device_class TEXT NOT NULL CHECK (device_class IN ('gpu', 'cpu', 'sim', 'unknown')),
  device TEXT NOT NULL, started TEXT NOT NULL, ended TEXT NOT NULL,
  concurrency INTEGER, c_eff REAL, requests INTEGER NOT NULL, failed INTEGER NOT NULL,
  output_tokens INTEGER, window_ms REAL, output_tps REAL, request_tps REAL,
  ttft_p50_ms REAL, ttft_p99_ms REAL, tpot_p50_ms REAL, tpot_p99_ms REAL,
  commit_tokens INTEGER, commit_steps INTEGER,
  tool TEXT NOT NULL, "by" TEXT NOT NULL,
  protocol TEXT NOT NULL, "window" TEXT NOT NULL, environment TEXT NOT NULL, metrics TEXT NOT NULL,
  UNIQUE (ledger, id), UNIQUE (ledger, id, launch),
  CHECK (status <> 'valid' OR (launch IS NOT NULL AND gate IS NOT NULL AND requests > 0
    AND identity <> 'none')),
  CHECK ((status = 'valid') = (reason = '')),
  FOREIGN KEY (ledger, cell) REFERENCES cell (ledger, key),
  FOREIGN KEY (ledger, launch) REFERENCES launch (ledger, nonce),
  FOREIGN KEY (ledger, gate, launch) REFERENCES gate (ledger, id, launch),
  FOREIGN KEY (ledger, "release") REFERENCES "release" (ledger, digest),
  FOREIGN KEY (ledger, tree) REFERENCES tree (ledger, digest),
  FOREIGN KEY (ledger, host) REFERENCES host (ledger, id), {END}"""

#: Keys of a run's parts begin with the run: people ask for it by its id alone.
#: Times in nanoseconds since the run's t0, on the client's monotonic clock.
_SAMPLE = f"""CREATE TABLE sample ({LINK}
  run TEXT NOT NULL, n INTEGER NOT NULL CHECK (n >= 0), prompt TEXT NOT NULL,
  phase TEXT NOT NULL CHECK (phase IN ('warmup', 'ramp', 'window', 'drain')),
  outcome TEXT NOT NULL, reason TEXT NOT NULL,
  scheduled_ns INTEGER, sent_ns INTEGER, first_byte_ns INTEGER, first_token_ns INTEGER,
  first_answer_ns INTEGER, last_token_ns INTEGER, end_ns INTEGER, uncertainty_ns INTEGER,
  prompt_tokens INTEGER, cached_tokens INTEGER, tokens INTEGER, first_tokens INTEGER,
  chunks INTEGER, verify_ct INTEGER, correct_drafts INTEGER,
  finish TEXT NOT NULL, identity_ok INTEGER CHECK (identity_ok IN (0, 1)),
  verdict TEXT, detail TEXT,
  UNIQUE (run, ledger, n), FOREIGN KEY (ledger, run) REFERENCES run (ledger, id), {END}"""

_TABLES = (
    f"""CREATE TABLE tree ({LINK}
  digest TEXT NOT NULL CHECK (length(digest) IN (40, 64)), upstream TEXT NOT NULL,
  series TEXT NOT NULL, plugin TEXT NOT NULL, files TEXT NOT NULL, at TEXT NOT NULL,
  UNIQUE (ledger, digest), {END}""",
    f"""CREATE TABLE cell ({LINK}
  key TEXT NOT NULL CHECK (length(key) = 64), suite TEXT NOT NULL,
  family TEXT NOT NULL CHECK (length(family) = 64),
  comparable TEXT NOT NULL CHECK (length(comparable) = 64),
  service TEXT NOT NULL, label TEXT NOT NULL, concurrency INTEGER,
  vary TEXT NOT NULL, fix TEXT NOT NULL, at TEXT NOT NULL,
  UNIQUE (ledger, key), {END}""",
    "CREATE UNIQUE INDEX gate_of_launch ON gate (ledger, id, launch)",
    _RUN,
    f"""CREATE TABLE run_gate ({LINK}
  run TEXT NOT NULL, launch TEXT NOT NULL, gate TEXT NOT NULL,
  UNIQUE (run, ledger, gate),
  FOREIGN KEY (ledger, run, launch) REFERENCES run (ledger, id, launch),
  FOREIGN KEY (ledger, gate, launch) REFERENCES gate (ledger, id, launch), {END}""",
    _SAMPLE,
    f"""CREATE TABLE condition ({LINK}
  run TEXT NOT NULL, n INTEGER NOT NULL CHECK (n >= 0), at_ns INTEGER NOT NULL,
  device TEXT NOT NULL, sm_mhz INTEGER, mem_mhz INTEGER, power_w REAL, limit_w REAL, temp_c REAL,
  util_pct REAL, memory_mb INTEGER, throttle TEXT NOT NULL, noise REAL,
  UNIQUE (run, ledger, n), FOREIGN KEY (ledger, run) REFERENCES run (ledger, id), {END}""",
    f"""CREATE TABLE raw ({LINK}
  run TEXT NOT NULL, kind TEXT NOT NULL, part INTEGER NOT NULL CHECK (part >= 0),
  codec TEXT NOT NULL CHECK (codec IN ('zlib')), size INTEGER NOT NULL, data BLOB NOT NULL,
  UNIQUE (run, ledger, kind, part), FOREIGN KEY (ledger, run) REFERENCES run (ledger, id), {END}""",
    f"""CREATE TABLE retraction ({LINK}
  id TEXT NOT NULL, scope TEXT NOT NULL CHECK (scope IN ('tree', 'release', 'run', 'where')),
  value TEXT NOT NULL, reason TEXT NOT NULL CHECK (reason <> ''), "by" TEXT NOT NULL,
  at TEXT NOT NULL, UNIQUE (ledger, id), {END}""",
    # `of` is the ledger of the run: it may stand in another chain than its retraction.
    f"""CREATE TABLE withdrawn ({LINK}
  retraction TEXT NOT NULL, "of" TEXT NOT NULL, run TEXT NOT NULL,
  UNIQUE (ledger, retraction, "of", run),
  FOREIGN KEY (ledger, retraction) REFERENCES retraction (ledger, id), {END}""",
    f"""CREATE TABLE finding ({LINK}
  id TEXT NOT NULL, kind TEXT NOT NULL
    CHECK (kind IN ('recommendation', 'report', 'comparison', 'baseline', 'note')),
  subject TEXT NOT NULL, text TEXT NOT NULL, evidence TEXT NOT NULL, "by" TEXT NOT NULL,
  at TEXT NOT NULL, UNIQUE (ledger, id), {END}""",
    f"""CREATE TABLE finding_run ({LINK}
  finding TEXT NOT NULL, "of" TEXT NOT NULL, run TEXT NOT NULL,
  UNIQUE (ledger, finding, "of", run),
  FOREIGN KEY (ledger, finding) REFERENCES finding (ledger, id), {END}""",
)

_INDEXES = (
    "CREATE INDEX tree_digest ON tree (digest)",
    "CREATE INDEX cell_key ON cell (key)",
    "CREATE INDEX cell_comparable ON cell (comparable)",
    "CREATE INDEX cell_family ON cell (family)",
    "CREATE INDEX run_id ON run (id)",
    "CREATE INDEX run_cell ON run (cell)",
    "CREATE INDEX run_launch ON run (launch)",
    'CREATE INDEX run_release ON run ("release")',
    "CREATE INDEX run_tree ON run (tree)",
    "CREATE INDEX run_by_gate ON run (gate)",
    "CREATE INDEX run_gate_gate ON run_gate (gate)",
    "CREATE INDEX gate_failed ON gate (launch, name) WHERE verdict = 'FAIL'",
    "CREATE INDEX gate_not_passed ON gate (ledger, id) WHERE verdict <> 'PASS'",
    # All that `cell_summary` reads, in the order it groups by: it never touches the table.
    """CREATE INDEX run_summary ON run (status, ledger, cell, device_class, device, concurrency,
  launch, id, tree, "release", requests, failed, output_tps, request_tps, ttft_p50_ms,
  ttft_p99_ms, tpot_p50_ms, tpot_p99_ms, commit_tokens, commit_steps, c_eff, started, ended)""",
    'CREATE INDEX withdrawn_run_id ON withdrawn (run, "of")',
    'CREATE INDEX finding_run_run ON finding_run (run, "of")',
)

#: Releases that are withdrawn themselves, or whose patch series or plugin is.
_RELEASES = """CREATE VIEW withdrawn_release AS
SELECT l.ledger, l.digest, t.id AS retraction, t.ledger AS retracted_in FROM retraction t
  JOIN "release" l ON (t.scope = 'release' AND l.digest = t.value)
    OR (t.scope = 'tree' AND t.value IN (l.series, l.plugin))"""

#: A retraction by tree or release is a rule, not a list: it holds for runs that come later too.
_WITHDRAWN = """CREATE VIEW withdrawn_run AS
SELECT r.ledger, r.id AS run, t.id AS retraction, t.ledger AS retracted_in FROM retraction t
  JOIN run r ON r.tree = t.value WHERE t.scope = 'tree'
UNION SELECT r.ledger, r.id, x.retraction, x.retracted_in FROM withdrawn_release x
  JOIN run r ON r.ledger = x.ledger AND r."release" = x.digest
UNION SELECT w."of", w.run, w.retraction, w.ledger FROM withdrawn w"""

#: Runs whose gates do not carry them: one did not pass, or one of the same name failed on the same
#: server start, before or after. It begins at the gates, which are few.
_BAD_GATE = """SELECT g.ledger, g.id FROM gate g WHERE g.verdict <> 'PASS'
  UNION SELECT g.ledger, g.id FROM gate f JOIN gate g ON g.launch = f.launch AND g.name = f.name
    WHERE f.verdict = 'FAIL' AND f.launch IS NOT NULL"""
_UNGATED = f"""CREATE VIEW ungated_run AS WITH bad AS ({_BAD_GATE})
SELECT r.ledger, r.id AS run FROM bad CROSS JOIN run r
  WHERE r.ledger = bad.ledger AND r.gate = bad.id
UNION SELECT b.ledger, b.run FROM bad CROSS JOIN run_gate b
  WHERE b.ledger = bad.ledger AND b.gate = bad.id"""  # noqa: S608

#: The one rule for what counts, in the words of this migration; `step_0005` has today's.
#: `r` is a row of `run`. All SQL here is put together of constants.
COUNTS = """r.status = 'valid'
AND coalesce(r.tree, '') NOT IN (SELECT value FROM retraction WHERE scope = 'tree')
AND coalesce(r."release", '') NOT IN (SELECT digest FROM withdrawn_release)
AND NOT EXISTS (SELECT 1 FROM withdrawn w WHERE w.run = r.id AND w."of" = r.ledger)
AND (r.ledger, r.id) NOT IN (SELECT ledger, run FROM ungated_run)"""


def valid_view(counts: str) -> str:
    """The view of the runs that count, by that rule."""
    return f"CREATE VIEW valid_run AS SELECT r.* FROM run r WHERE {counts}"  # noqa: S608


def summary_view(counts: str) -> str:
    """One row a cell, device and chain. Commit length is a ratio of sums, no mean of ratios."""
    return f"""CREATE VIEW cell_summary AS
SELECT s.*, c.suite, c.service, c.label, c.family, c.comparable, c.vary FROM (
  SELECT r.ledger, r.cell, r.device_class, r.device, r.concurrency,
    count(DISTINCT r.launch) AS launches, count(*) AS runs,
    sum(r.requests) AS requests, sum(r.failed) AS failed,
    avg(r.output_tps) AS output_tps_mean, min(r.output_tps) AS output_tps_min,
    max(r.output_tps) AS output_tps_max, avg(r.request_tps) AS request_tps_mean,
    avg(r.ttft_p50_ms) AS ttft_p50_ms_mean, max(r.ttft_p99_ms) AS ttft_p99_ms_max,
    avg(r.tpot_p50_ms) AS tpot_p50_ms_mean, max(r.tpot_p99_ms) AS tpot_p99_ms_max,
    1.0 * sum(r.commit_tokens) / nullif(sum(r.commit_steps), 0) AS commit_length,
    avg(r.c_eff) AS c_eff_mean, min(r.started) AS first, max(r.ended) AS last
  FROM run r INDEXED BY run_summary WHERE {counts}
  GROUP BY r.ledger, r.cell, r.device_class, r.device, r.concurrency) s
JOIN cell c ON c.ledger = s.ledger AND c.key = s.cell"""  # noqa: S608


#: What was concluded, and whether it still stands: not once one of its runs no longer counts.
_CONCLUSION = f"""CREATE VIEW conclusion AS
SELECT f.ledger, f.id, f.kind, f.subject, f.text, f."by", f.at, count(x.run) AS runs,
  count(x.run) - coalesce(sum({COUNTS}), 0) AS lost,
  count(x.run) > 0 AND count(x.run) = coalesce(sum({COUNTS}), 0) AS stands
FROM finding f LEFT JOIN finding_run x ON x.ledger = f.ledger AND x.finding = f.id
LEFT JOIN run r ON r.ledger = x."of" AND r.id = x.run
GROUP BY f.ledger, f.id"""  # noqa: S608

VIEWS = (
    _RELEASES, _WITHDRAWN, _UNGATED, valid_view(COUNTS), summary_view(COUNTS), _CONCLUSION,
)  # fmt: skip


def apply(db: Database) -> None:
    """The tables, indexes and views. `guards` makes the triggers."""
    for statement in (*_TABLES, *_INDEXES, *VIEWS):
        db.conn.execute(statement)
