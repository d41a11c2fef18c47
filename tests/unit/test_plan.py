"""Plans: pure to make, exact to apply, and finished where they were stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ddops.errors import DdopsError, Interrupted, RefusedError, UnreachableError
from ddops.events import ListReporter
from ddops.plan import Change, Proposal, apply_plan, make_plan


@dataclass
class Fake:
    id: str
    lines: tuple[str, ...] = ("do it",)
    change: Change = Change.CREATE
    sticks: bool = True
    lost: bool = False
    applied: int = 0
    done: bool = False
    title: str = "a step"
    log: list[str] = field(default_factory=list)

    def observe(self) -> Proposal:
        if self.lost:
            raise UnreachableError("box: cannot connect")
        return Proposal(Change.NONE) if self.done else Proposal(self.change, self.lines)

    def apply(self) -> None:
        self.applied += 1
        self.done = self.sticks


def go(steps: list[Fake], *, stop_after: int | None = None) -> tuple[int, list[tuple[str, str]]]:
    plan = make_plan("box", steps)
    rows: list[tuple[str, str]] = []
    count = apply_plan(
        plan, steps, report=ListReporter(), journal=lambda s, v: rows.append((s, v)),
        stopped=lambda: stop_after is not None and sum(s.applied for s in steps) >= stop_after,
    )  # fmt: skip
    return count, rows


def test_pending_steps_are_done_in_order_and_journaled() -> None:
    steps = [Fake("a"), Fake("b", done=True), Fake("c")]
    assert go(steps) == (
        2, [("a", "begin"), ("a", "done"), ("c", "begin"), ("c", "done")],
    )  # fmt: skip
    assert [s.applied for s in steps] == [1, 0, 1]
    assert go(steps) == (0, [])


def test_a_plan_has_a_digest_of_what_it_shows() -> None:
    one, same = make_plan("box", [Fake("a")]), make_plan("box", [Fake("a")])
    assert one.digest == same.digest
    assert one.digest != make_plan("box", [Fake("a", lines=("do that",))]).digest


def test_a_host_that_moved_on_is_refused_before_anything_is_done() -> None:
    step = Fake("a")
    plan = make_plan("box", [step])
    step.lines = ("do it", "and remove the other")
    with pytest.raises(RefusedError, match="moved on"):
        apply_plan(
            plan, [step], report=ListReporter(), journal=lambda *_: None, stopped=lambda: False
        )
    assert step.applied == 0


def test_less_to_do_than_shown_is_fine() -> None:
    step = Fake("a", lines=("one", "two"))
    plan = make_plan("box", [step])
    step.lines = ("two",)
    assert apply_plan(
        plan, [step], report=ListReporter(), journal=lambda *_: None, stopped=lambda: False
    ) == 1  # fmt: skip


def test_a_step_that_does_not_stick_is_an_error() -> None:
    with pytest.raises(DdopsError, match="applied, but not there afterwards"):
        go([Fake("a", sticks=False)])


def test_what_is_not_known_is_not_applied() -> None:
    steps = [Fake("a"), Fake("b", change=Change.UNKNOWN)]
    with pytest.raises(RefusedError, match="not known"):
        go(steps)


def test_a_host_that_does_not_answer_gives_unknown_rows() -> None:
    plan = make_plan("box", [Fake("a"), Fake("b", lost=True), Fake("c")])
    assert [p.change for _, _, p in plan.rows] == [Change.CREATE, Change.UNKNOWN, Change.UNKNOWN]
    assert plan.pending == 3


def test_a_stop_comes_between_steps() -> None:
    steps = [Fake("a"), Fake("b")]
    with pytest.raises(Interrupted, match="stopped by the user before: a step") as stopped:
        go(steps, stop_after=1)
    assert "1 steps were done" in stopped.value.why
    assert [s.applied for s in steps] == [1, 0]
    assert go(steps)[0] == 1
