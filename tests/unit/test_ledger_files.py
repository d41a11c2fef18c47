"""The ledger and other files: merge, backup, export, import, as typed."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.parquet
import pytest

from ddops.command import Redactor
from ddops.errors import DdopsError, RefusedError, UsageError
from ddops.ledger import Ledger, Scope, chain
from ddops.ledger import export as out
from tests.ledgers import BAD_TREE, make_ledger
from tests.unit.cli_support import Run, runner


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two operators' ledgers that know the same releases, trees and cells."""
    folder = tmp_path_factory.mktemp("ledgers")
    for n, name in enumerate(("ann", "ben")):
        make_ledger(folder / f"{name}.db", runs=32, samples=64, seed=n)
    return folder / "ann.db", folder / "ben.db"


@pytest.fixture
def ann(tmp_path: Path, two: tuple[Path, Path]) -> Path:
    return Path(shutil.copy(two[0], tmp_path / "ann.db"))


@pytest.fixture
def ben(tmp_path: Path, two: tuple[Path, Path]) -> Path:
    return Path(shutil.copy(two[1], tmp_path / "ben.db"))


def opened(path: Path, *, readonly: bool = False) -> Ledger:
    return Ledger.open(path, redactor=Redactor(), readonly=readonly)


def count(ledger: Ledger, table: str) -> int:
    return int(str(ledger.query(f"SELECT count(*) AS n FROM {table}")[0]["n"]))  # noqa: S608


# merge


def test_merge_takes_whole_chains(ann: Path, ben: Path) -> None:
    with opened(ben, readonly=True) as theirs:
        head, valid = theirs.head(), count(theirs, "valid_run")
    with opened(ann) as ours:
        before, own = count(ours, "valid_run"), ours.head()
        [taken] = ours.merge(ben)
        assert (taken.ledger, taken.rows, taken.head) == (head.ledger, head.seq, head)
        assert count(ours, "valid_run") == before + valid
        assert ours.head() == own, "the own chain did not grow"
        assert ours.verify(own, head) == []
        assert ours.merge(ben)[0].rows == 0
        # The same cells, measured by both: runs of both chains answer.
        key = ours.cells()[0].key
        assert len({r.ledger for r in ours.runs(key, valid_only=False)}) == 2


def test_merge_takes_what_is_new_and_their_retractions(ann: Path, ben: Path) -> None:
    with opened(ann) as ours, opened(ben) as theirs:
        ours.merge(ben)
        valid = count(ours, "valid_run")
        theirs.retract(Scope.TREE, BAD_TREE, reason="mask fault", by="ben")
        rows = ours.merge(ben)[0].rows
        assert rows == 1 + count(theirs, "withdrawn")
        assert count(ours, "valid_run") < valid - 10, "a bad tree is bad in every chain"
        assert ours.query("SELECT count(*) AS n FROM valid_run WHERE tree = ?", (BAD_TREE,)) == [
            {"n": 0}
        ]
        assert ours.verify() == []


def test_a_retraction_of_a_merged_run_goes_home_with_the_next_merge(ann: Path, ben: Path) -> None:
    with opened(ann) as ours, opened(ben) as theirs:
        ours.merge(ben)
        run = str(theirs.query("SELECT id FROM valid_run LIMIT 1")[0]["id"])
        ours.retract(Scope.RUN, run, reason="another job", by="ann")
        assert theirs.run(run).valid
        theirs.merge(ann)
        assert not theirs.run(run).valid
        assert theirs.verify() == []


def test_a_newer_copy_brings_the_own_chain_forward(ann: Path, tmp_path: Path) -> None:
    old = Path(shutil.copy(ann, tmp_path / "old.db"))
    with opened(ann) as newer:
        newer.add_host("later", {})
        head = newer.head()
    with opened(old) as ours:
        assert ours.merge(ann)[0].rows == 1
        assert ours.head() == head
        ours.add_host("and on", {})
        assert ours.verify(head) == []


def test_another_history_of_a_chain_is_refused(ann: Path, tmp_path: Path) -> None:
    other = Path(shutil.copy(ann, tmp_path / "other.db"))
    for path, name in ((ann, "here"), (other, "there")):
        with opened(path) as ledger:
            ledger.add_host(name, {})
    with opened(ann) as ours:
        head = ours.head()
        with pytest.raises(RefusedError, match="another history"):
            ours.merge(other)
        assert ours.head() == head


