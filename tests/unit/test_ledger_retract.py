"""Withdrawing numbers: what falls, what is listed, and that nothing is deleted."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ddops.command import Redactor
from ddops.errors import RefusedError, UsageError
from ddops.ledger import Cell, Device, Identity, Ledger, NewRun, Scope, Status
from ddops.model import GateResult, Verdict, digest
from tests.ledgers import BAD_TREE, GOOD_TREE, make_ledger

START = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    make_ledger(path, runs=72, samples=144)
    return path.read_bytes()


@pytest.fixture
def ledger(tmp_path: Path, template: bytes) -> Iterator[Ledger]:
    path = tmp_path / "ledger.db"
    path.write_bytes(template)
    with Ledger.open(path, redactor=Redactor()) as opened:
        yield opened


def ids(ledger: Ledger, sql: str) -> list[str]:
    return [str(r["id"]) for r in ledger.query(sql)]


def counted(ledger: Ledger) -> set[str]:
    return set(ids(ledger, "SELECT id FROM valid_run"))


def test_a_bad_tree_takes_all_its_numbers_and_conclusions(ledger: Ledger) -> None:
    bad = set(ids(ledger, f"SELECT id FROM run WHERE tree = '{BAD_TREE}'"))  # noqa: S608
    valid = counted(ledger)
    good = sorted(valid - bad)
    lost = sorted(valid & bad)
    ledger.add_finding("recommendation", "k26", "trees at 1", [good[0], lost[0]], by="ann")
    ledger.add_finding("report", "k26", "as ever", good[:3], by="ann")
    rows = ledger.head().seq
    found = ledger.retract(Scope.TREE, BAD_TREE[:8], reason="mask fault", by="ann")
    assert {r.id for r in found.runs} == bad and {r.id for r in found.runs if r.counted} == set(
        lost
    )
    assert [(f.text, f.stood) for f in found.findings] == [("trees at 1", True)]
    assert counted(ledger) == set(good)
    stands = {c["text"]: (c["lost"], c["stands"]) for c in ledger.conclusions()}
    assert stands == {"trees at 1": (1, 0), "as ever": (0, 1)}
    assert ledger.head().seq == rows + 1 + len(bad), "rows were added, none removed"
    assert {str(w["reason"]) for w in ledger.withdrawals(ledger.run(lost[0]))} == {"mask fault"}
    assert ledger.verify() == []


def test_a_tree_stays_withdrawn_for_runs_that_come_later(ledger: Ledger) -> None:
    run = ledger.run(ids(ledger, f"SELECT id FROM run WHERE tree = '{GOOD_TREE}'")[0])  # noqa: S608
    ledger.retract(Scope.TREE, GOOD_TREE, reason="later fault", by="ann")
    assert run.launch is not None
    gate = ledger.gates(run.launch)[0].id
    again = NewRun(
        cell=run.cell,
        launch=run.launch,
        gates=(gate,),
        tree=GOOD_TREE,
        status=Status.VALID,
        identity=Identity.PROVEN,
        device_class=Device.SIM,
        started=START,
        ended=START,
        requests=1,
    )
    assert not ledger.run(ledger.add_run(again)).valid
    assert ledger.run(ledger.add_run(dataclasses.replace(again, tree=BAD_TREE))).valid


def test_a_tree_can_be_withdrawn_before_anybody_measured_it(ledger: Ledger) -> None:
    unknown = digest("not yet here")
    found = ledger.retract(Scope.TREE, unknown, reason="known fault", by="ann")
    assert (found.value, found.runs) == (unknown, [])
    with pytest.raises(UsageError, match="is not one tree"):
        ledger.retract(Scope.TREE, unknown[:12], reason="typing fault", by="ann")


def test_a_release_takes_its_numbers(ledger: Ledger) -> None:
    release = digest({"simulated": "ddtree-b8"})
    found = ledger.retract(Scope.RELEASE, release[:12], reason="wrong flag", by="ann")
    assert len(found.runs) == 18
    assert all(r.label.startswith("ddtree-b8") for r in found.runs)
    left = ledger.query(f"SELECT count(*) AS n FROM valid_run WHERE \"release\" = '{release}'")  # noqa: S608
    assert left == [{"n": 0}]


@pytest.mark.parametrize("part", ["series", "plugin"])
def test_a_patch_series_or_a_plugin_takes_the_numbers_of_its_releases(
    tmp_path: Path, part: str
) -> None:
    """Where a run does not know its tree, its release knows what the tree was made of."""
    digests = {"series": digest("patches"), "plugin": digest("plugin")}
    with Ledger.open(tmp_path / "own.db", redactor=Redactor()) as ledger:
        ledger.add_host("b300", {})
        cell = Cell(suite="sweep", vary={}, fix={})
        ledger.add_cell(cell)
        runs = []
        for name, made in (("patched", digests), ("plain", {"series": "", "plugin": ""})):
            release = digest(name)
            ledger.add_release(
                release, service="k26", spec={}, series=made["series"], plugin=made["plugin"]
            )
            ledger.add_deployment(name, service="k26", release=release, host="b300", by="ann")
            ledger.add_launch(name, deployment=name, host="b300", release=release)
            gate = ledger.add_gate(
                GateResult("exactness", Verdict.PASS, ""), deployment=name, launch=name
            )
            run = NewRun(
                cell=cell.key,
                launch=name,
                gates=(gate,),
                status=Status.VALID,
                identity=Identity.PROVEN,
                device_class=Device.GPU,
                started=START,
                ended=START,
                requests=1,
            )
            runs.append(ledger.add_run(run))
        found = ledger.retract(Scope.TREE, digests[part][:12], reason="mask fault", by="ann")
        assert [r.id for r in found.runs] == [runs[0]]
        assert counted(ledger) == {runs[1]}
        assert ledger.withdrawals(ledger.run(runs[0]))[0]["reason"] == "mask fault"
        assert ledger.verify() == []


def test_one_run_and_a_condition(ledger: Ledger) -> None:
    one = sorted(counted(ledger))[0]
    assert [r.id for r in ledger.retract(Scope.RUN, one, reason="x", by="ann").runs] == [one]
    before = counted(ledger)
    condition = "concurrency >= 64 AND cell IN (SELECT key FROM cell WHERE suite = 'concurrency')"
    found = ledger.retract(Scope.WHERE, condition, reason="slots ran out", by="ann")
    meant = set(ids(ledger, "SELECT id FROM run WHERE concurrency >= 64"))
    assert {r.id for r in found.runs} == meant and len(meant) == 16
    assert counted(ledger) == before - meant


@pytest.mark.parametrize(
    "condition",
    [
        "1; DROP TABLE run",
        "1) UNION SELECT 'x', 'y' FROM host WHERE (1",
        "id IN (DELETE FROM run RETURNING id)",
        "no_such_column = 1",
        "",
        "load_extension('x') IS NULL",
        "1 -- ",
    ],
)
def test_a_condition_can_only_read(ledger: Ledger, condition: str) -> None:
    """Whatever is asked: rows are only ever added, and only for runs that are there."""
    rows = ledger.query("SELECT count(*) AS n FROM run")
    everything = set(ids(ledger, "SELECT id FROM run"))
    try:
        found = ledger.retract(Scope.WHERE, condition, reason="x", by="ann")
    except UsageError:
        assert ledger.query("SELECT count(*) AS n FROM retraction") == [{"n": 0}]
    else:
        assert {r.id for r in found.runs} <= everything
    assert ledger.query("SELECT count(*) AS n FROM run") == rows
    assert ledger.verify() == []


@pytest.mark.parametrize(
    ("scope", "value"),
    [
        (Scope.RUN, "0000000000000000"),
        (Scope.RUN, "x"),
        (Scope.RUN, "f" * 64),
        (Scope.WHERE, "output_tps < 0"),
        (Scope.RELEASE, "abc"),
        (Scope.TREE, "../../etc"),
    ],
)
def test_what_means_nothing_is_refused(ledger: Ledger, scope: Scope, value: str) -> None:
    head = ledger.head()
    with pytest.raises(UsageError):
        ledger.retract(scope, value, reason="x", by="ann")
    assert ledger.head() == head


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_a_reason_is_needed(ledger: Ledger, reason: str) -> None:
    with pytest.raises(UsageError, match="needs a reason"):
        ledger.retract(Scope.TREE, BAD_TREE, reason=reason, by="ann")


def test_looking_writes_nothing_and_says_the_same(ledger: Ledger) -> None:
    head = ledger.head()
    with Ledger.open(ledger.path, redactor=Redactor(), readonly=True) as reader:
        seen = reader.retract(Scope.TREE, BAD_TREE, reason="x", by="ann", dry_run=True)
        with pytest.raises(RefusedError):
            reader.retract(Scope.TREE, BAD_TREE, reason="x", by="ann")
    assert (seen.id, ledger.head()) == ("", head)
    done = ledger.retract(Scope.TREE, BAD_TREE, reason="x", by="ann")
    assert dataclasses.replace(done, id="") == seen


def test_twice_withdrawn_lists_it_as_no_longer_counted(ledger: Ledger) -> None:
    one = sorted(counted(ledger))[0]
    ledger.retract(Scope.RUN, one, reason="first", by="ann")
    [again] = ledger.retract(Scope.RUN, one, reason="second", by="ben").runs
    assert not again.counted
    assert [w["reason"] for w in ledger.withdrawals(ledger.run(one))] == ["first", "second"]


def test_it_is_atomic(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the retraction and its list, it did not happen."""
    head, before = ledger.head(), counted(ledger)

    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger, "_append_many", stop)
    with pytest.raises(KeyboardInterrupt):
        ledger.retract(Scope.TREE, BAD_TREE, reason="x", by="ann")
    monkeypatch.undo()
    assert ledger.head() == head and counted(ledger) == before


