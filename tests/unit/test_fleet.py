"""Waves, and a fleet that is of one kind again after a failure.

To see it fail: let `too_many` in ddops/deploy/fleet.py answer False.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddops.deploy.fleet import NotTried, RollOut, Rules, TakenBack, roll_out, too_many, waves
from ddops.deploy.run import Outcome
from ddops.errors import GateFailed, RollbackFailedError, UnreachableError

HOSTS = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("rules", "want"),
    [
        (Rules(), ["abcde"]),
        (Rules(canary=True), ["a", "bcde"]),
        (Rules(batch=2), ["ab", "cd", "e"]),
        (Rules(canary=True, batch=2), ["a", "bc", "de"]),
        (Rules(batch=9), ["abcde"]),
    ],
)
def test_waves(rules: Rules, want: list[str]) -> None:
    assert ["".join(w) for w in waves(HOSTS, rules)] == want


def test_few_hosts() -> None:
    assert waves(["a"], Rules(canary=True, batch=1)) == [["a"]]
    assert waves([], Rules(canary=True)) == []


@pytest.mark.parametrize(
    ("failed", "total", "percent", "want"),
    [(0, 4, 0, False), (1, 4, 0, True), (1, 4, 25, False), (2, 4, 25, True), (4, 4, 100, False)],
)
def test_how_many_are_too_many(failed: int, total: int, percent: float, want: bool) -> None:
    assert too_many(failed, total, Rules(fail_percent=percent)) is want


class Fleet:
    """`bad` maps a host to what its deploy raises, `stay` to what its way back raises."""

    def __init__(self, bad: dict[str, Exception], stay: dict[str, Exception] | None = None,
                 live: str = "") -> None:  # fmt: skip
        self.bad, self.stay, self.live = bad, stay or {}, live
        self.log: list[str] = []

    def deploy(self, wave: Sequence[str]) -> list[tuple[str, Outcome | Exception]]:
        self.log.append("+" + "".join(wave))
        return [
            (h, self.bad.get(h) or Outcome(h, "k", "r" * 64, h not in self.live, "n")) for h in wave
        ]

    def back(self, wave: Sequence[str]) -> list[tuple[str, Outcome | Exception]]:
        self.log.append("-" + "".join(wave))
        return [(h, self.stay.get(h) or Outcome(h, "k", "o" * 64, True, "n")) for h in wave]

    def run(self, rules: Rules) -> RollOut[str]:
        return roll_out(HOSTS, self.deploy, self.back, rules, self.log.append)


def kinds(done: RollOut[str]) -> list[str]:
    assert [h for h, _ in done.outcomes] == HOSTS
    return [type(o).__name__ for _, o in done.outcomes]


BAD = GateFailed("c: G4 failed", gate="G4")


def test_all_well() -> None:
    done = Fleet({}).run(Rules(canary=True, batch=2))
    assert kinds(done) == ["Outcome"] * 5
    assert done.consistent


def test_a_bad_canary_touches_nobody_else() -> None:
    fleet = Fleet({"a": BAD})
    done = fleet.run(Rules(canary=True))
    assert kinds(done) == ["GateFailed"] + ["NotTried"] * 4
    assert done.consistent
    assert [w for w in fleet.log if w[0] in "+-"] == ["+a"]


def test_the_done_ones_go_back_and_the_rest_is_not_tried() -> None:
    fleet = Fleet({"c": BAD})
    done = fleet.run(Rules(batch=2))
    assert kinds(done) == ["TakenBack", "TakenBack", "GateFailed", "TakenBack", "NotTried"]
    assert done.consistent
    assert [w for w in fleet.log if w[0] in "+-"] == ["+ab", "+cd", "-abd"]
    assert all(isinstance(o, TakenBack | NotTried | GateFailed) for _, o in done.outcomes)


def test_keep_leaves_a_mixed_fleet_and_says_so() -> None:
    fleet = Fleet({"c": BAD})
    done = fleet.run(Rules(batch=2, keep=True))
    assert kinds(done) == ["Outcome", "Outcome", "GateFailed", "Outcome", "NotTried"]
    assert not done.consistent
    assert not any(w.startswith("-") for w in fleet.log)


def test_so_many_may_fail() -> None:
    done = Fleet({"c": BAD}).run(Rules(batch=2, fail_percent=20))
    assert kinds(done) == ["Outcome", "Outcome", "GateFailed", "Outcome", "Outcome"]
    assert not done.consistent


def test_a_way_back_that_fails_is_told_for_what_it_is() -> None:
    stuck = RollbackFailedError("a: stuck")
    done = Fleet({"c": UnreachableError("c: lost")}, {"a": stuck}).run(Rules(batch=2))
    assert kinds(done)[0] == "RollbackFailedError"
    assert not done.consistent


def test_who_served_it_before_is_not_taken_back() -> None:
    fleet = Fleet({"c": BAD}, live="a")
    done = fleet.run(Rules(batch=2))
    assert kinds(done)[:2] == ["Outcome", "TakenBack"]
    assert not done.consistent, "one host served the new release all along"
