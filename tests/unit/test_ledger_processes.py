"""Several processes, and processes that are killed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from ddops.command import Redactor
from ddops.errors import RefusedError
from ddops.ledger import Ledger, Outcome, guards
from ddops.ledger.schema import STEPS, Step, migrate
from ddops.ledger.store import utc_now

A = "a" * 64

WRITER = f"""
import sys, time
from pathlib import Path
from ddops.command import Redactor
from ddops.ledger import Ledger, Outcome
path, who, go = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
with Ledger.open(path, redactor=Redactor()) as ledger:
    ledger.add_host("b300", {{}})
    ledger.add_release({A!r}, service="k26", spec={{}})
    ledger.add_deployment(who, service="k26", release={A!r}, host="b300", by=who)
    for n in range(50):
        ledger.add_transition(who, "locked", Outcome.OK, {{"n": n}})
"""

KILLED_IN_BATCH = """
import sys, time
from pathlib import Path
from ddops.command import Redactor
from ddops.ledger import Ledger, Outcome
with Ledger.open(Path(sys.argv[1]), redactor=Redactor()) as ledger, ledger.batch():
    for n in range(20):
        ledger.add_transition("op1", "locked", Outcome.OK, {"log": "x y " * 20_000})
    print("ready", flush=True)
    time.sleep(60)
"""

KILLED_IN_MIGRATION = """
import os, signal, sqlite3, sys
from pathlib import Path
from ddops.ledger import connect, schema
from ddops.ledger.store import utc_now
path, after = Path(sys.argv[1]), int(sys.argv[2])
def die(db):
    for n, statement in enumerate(schema._FIRST):
        if n == after:
            os.kill(os.getpid(), signal.SIGKILL)
        db.conn.execute(statement)
def late(db):
    db.conn.execute("CREATE TABLE half (a)")
    db.conn.execute("PRAGMA user_version = 77")
    os.kill(os.getpid(), signal.SIGKILL)
first = schema.STEPS[0]
steps = (schema.Step(first.name, first.since, die),) if after >= 0 else (
    *schema.STEPS, schema.Step("0002_half", "9.9.9", late))
connect.create(path)
conn = connect.connect(path)
connect.use_wal(conn, path)
schema.migrate(conn, path, utc_now(), steps)
"""


def start(script: str, *args: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def ready(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"


def test_four_processes_on_a_fresh_file(tmp_path: Path) -> None:
    """All open it at one moment, so creating, WAL and migrating are raced for too."""
    path, go = tmp_path / ".ddops" / "ledger.db", tmp_path / "go"
    children = [start(WRITER, path, f"op{n}", go) for n in range(4)]
    for child in children:
        ready(child)
    go.touch()
    for child in children:
        child.communicate(timeout=60)
        assert child.returncode == 0
    with Ledger.open(path, redactor=Redactor()) as ledger:
        assert ledger.verify() == []
        seqs = [r["seq"] for r in ledger.query("SELECT seq FROM chain ORDER BY seq")]
        # One host, one release, four deployments, 200 transitions; nothing twice, no gap.
        assert seqs == list(range(1, 1 + 1 + 4 + 200 + 1))
        for n in range(4):
            found = ledger.transitions(f"op{n}")
            assert [t.evidence["n"] for t in found] == list(range(50))
        assert len(ledger.query("SELECT * FROM meta WHERE key = 'ledger'")) == 1


def test_a_killed_writer_leaves_nothing_half_done(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, redactor=Redactor()) as ledger:
        ledger.add_host("b300", {})
        ledger.add_release(A, service="k26", spec={})
        ledger.add_deployment("op1", service="k26", release=A, host="b300", by="ann")
        head = ledger.head()
        child = start(KILLED_IN_BATCH, path)
        ready(child)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=30)
        assert ledger.head() == head
        assert ledger.add_transition("op1", "locked", Outcome.OK) == 1
    with Ledger.open(path, redactor=Redactor()) as ledger:
        assert ledger.verify(head) == []
        assert len(ledger.transitions("op1")) == 1


@pytest.mark.parametrize("after", [0, 1, 5, 10])
def test_killed_in_the_first_migration(tmp_path: Path, after: int) -> None:
    path = tmp_path / "ledger.db"
    child = start(KILLED_IN_MIGRATION, path, after)
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        assert conn.execute("SELECT * FROM sqlite_master").fetchall() == []
    with Ledger.open(path, redactor=Redactor()) as ledger:
        ledger.add_host("b300", {})
        assert ledger.verify() == []


def test_killed_in_a_later_migration_leaves_the_old_schema(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, redactor=Redactor()) as ledger:
        ledger.add_host("b300", {})
        before = ledger.query("SELECT name, sql FROM sqlite_master ORDER BY name")
    child = start(KILLED_IN_MIGRATION, path, -1)
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL
    with Ledger.open(path, redactor=Redactor()) as ledger:
        assert ledger.query("SELECT name, sql FROM sqlite_master ORDER BY name") == before
        assert ledger.query("PRAGMA user_version") == [{"user_version": 0}]
        assert ledger.verify() == []


def _add_table(db: Database) -> None:
    db.conn.execute(
        "CREATE TABLE later (ledger TEXT, seq INTEGER, prev TEXT, hash TEXT, "
        "PRIMARY KEY (ledger, seq)) STRICT, WITHOUT ROWID"
    )


def test_a_newer_ledger_is_refused_and_says_what_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(path, redactor=Redactor()).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        newer = (
            *STEPS,
            Step("0002_a", "0.7.0", _add_table),
            Step("0003_b", "0.8.2", lambda _: None),
        )
        migrate(conn, path, utc_now(), newer)
    before = path.read_bytes()
    for readonly in (False, True):
        with pytest.raises(RefusedError, match="newer than this ddops") as e:
            Ledger.open(path, redactor=Redactor(), readonly=readonly)
        assert "ddops>=0.8.2" in e.value.next
        assert "0002_a, 0003_b" in e.value.why
    assert path.read_bytes() == before


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    def bad(db: Database) -> None:
        _add_table(db)
        raise ZeroDivisionError

    path = tmp_path / "ledger.db"
    Ledger.open(path, redactor=Redactor()).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        good = Step("9998_good", "0.2.0", _add_table)
        steps = (*STEPS, good, Step("9999_bad", "0.3.0", lambda db: bad(db)))
        with pytest.raises(Exception, match=r"later|division"):
            migrate(conn, path, utc_now(), steps)
        # One transaction each: the good one stays.
        assert "later" in guards.tables(conn)
        assert (
            conn.execute("SELECT count(*) FROM _sqlite_migrations").fetchone()[0] == len(STEPS) + 1
        )
        assert guards.missing(conn) == []
