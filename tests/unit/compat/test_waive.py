"""A waived check still fails; it refuses nothing until its day is over.

To see it fail: drop the comparison of days in ddops/compat/waive.py.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from ddops.compat import Finding, waive
from ddops.inventory.model import Host, Origin, Waiver
from ddops.model import Verdict

HERE = Origin("project", Path("inventory/waivers.toml"), 3)
BOX = Host(name="box", ssh="box", groups=("pcie",), origin=HERE)
TODAY = date(2026, 11, 29)


def waiver(check: str = "GPU-06", on: str = "box", until: date = TODAY, why: str = "x") -> Waiver:
    return Waiver(check=check, on=(on,), reason=why, owner="me", until=until, origin=HERE)


def failed(verdict: Verdict = Verdict.FAIL, *, required: bool = False) -> Finding:
    return Finding("GPU-06", "power", verdict, "300 W", "raise it", "E", "gpu", required)


@pytest.mark.parametrize("on", ["box", "pcie"])
def test_it_refuses_nothing_through_its_last_day(on: str) -> None:
    (one,) = waive([failed()], [waiver(on=on)], BOX, TODAY)
    assert one.verdict is Verdict.FAIL
    assert not one.refuses
    assert "until 2026-11-29 by me: x" in one.waived


def test_the_day_after_it_refuses_again_and_names_the_waiver() -> None:
    found = waive([failed()], [waiver()], BOX, date(2026, 11, 30))
    assert [f.refuses for f in found] == [True]
    assert "its waiver ended" in found[0].seen


def test_another_host_s_waiver_is_none() -> None:
    assert waive([failed()], [waiver(on="other")], BOX, TODAY) == [failed()]


def test_a_required_answer_that_is_missing_can_be_waived() -> None:
    (one,) = waive([failed(verdict=Verdict.UNKNOWN, required=True)], [waiver()], BOX, TODAY)
    assert one.verdict is Verdict.UNKNOWN
    assert not one.refuses


def test_of_two_the_later_written_counts() -> None:
    both = [waiver(until=date(2026, 1, 1)), waiver(why="renewed")]
    assert not waive([failed()], both, BOX, TODAY)[0].refuses
    assert waive([failed()], both[::-1], BOX, TODAY)[0].refuses


@pytest.mark.parametrize(
    ("finding", "check", "verdict", "words"),
    [
        (failed(verdict=Verdict.PASS), "GPU-06", Verdict.INFO, "refuses nothing now"),
        (failed(verdict=Verdict.WARN), "GPU-06", Verdict.INFO, "refuses nothing now"),
        (failed(verdict=Verdict.PASS), "GPU-99", Verdict.WARN, "no check has that name"),
    ],
)
def test_one_that_nothing_needs_does_not_lie_in_wait(
    finding: Finding, check: str, verdict: Verdict, words: str
) -> None:
    first, row = waive([finding], [waiver(check)], BOX, TODAY)
    assert first == finding
    assert (row.check, row.verdict) == ("WAIVER", verdict)
    assert words in row.seen
    assert not row.refuses
