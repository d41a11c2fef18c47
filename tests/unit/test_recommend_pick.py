"""Choosing at one concurrency, and where the choice changes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddops.recommend.answer import advise, at
from ddops.recommend.crossover import between, crossovers
from ddops.recommend.model import Certainty, Choice
from ddops.recommend.next import arm_of, launches_needed, levels_inside
from ddops.recommend.pick import candidates, choices, choose, estimate
from tests.unit.findings_support import around, candidate, config, population, runs

AR = config("ar")
CHAIN = config("chain", "DFLASH", block=8)
TREE = config("tree8", "DDTREE", budget=8, topk=4)
WIDE = config("tree48", "DDTREE", budget=48, topk=4)


def chosen(*found: object) -> Choice:
    return choose(list(found))  # type: ignore[arg-type]


def test_the_clearly_faster_one_is_proven() -> None:
    got = chosen(candidate(AR, 1, around(98)), candidate(TREE, 1, around(150)))
    assert (got.chosen.config, got.certainty) == (TREE, Certainty.PROVEN)
    assert set(got.run_ids) == {f"{c}-g-1-{n}-0" for c in ("ar", "tree8") for n in range(6)}


def test_a_tie_goes_to_the_simpler_one() -> None:
    got = chosen(candidate(TREE, 8, around(301)), candidate(AR, 8, around(300)))
    assert (got.chosen.config, got.certainty) == (AR, Certainty.TIE)
    assert "tree8 is not proven better" in got.why and "below 2%" in got.why


def test_a_tie_with_a_less_simple_one_stays_with_the_simpler() -> None:
    got = chosen(candidate(TREE, 8, around(300)), candidate(AR, 8, around(301)))
    assert (got.chosen.config, got.certainty) == (AR, Certainty.TIE)
    assert got.why == "level with tree8, which is no simpler"


def test_of_three_that_tie_the_simplest_is_taken() -> None:
    got = chosen(*(candidate(c, 4, around(v)) for c, v in ((WIDE, 302), (TREE, 301), (AR, 300))))
    assert got.chosen.config == AR


def test_repeats_on_one_start_prove_nothing() -> None:
    """Twenty repeats on one server start are one launch."""
    a, b = (candidate(c, 1, [v], repeats=20) for c, v in ((AR, 98.0), (TREE, 150.0)))
    got = chosen(a, b)
    assert (got.chosen.config, got.certainty) == (TREE, Certainty.LEADS)
    assert got.chosen.estimate.low is None and got.chosen.estimate.launches == 1
    assert "1 launch a side cannot prove it" in got.why


def test_many_rivals_need_more_proof_than_one() -> None:
    """Four launches can prove one comparison (p 0.029), not three at once."""
    ones = [candidate(c, 1, around(v, 4)) for c, v in ((TREE, 150), (AR, 98))]
    assert chosen(*ones).certainty is Certainty.PROVEN
    more = [candidate(c, 1, around(v, 4)) for c, v in ((WIDE, 101), (CHAIN, 120))]
    assert chosen(*ones, *more).certainty is Certainty.LEADS


def test_alone_is_said() -> None:
    assert chosen(candidate(TREE, 2, around(10))).certainty is Certainty.ALONE


def test_the_interval_is_students() -> None:
    got = estimate([98.0, 100.0, 102.0], 9)
    assert got.value == 100 and got.runs == 9
    assert got.low == pytest.approx(100 - 4.303 * 2 / math.sqrt(3), abs=0.01)


# ---- crossover


def test_the_crossover_of_known_lines_is_found() -> None:
    """98 to 1449 against 113.8 to 786 from 1 to 128 cross near 2.59."""
    got = between(1, 128, math.log(113.8 / 98), math.log(786 / 1449))
    assert got == pytest.approx(2.593, abs=0.001)


@given(
    a=st.floats(1, 50), factor=st.floats(1.1, 100), first=st.floats(0.001, 3),
    last=st.floats(-3, -0.001),
)  # fmt: skip
def test_a_crossover_is_never_outside(a: float, factor: float, first: float, last: float) -> None:
    got = between(a, a * factor, first, last)
    assert got is not None and a * 0.999 <= got <= a * factor * 1.001


def crossing_of(launches: int) -> object:
    measured = [
        *runs(AR, 4, around(197, launches)), *runs(TREE, 4, around(241, launches)),
        *runs(AR, 8, around(320, launches)), *runs(TREE, 8, around(300, launches)),
    ]  # fmt: skip
    found = candidates(measured)
    (got,) = crossovers(found, choices(found))
    return got


def test_an_interval_holds_the_point_and_needs_launches() -> None:
    got = crossing_of(6)
    assert got.ends == (4, 8) and got.below == TREE and got.above == AR  # type: ignore[attr-defined]
    assert 4 < got.low < got.at < got.high < 8  # type: ignore[attr-defined]
    assert got.high / got.low < 1.1  # type: ignore[attr-defined]
    few = crossing_of(2)
    assert (few.low, few.high) == (4, 8) and "2 launches a side" in few.how  # type: ignore[attr-defined]
    assert few.at == pytest.approx(got.at, abs=0.05)  # type: ignore[attr-defined]


def test_a_change_by_a_tie_is_told_as_one() -> None:
    """The tree is still a little ahead at 8; it is no longer proven, so the simpler one stays."""
    measured = [
        *runs(AR, 4, around(197)), *runs(TREE, 4, around(241)),
        *runs(AR, 8, around(300)), *runs(TREE, 8, around(301)),
    ]  # fmt: skip
    found = candidates(measured)
    (got,) = crossovers(found, choices(found))
    assert got.at == 8 and "at 8 they tie, and the simpler one is chosen" in got.how


def test_one_that_was_not_measured_at_the_other_end_gives_no_point() -> None:
    measured = [*runs(TREE, 1, around(150)), *runs(AR, 1, around(98)), *runs(CHAIN, 8, around(9))]
    found = candidates(measured)
    (got,) = crossovers(found, choices(found))
    assert got.at is None and (got.low, got.high) == (1, 8)
    assert "tree8 was not measured at 8" in got.how


def test_another_launch_line_does_not_stand_in() -> None:
    """Both autoregressive, but TP8 is known not to be EP4: no line is drawn through them."""
    one = config("tp8", launch={"tp-size": 8})
    two = config("ep4", launch={"tp-size": 8, "ep-size": 4})
    measured = [*runs(TREE, 1, around(150)), *runs(one, 1, around(98)),
                *runs(TREE, 128, around(786)), *runs(two, 128, around(1449))]  # fmt: skip
    found = candidates(measured)
    (got,) = crossovers(found, choices(found))
    assert got.at is None and "ep4 was not measured at 1" in got.how
    told = config("ar", strategy=None)
    assert told.like(config("ep4", strategy="EP4")), "what was not told may be equal"
    assert not one.like(two)


def test_what_is_not_proven_is_one_line() -> None:
    measured = []
    for level in (1, 2):
        measured += [*runs(AR, level, [98.0]), *runs(TREE, level, [150.0]),
                     *runs(CHAIN, level, [120.0])]  # fmt: skip
    (step,) = advise(population(measured)).next
    assert step.levels == [1, 2] and step.lines[:2] == ["levels = [1, 2]", "launches = 5"]
    assert "1 launch a side; 5 can prove it" in step.why
    assert step.command == "ddops bench sweep box" and step.suite == "suites/k26/sweep.toml"
    assert step.lines.count("[[arms]]") == 3


def test_what_stands_alone_wants_company() -> None:
    (step,) = advise(population(runs(TREE, 4, around(10)))).next
    assert "at 4 nothing stands beside it" in step.why and step.levels == [4]


def test_groups_are_never_joined() -> None:
    measured = [*runs(TREE, 1, around(150), group="a"), *runs(AR, 8, around(300), group="b")]
    got = advise(population(measured))
    assert got.crossovers == [] and len(got.choices) == 2


# ---- the whole answer


def test_unlike_numbers_of_one_configuration_are_kept_apart() -> None:
    measured = [
        *runs(TREE, 1, around(150.2), group="a"), *runs(AR, 1, around(98), group="a"),
        *runs(TREE, 1, around(113.8), group="b"),
    ]  # fmt: skip
    got = advise(population(measured))
    (pair,) = got.unlike
    assert {round(pair.a.estimate.value, 1), round(pair.b.estimate.value, 1)} == {150.2, 113.8}
    assert pair.columns == ["fix.prompts: a against b"]
    assert got.choices[1].group == "a", "the group that compared more"


def ladder() -> object:
    measured = []
    for level, ar, tree in ((2, 130, 190), (4, 197, 241), (8, 320, 300), (16, 460, 360)):
        measured += [*runs(AR, level, around(ar)), *runs(TREE, level, around(tree))]
    return advise(population(measured))


@pytest.mark.parametrize(
    ("level", "name", "says"),
    [
        (2, "tree8", "better than all others"),
        (3, "tree8", "chosen at 2 and at 4; 3 itself was not measured"),
        (5, "tree8", "below the crossover"),
        (12, "ar", "chosen at 8 and at 16"),
        (1, None, "never extrapolated"),
        (32, None, "never extrapolated"),
    ],
)
def test_the_answer_between_and_beyond(level: int, name: str | None, says: str) -> None:
    got = at(ladder(), level)  # type: ignore[arg-type]
    assert (got.config.name if got.config else None) == name
    assert says in got.why


# ---- what next


def test_levels_inside_never_leave_what_was_measured() -> None:
    assert levels_inside(1, 128, 2.6, (1, 128)) == [2, 3, 11, 38]
    assert levels_inside(4, 8, 7.4, (4, 8)) == [5, 6, 7]
    assert levels_inside(4, 5, None, (4, 5)) == []


def test_launches_that_can_prove_it() -> None:
    assert launches_needed(1) == 4 and launches_needed(20) == 6


def test_next_names_arms_that_a_sweep_takes() -> None:
    assert arm_of(config("k26+budget=8,tp-size=4")) == (
        "[[arms]]", 'profile = "k26"', 'axes = { "spec.budget" = [8], "launch.tp-size" = [4] }',
    )  # fmt: skip
    assert arm_of(config("DDTREE, budget not told")) == ()