def test_what_is_not_whole_is_not_merged(ann: Path, ben: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(ben)) as conn:
        conn.execute("DROP TRIGGER run_no_update")
        conn.execute("UPDATE run SET output_tps = 9999 WHERE seq = (SELECT max(seq) FROM run)")
        conn.commit()
    (tmp_path / "text.db").write_bytes(b"no database\n" * 99)
    with opened(ann) as ours:
        before = count(ours, "chain")
        for path in (ben, tmp_path / "text.db", tmp_path / "missing.db", ann):
            with pytest.raises(DdopsError):
                ours.merge(path)
        assert count(ours, "chain") == before and ours.verify() == []


def test_a_merge_that_is_cut_short_changes_nothing(
    ann: Path, ben: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddops.ledger import merge

    real, calls = merge._insert, iter(range(100))

    def stop(*args: object) -> None:
        if next(calls) == 50:
            raise KeyboardInterrupt
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(merge, "_insert", stop)
    with opened(ann) as ours:
        before = count(ours, "chain")
        with pytest.raises(KeyboardInterrupt):
            ours.merge(ben)
        assert count(ours, "chain") == before and ours.verify() == []


# backup


def test_backup_is_whole_private_and_plain(ann: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with opened(ann) as ledger:
        ledger.add_host("in the log", {})
        head = ledger.backup(copy)
        assert head == ledger.head()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert {p.name for p in tmp_path.iterdir() if "copy" in p.name} == {"copy.db"}
    with opened(copy, readonly=True) as again:
        assert again.host("in the log") is not None
        assert again.verify(head) == []


def test_backup_while_others_write(ann: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with opened(ann) as ledger:
            ledger._conn.execute("PRAGMA synchronous = OFF")
            n = 0
            while not stop.is_set() and n < 5000:
                ledger.add_host("b300", {"n": n})
                n += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with opened(ann, readonly=True) as ledger:
            heads = [ledger.backup(tmp_path / f"copy{n}.db") for n in range(3)]
    finally:
        stop.set()
        writer.join()
    assert heads[0].seq <= heads[1].seq <= heads[2].seq
    with opened(ann, readonly=True) as ledger:
        assert ledger.verify(*heads) == []


def test_backup_overwrites_nothing(ann: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    with opened(ann, readonly=True) as ledger:
        with pytest.raises(UsageError, match="is there already"):
            ledger.backup(there)
        with pytest.raises(DdopsError, match="cannot write"):
            ledger.backup(tmp_path / "no" / "folder.db")
    assert there.read_text() == "mine"
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]


def test_a_damaged_ledger_gets_no_backup(ann: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(ann)) as conn:
        conn.execute("DROP TRIGGER run_no_update")
        conn.commit()
    with opened(ann, readonly=True) as ledger, pytest.raises(DdopsError, match="not what was"):
        ledger.backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


# export, and the commands


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Run]:
    """Command lines in a project whose ledger is ann's."""

    def begin(ledger: Path) -> Run:
        go = runner(tmp_path, monkeypatch, capfd)
        assert go("init").code == 0
        Path(".ddops").mkdir(exist_ok=True)
        shutil.copy(ledger, ".ddops/ledger.db")
        return go

    return begin


def test_a_whole_export_carries_its_own_proof(run: Callable[..., Run], ann: Path) -> None:
    go = run(ann)
    done = go("ledger", "export")
    assert done.code == 0
    prev, seq = chain.ROOT, 0
    for line in done.out.splitlines():
        row = json.loads(line)
        table = row.pop("table")
        if table == "raw":
            import base64

            row["data"] = base64.b64decode(row["data"])
        assert (row["seq"], row["prev"]) == (seq + 1, prev)
        assert chain.row_hash(table, row) == row["hash"]
        seq, prev = row["seq"], row["hash"]
    assert f"{seq} rows; head" in done.err and prev in done.err


def test_export_of_a_view_in_every_format(run: Callable[..., Run], ann: Path) -> None:
    go = run(ann)
    lines = [json.loads(x) for x in go("ledger", "export", "valid_run").out.splitlines()]
    table = list(
        csv.DictReader(io.StringIO(go("ledger", "export", "valid_run", "--format=csv").out))
    )
    assert [r["id"] for r in table] == [r["id"] for r in lines] and len(lines) > 20
    argv = ("ledger", "export", "valid_run", "--format", "parquet", "-o", "runs.parquet")
    assert go(*argv).code == 0
    assert pyarrow.parquet.read_table("runs.parquet").to_pylist() == lines
    assert stat.S_IMODE(Path("runs.parquet").stat().st_mode) == 0o600
    again = go(*argv)
    assert again.code == 2 and "is there already" in again.err
    assert go("ledger", "export", "conclusion", "--format", "parquet", "-o", "empty").code == 0


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("nope",), 2, "no table or view"),
        (("sqlite_master",), 2, "no table or view"),
        (("run; DROP TABLE run",), 2, "no table or view"),
        (("--format", "csv"), 2, "cannot be written as csv"),
        (("run", "--format", "parquet"), 2, "give --output"),
        (("run", "-o", "no/such/folder"), 1, "cannot write"),
    ],
)
def test_exports_that_cannot_be(
    run: Callable[..., Run], ann: Path, argv: tuple[str, ...], code: int, says: str
) -> None:
    done = run(ann)("ledger", "export", *argv)
    assert (done.code, done.out) == (code, "") and says in done.err


