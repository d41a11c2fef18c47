"""What the board reads of a ledger, and what it makes of one that cannot be read.

To see it fail: take a run's stored status for its worth in `_RUNS`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ddops.board.books import Reader
from ddops.board.fleet import Kind
from ddops.board.glyphs import UNICODE
from ddops.board.lists import runs, tasks
from ddops.board.model import Books
from ddops.board.pages_of_ledger import parse_books
from ddops.command import Redactor
from ddops.compat import Finding
from ddops.ledger import Ledger, Scope
from ddops.model import Verdict, digest
from tests.ledgers import BAD_TREE, GOOD_TREE, make_ledger
from tests.unit.board.looks import NOW, fleet

AT = datetime(2026, 2, 1, tzinfo=UTC)


def judged(_host: str, facts: Mapping[str, object]) -> Sequence[Finding]:
    return [
        Finding("A-1", "Fine", Verdict.PASS, "x"), Finding("B-1", "Info", Verdict.INFO, "x"),
        Finding("C-1", "Driver", Verdict.FAIL, str(facts["driver"]), severity="B"),
    ]  # fmt: skip


def read(path: Path, *nonces: str, judge: Any = judged) -> Books:
    raw = Reader(path, Redactor(), judge).read(["simhost", "other"], nonces)
    return parse_books(json.loads(json.dumps(raw)), NOW)  # as a recording would give it back


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    make_ledger(path, runs=24, samples=24, launches=2)
    return path


def test_runs_gates_and_deployments(ledger: Path) -> None:
    with Ledger.open(ledger, redactor=Redactor(), readonly=True) as book:
        valid = {r.id for r in book.runs()}
        nonce = book.launches()[0].nonce
    found = read(ledger, nonce)
    assert found.error == ""
    assert {r.id for r in found.runs if r.counts} == valid
    assert len(found.runs) == 24
    assert {r.host for r in found.runs} == {"simhost"}, "of its server start where it names none"
    assert [g.name for g in found.gates[nonce]] == ["exactness"]
    assert all(h == "simhost" and "no transition" in w for _, h, w in found.deployments)
    assert found.tasks == ()


def test_a_retraction_takes_the_numbers_away(ledger: Path) -> None:
    before = {r.id: r for r in read(ledger).runs if r.counts}
    with Ledger.open(ledger, redactor=Redactor()) as book:
        book.retract(Scope.TREE, BAD_TREE, reason="mask fault", by="ann")
        left = {r.id for r in book.runs()}
    after = read(ledger)
    assert {r.id for r in after.runs if r.counts} == left
    gone = set(before) - left
    assert gone
    one = next(r for r in after.runs if r.id in gone)
    made = fleet((0, Kind.BOOKS, {}))
    made.books = after
    shown = [c.text for c in dict(runs(made, NOW, 120, UNICODE).rows)[one.id]]
    assert "withdrawn" in shown
    assert f"{one.output_tps:.1f}" not in shown


def test_snapshots_drills_and_checks_have_their_own_ages(ledger: Path) -> None:
    taken = digest("a snapshot")
    with Ledger.open(ledger, redactor=Redactor()) as book:
        book.add_snapshot(
            taken, host="simhost", tree=GOOD_TREE[:40], release=None, manifest={}, at=AT
        )
        book.add_copy(taken, place="git", state="verified", at=AT)
        book.add_copy(taken, place="restic", state="failed", at=AT)
        book.add_drill(taken, place="git", verdict="FAIL", at=AT + timedelta(days=1))
        book.add_facts("simhost", {"driver": "575"}, digest=digest("f"), simulated=True, at=AT)
    kept = read(ledger).hosts["simhost"]
    assert kept.snapshot_at == AT.timestamp()
    assert kept.snapshot_copies == "1 of 2 copies verified"
    assert (kept.drill_at, kept.drill_verdict) == ((AT + timedelta(days=1)).timestamp(), "FAIL")
    assert (kept.facts_at, kept.simulated) == (AT.timestamp(), True)
    assert kept.counts == {"PASS": 1, "INFO": 1, "FAIL": 1}
    assert [(f.check, f.seen, f.refuses) for f in kept.findings] == [
        ("C-1", "575", True), ("B-1", "x", False),
    ]  # fmt: skip
    assert read(ledger).hosts["other"].facts_at is None


def test_facts_are_judged_once(ledger: Path) -> None:
    asked: list[str] = []

    def judge(host: str, facts: Mapping[str, object]) -> Sequence[Finding]:
        asked.append(host)
        return judged(host, facts)

    with Ledger.open(ledger, redactor=Redactor()) as book:
        book.add_facts("simhost", {"driver": "575"}, digest=digest("f"), simulated=False)
    reader = Reader(ledger, Redactor(), judge)
    first, again = reader.read(["simhost"], []), reader.read(["simhost"], [])
    assert asked == ["simhost"]
    assert first is again, "nobody has written"
    with Ledger.open(ledger, redactor=Redactor()) as book:
        book.add_facts("simhost", {"driver": "580"}, digest=digest("g"), simulated=False)
    third = reader.read(["simhost"], [])
    assert third["hosts"]["simhost"]["findings"][0]["seen"] == "580"
    assert asked == ["simhost", "simhost"]
    assert reader.read(["simhost", "other"], []) is not third


def test_tasks_are_those_of_the_runbooks(ledger: Path) -> None:
    with Ledger.open(ledger, redactor=Redactor()) as book:
        number = book.add_task("look at it", priority="high", owner="ann")
        book.set_task(number, "blocked", evidence="op-1", owner="ann")
    found = read(ledger)
    assert found.tasks is not None
    (task,) = found.tasks
    assert (task.id, task.run, task.owner, task.evidence) == (number, "", "ann", "op-1")
    assert datetime.fromisoformat(task.at)
    made = fleet((0, Kind.BOOKS, {}))
    made.books = found
    ((_, cells),) = tasks(made, NOW, 100, UNICODE).rows
    assert [c.text for c in cells][:4] == ["blocked", "high", "ann", "-"]


@pytest.mark.parametrize("data", [None, b"", b"short", b"no database at all " * 100])
def test_a_ledger_that_cannot_be_read_is_a_reason_to_show(
    tmp_path: Path, data: bytes | None
) -> None:
    path = tmp_path / "ledger.db"
    if data is not None:
        path.write_bytes(data)
    found = read(path)
    assert found.error
    assert found.runs == ()
