"""What people see while runs go on: a bar and a table on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from ddops.bench.plan import Point
from ddops.bench.record import cell_of
from ddops.bench.runner import Measured
from ddops.cli.app import App
from ddops.cli.bench_live import Live, Switch, View, view
from ddops.command import Redactor
from ddops.events import Event, TextReporter
from ddops.ledger.bench_records import Status
from ddops.sweep import Eta
from tests.unit.bench.inventory import HOST, PROMPTS, SERVICE, SUITE, profile

CELL = cell_of(SERVICE, HOST, profile(), "0" * 64, SUITE, PROMPTS, Point(4))


def run(status: Status = Status.VALID, reason: str = "") -> Measured:
    return Measured("r1", CELL, CELL.label, 4, 1, status, reason, None, ("odd",))


@pytest.fixture
def app() -> App:
    return App(".", verbose=0, quiet=False, redactor=Redactor())


def test_a_pipe_gets_lines(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    app.report = TextReporter(sys.stderr, Redactor())
    with view(app) as shown:
        assert type(shown) is View
        shown.total(2)
        shown.ended(run(), 1, 2, ", about 9 s left")
        shown.ended(run(Status.VOID, "noise"), 2, 2, "")
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("1/2 p C=4 run 1: ")
    assert err[0].endswith("about 9 s left")
    assert err[1] == "warning: p C=4: odd"
    assert err[2] == "warning: 2/2 p C=4 run 1: void: noise"


def test_a_terminal_gets_a_bar_and_a_table(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    switch = Switch(app.report)
    live = Live(app, console, switch)
    monkeypatch.setattr(live.live, "auto_refresh", False)
    live.total(3)
    assert live.live.is_started
    assert switch.to is not app.report
    live.ended(run(Status.INVALID, "gate exactness FAIL token=hf_abcdefghijklmnopqrst"), 1, 3, "")
    live.live.refresh()
    live.close()
    text = screen.getvalue()
    assert "1/3" in text
    assert "invalid" in text
    assert "hf_abcdef" not in text
    live.close()  # twice does no harm


def test_reports_reach_whoever_holds_the_switch() -> None:
    first, second = io.StringIO(), io.StringIO()
    switch = Switch(TextReporter(first, Redactor()))
    switch.emit(Event("x", "one"))
    switch.to = TextReporter(second, Redactor())
    switch.emit(Event("x", "two"))
    assert (first.getvalue(), second.getvalue()) == ("one\n", "two\n")


def test_the_time_left_comes_from_what_the_runs_took() -> None:
    now = [100.0]
    eta = Eta(4, clock=lambda: now[0])
    now[0] += 30
    assert eta.step() == ", about 2 min left"
    now[0] += 10
    assert eta.step() == ", about 40 s left"
    eta.step()
    assert eta.step() == ""