def test_parquet_without_pyarrow_says_so(
    ann: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DdopsError, match="cannot write Parquet"):
        out.write_parquet(tmp_path / "x", ann, "run")


def test_backup_and_merge_as_typed(run: Callable[..., Run], ann: Path, ben: Path) -> None:
    go = run(ann)
    done = go("ledger", "backup", "copy.db")
    assert done.code == 0 and len(done.out.split()) == 3
    merged = go("ledger", "merge", str(ben), "--json").document["data"]
    assert [m["rows"] > 100 for m in merged] == [True]
    assert go("ledger", "merge", "ddops.toml").code == 2
    assert go("ledger", "verify").code == 0


def test_retract_as_typed(run: Callable[..., Run], ann: Path) -> None:
    go = run(ann)
    argv = ("ledger", "retract", "--tree", BAD_TREE[:12], "--reason", "mask fault")
    dry = go(*argv, "--dry-run")
    assert dry.code == 0 and f"{len(dry.out.splitlines()) - 3} runs" in dry.out
    silent = go(*argv)
    assert silent.code == 2 and "say --yes" in silent.err
    data = go(*argv, "--yes", "--json").document["data"]
    assert data["value"] == BAD_TREE and data["id"] and data["runs"]
    shown = go("ledger", "show", "retractions")
    assert "mask fault" in shown.out
    one = go("ledger", "show", data["runs"][0]["id"], "--json").document["data"]
    shown = go("ledger", "show", "runs", "--limit", "999", "--json").document["data"]
    listed = {r["run"]: r for r in shown}
    gone = [listed[r["id"]] for r in data["runs"] if r["id"] in listed]
    assert gone and all(r["output_tps"] is None and r["reason"] for r in gone)
    assert one["valid"] is False and one["withdrawn"][0]["reason"] == "mask fault"
    for wrong in ((), ("--tree", "ab12", "--run", "ab12")):
        bad = go("ledger", "retract", *wrong, "--reason", "x")
        assert bad.code == 2 and "in one way" in bad.err


def test_show_lists(run: Callable[..., Run], ann: Path) -> None:
    go = run(ann)
    for word, some in (("runs", "ddtree-b8"), ("cells", "concurrency"), ("deployments", "op-ar")):
        done = go("ledger", "show", word)
        assert done.code == 0 and some in done.out
    rows = go("ledger", "show", "runs", "--limit", "999", "--json").document["data"]
    assert {r["counts"] for r in rows} == {True, False}
    assert all((r["output_tps"] is not None) is r["counts"] for r in rows)
    assert go("ledger", "show", "conclusions").out == ""
    assert go("ledger", "show", "zz").code == 2


def test_plain_tools_open_it_as_it_is(ann: Path) -> None:
    """What sqlite3 and Datasette do first: default pragmas, every table and view, read-only."""
    with closing(sqlite3.connect(f"file:{ann}?mode=ro", uri=True)) as conn:
        names = [r[0] for r in conn.execute("SELECT name FROM sqlite_master WHERE type != 'index'")]
        for (name,) in conn.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        ).fetchall():
            conn.execute(f'SELECT * FROM "{name}" LIMIT 5').fetchall()  # noqa: S608
    assert {"valid_run", "cell_summary", "conclusion"} <= set(names)