def test_no_tool_can_take_a_retraction_back(ledger: Ledger) -> None:
    ledger.retract(Scope.TREE, BAD_TREE, reason="x", by="ann")
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as conn:
        for change in (
            "DELETE FROM retraction",
            "UPDATE retraction SET value = 'x'",
            "DELETE FROM withdrawn",
            "INSERT OR REPLACE INTO retraction SELECT * FROM retraction",
        ):
            with pytest.raises(sqlite3.DatabaseError, match="append-only"):
                conn.execute(change)


def test_the_case_it_is_for(ledger: Ledger) -> None:
    """A corrupt mask for weeks: one command, and "trees hurt" no longer stands."""
    slow = Cell(suite="sweep", vary={"algorithm": "DDTREE"}, fix={"concurrency": 1})
    ledger.add_cell(slow)
    run = ledger.run(ids(ledger, f"SELECT id FROM run WHERE tree = '{BAD_TREE}'")[0])  # noqa: S608
    assert run.launch is not None
    gate = GateResult("canary", Verdict.PASS, "plausible text")
    deployment = ledger.launch(run.launch)
    assert deployment is not None
    passed = ledger.add_gate(gate, deployment=deployment.deployment, launch=run.launch)
    numbers = [
        ledger.add_run(
            NewRun(
                cell=slow.key,
                launch=run.launch,
                gates=(passed,),
                tree=BAD_TREE,
                status=Status.VALID,
                identity=Identity.PROVEN,
                device_class=Device.GPU,
                started=START,
                ended=START,
                repeat=n + 1,
                requests=10,
                output_tps=50.0,
                commit_tokens=15,
                commit_steps=10,
            )
        )
        for n in range(3)
    ]
    ledger.add_finding("recommendation", "k26", "trees hurt", numbers, by="ann")
    assert ledger.query("SELECT stands FROM conclusion") == [{"stands": 1}]
    ledger.retract(Scope.TREE, BAD_TREE, reason="sibling attends to cousin", by="ann")
    assert ledger.query("SELECT stands FROM conclusion") == [{"stands": 0}]
    key = slow.key
    assert ledger.query("SELECT * FROM cell_summary WHERE cell = ?", (key,)) == []
