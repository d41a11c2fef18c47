"""A ledger from before the bench, and benches that are killed or work side by side."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from ddops.command import Redactor
from ddops.errors import RefusedError
from ddops.ledger import Ledger, Scope, bench_schema, connect, schema
from ddops.ledger.clean import Cleaner
from ddops.ledger.schema import STEPS
from ddops.ledger.store import utc_now
from ddops.model import GateResult, Verdict
from tests.ledgers import BAD_TREE, make_ledger

ROOT = Path(__file__).parents[2]

BENCH = """
import sys, time
from pathlib import Path
from tests.ledgers import make_ledger
print("ready", flush=True)
make_ledger(Path(sys.argv[1]), runs=200, samples=10_000, seed=int(sys.argv[2]), sync=True)
"""


def test_a_ledger_from_before_is_brought_forward(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    connect.create(path)
    with closing(connect.connect(path)) as conn:
        connect.use_wal(conn, path)
        schema.migrate(conn, path, utc_now(), STEPS[:1])
        rows = conn.execute("SELECT count(*) AS n FROM sqlite_master").fetchone()["n"]
    # What an older ddops wrote, gates before any start among it.
    with closing(connect.connect(path)) as conn:
        old = Ledger(conn, path, Cleaner(Redactor()), utc_now, False)
        old.add_host("b300", {})
        old.add_release("a" * 64, service="k26", spec={})
        old.add_deployment("op", service="k26", release="a" * 64, host="b300", by="ann")
        old.add_launch("n1", deployment="op", host="b300", release="a" * 64)
        for launch in (None, None, "n1", "n1"):
            old.add_gate(GateResult("G1", Verdict.PASS, ""), deployment="op", launch=launch)
        head = old.head()
    with (
        Ledger.open(tmp_path / "new.db", redactor=Redactor()) as newer,
        pytest.raises(RefusedError, match="is older than this ddops"),
    ):
        newer.merge(path)
    with Ledger.open(path, redactor=Redactor()) as ledger:
        assert ledger.verify(head) == []
        assert [g.name for g in ledger.gates("n1")] == ["G1", "G1"]
        assert ledger.query("SELECT count(*) AS n FROM valid_run") == [{"n": 0}]
        now = ledger.query("SELECT count(*) AS n FROM sqlite_master")[0]["n"]
        assert int(str(now)) > rows + 20


def answers(conn: sqlite3.Connection) -> list[list[tuple[object, ...]]]:
    sql = "SELECT * FROM {} ORDER BY 1, 2, 3"
    return [
        [tuple(r) for r in conn.execute(sql.format(view))]
        for view in ("valid_run", "cell_summary", "conclusion")
    ]


def test_the_quick_views_answer_what_the_first_ones_did(tmp_path: Path) -> None:
    """With a gate that failed, a tree, a run and a condition withdrawn, and conclusions of all."""
    path = tmp_path / "ledger.db"
    runs = make_ledger(path, runs=120, samples=240)
    with Ledger.open(path, redactor=Redactor()) as ledger:
        for n in range(9):
            ledger.add_finding("report", "k26", f"{n}", runs[n::40], by="ann")
        for run in runs[60:80]:
            ledger.add_finding("note", "k26", run, [run], by="ann")
        launch = ledger.run(runs[41]).launch
        (start,) = ledger.query("SELECT deployment FROM launch WHERE nonce = ?", [launch])
        failed = GateResult("exactness", Verdict.FAIL, "made up")
        ledger.add_gate(failed, deployment=str(start["deployment"]), launch=launch)
        ledger.retract(Scope.TREE, BAD_TREE, reason="x", by="ann")
        ledger.retract(Scope.RUN, runs[50], reason="x", by="ann")
        ledger.retract(Scope.WHERE, "concurrency = 4", reason="x", by="ann")
    with closing(sqlite3.connect(path)) as conn:
        quick = answers(conn)
        for view in ("conclusion", "cell_summary", "valid_run"):
            conn.execute(f"DROP VIEW {view}")
        for made in bench_schema.VIEWS[3:]:
            conn.execute(made)
        first = answers(conn)
    assert quick == first
    assert 10 < len(quick[0]) < len(runs)
    stands = {row[-1] for row in quick[2]}
    assert stands == {0, 1}


def bench(path: Path, seed: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", BENCH, str(path), str(seed)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def stored(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        try:
            return int(conn.execute("SELECT count(*) FROM run").fetchone()[0])
        except sqlite3.OperationalError:
            return 0  # not migrated yet


def test_a_bench_that_is_killed_leaves_whole_runs(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with bench(path, 1) as writer:
        assert writer.stdout and writer.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 60
        while not (path.exists() and stored(path) >= 5) and time.monotonic() < deadline:
            time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
    with Ledger.open(path, redactor=Redactor()) as ledger:
        assert ledger.verify() == []
        sql = """SELECT r.id, r.requests, (SELECT count(*) FROM sample s WHERE s.run = r.id) AS n,
(SELECT count(*) FROM condition c WHERE c.run = r.id) AS looks FROM run r"""
        runs = ledger.query(sql)
        assert 5 <= len(runs) < 200
        assert all(r["n"] == r["requests"] and r["looks"] == 3 for r in runs)
        assert ledger.retract(Scope.TREE, BAD_TREE, reason="x", by="ann").runs


def test_readers_see_whole_runs_while_one_writes(tmp_path: Path) -> None:
    """The board looks while a bench writes: it never sees half a run and never waits for it."""
    path = tmp_path / "ledger.db"
    with bench(path, 2) as writer:
        assert writer.stdout and writer.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 60
        while not (path.exists() and stored(path) >= 1) and time.monotonic() < deadline:
            time.sleep(0.01)
        with Ledger.open(path, redactor=Redactor(), readonly=True) as reader:
            for _ in range(10):
                half = reader.query(
                    "SELECT count(*) AS n FROM run r WHERE r.requests <> "
                    "(SELECT count(*) FROM sample s WHERE s.run = r.id)"
                )
                assert half == [{"n": 0}]
        writer.send_signal(signal.SIGKILL)
