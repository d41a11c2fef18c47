"""G5: nothing is judged without three earlier starts, and a slow start fails against them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddops.bench.answer import Load, Look
from ddops.bench.plan import Point
from ddops.command import Redactor
from ddops.deploy.smoke import Measure
from ddops.errors import CommandFailed
from ddops.events import ListReporter
from ddops.gates import Observation
from ddops.gates.observation import Launch, Port
from ddops.inventory.model import Host, Origin
from ddops.ledger import Cell, Device, Identity, Ledger, NewRun, Status
from ddops.model import GateResult, State, Verdict, digest
from tests.ledgers import START

NEW = digest("new")
SEEN = Observation(
    1.0, NEW, Launch("n", f"{NEW[:12]}-n", NEW, "op", 7, 6, 1.0), State.UP, "", 7, 1.0, 1,
    Port(1, True, True, ""), 0, "",
)  # fmt: skip
LOAD = Load(before=Look(info={"device": "cpu"}))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", redactor=Redactor()) as made:
        made.add_host("box", {})
        yield made


def cell(release: str) -> Cell:
    return Cell(suite="smoke", vary={"release": release, "budget": 8}, fix={"concurrency": 1},
                service="k", label="k C=1", concurrency=1)  # fmt: skip


def earlier(ledger: Ledger, *speeds: float) -> None:
    """One valid run each, on starts of their own, of an older release."""
    old = cell(digest("old"))
    ledger.add_cell(old)
    ledger.add_release(digest("old"), service="k", spec={}, at=START)
    for n, tps in enumerate(speeds):
        at, op = START + timedelta(minutes=n), f"op{n}"
        ledger.add_deployment(
            op, service="k", release=digest("old"), host="box", by="ann", at=at
        )  # fmt: skip
        ledger.add_launch(
            f"n{n}", deployment=op, host="box", release=digest("old"), started=at
        )  # fmt: skip
        gate = ledger.add_gate(
            GateResult("exactness", Verdict.PASS, ""), deployment=op, launch=f"n{n}", at=at
        )
        ledger.add_run(
            NewRun(
                cell=old.key, launch=f"n{n}", gates=(gate,), status=Status.VALID,
                identity=Identity.PROVEN, device_class=Device.CPU, device="", started=at,
                ended=at, requests=1, output_tps=tps,
            )
        )  # fmt: skip


def gate(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *answers: tuple[float | None, str, bool]
) -> tuple[GateResult, list[int]]:
    """G5 where the load gives these answers in turn; and how often it was asked."""
    asked: list[int] = []
    box = Host(name="box", origin=Origin("project", Path("x")), ssh="box", host_class="cpu")

    def once(_self: Measure, _seen: Observation, n: int) -> tuple[float | None, str, bool, Load]:
        asked.append(n)
        if answers[n - 1] == (None, "lost", False):
            raise CommandFailed("box: the measuring client did not finish", rc=1)
        return (*answers[n - 1], LOAD)

    monkeypatch.setattr(Measure, "_once", once)
    bench = SimpleNamespace(
        ledger=ledger, report=ListReporter(), target=SimpleNamespace(host=box),
        cell=lambda release, _point: cell(release),
    )  # fmt: skip
    return Measure(bench, Point(1), NEW)(SEEN), asked  # type: ignore[arg-type]


def test_fewer_than_three_starts_judge_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier(ledger, 100.0, 101.0)
    result, asked = gate(ledger, monkeypatch)
    assert (result.verdict, asked) == (Verdict.SKIP, [])
    assert "2 of 3 starts" in result.message


@pytest.mark.parametrize(
    ("answers", "verdict", "tries", "words"),
    [
        ([(101.0, "", False)], Verdict.PASS, 1, "not below"),
        ([(500.0, "", False)], Verdict.PASS, 1, "500.0 tok/s"),  # faster is no regression
        ([(20.0, "", False)] * 3, Verdict.FAIL, 3, "20.0 tok/s, below"),
        ([(60.0, "", False), (140.0, "", False)], Verdict.PASS, 2, "100.0 tok/s"),
        ([(None, "void: noise", False)] * 3, Verdict.SKIP, 3, "not measured: void: noise"),
        ([(None, "invalid: 3 failed", True)] * 3, Verdict.FAIL, 3, "not measured: invalid"),
        (
            [(None, "buffered: fast", False), (None, "requests: 1", True), (None, "noise", False)],
            Verdict.FAIL,
            3,
            "not measured: requests: 1",
        ),
        ([(None, "lost", False), (100.0, "", False)], Verdict.PASS, 2, "not below"),
    ],
)
def test_a_start_is_judged_by_three_earlier_ones(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch,
    answers: list[tuple[float | None, str, bool]], verdict: Verdict, tries: int, words: str,
) -> None:  # fmt: skip
    earlier(ledger, 100.0, 101.0, 99.0)
    result, asked = gate(ledger, monkeypatch, *answers)
    assert (result.name, result.verdict, len(asked)) == ("G5", verdict, tries), result
    assert words in result.message
    if verdict is Verdict.FAIL and answers[0][0]:
        assert result.evidence["launches"] == 3


def test_starts_that_differ_too_much_judge_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier(ledger, 100.0, 30.0, 65.0)
    result, _ = gate(ledger, monkeypatch, (1.0, "", False))
    assert result.verdict is Verdict.SKIP
    assert "they judge nothing" in result.message


def test_another_device_is_no_baseline(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier(ledger, 100.0, 101.0, 99.0)
    monkeypatch.setattr("ddops.bench.runner.device_name", lambda _load: "8x B300")
    result, _ = gate(ledger, monkeypatch, (1.0, "", False))
    assert result.verdict is Verdict.SKIP
    assert "8x B300" in result.message


def test_a_ledger_without_smoke_runs_loads_no_statistics(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddops.deploy.smoke import smoke_of

    target = SimpleNamespace(service=SimpleNamespace(name="k"))
    smoke = smoke_of(target, NEW, None, ledger, ListReporter())  # type: ignore[arg-type]
    assert smoke(SEEN).verdict is Verdict.SKIP
    assert "0 of 3" in smoke(SEEN).message
