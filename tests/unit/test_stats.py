"""Statistics: known values, and properties that must hold for any numbers."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from ddops.bench.stats import (
    carries,
    clustered_mean,
    holm,
    launch_means,
    mann_whitney,
    mcnemar,
    paired_ratio,
    percentile,
    percentile_interval,
    ratio_of_sums,
    seed_of,
    smallest_p,
)
from ddops.bench.stats_verdict import Word, judge, noise_bound, regressed

NUMBERS = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40)


# Percentiles.


@pytest.mark.parametrize(
    ("q", "needed"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688)]
)
def test_a_percentile_needs_as_many_samples_as_bound_it(q: float, needed: int) -> None:
    assert carries(needed, q) and not carries(needed - 1, q)
    values = [float(n) for n in range(needed)]
    assert percentile_interval(values[:-1], q) is None
    found = percentile_interval(values, q)
    assert found is not None and found.low <= found.value <= found.high


def test_percentiles_of_few_values_stay_among_them() -> None:
    """N of 1, 2, 3."""
    for n, q in itertools.product((1, 2, 3), (0.0, 0.5, 0.9, 0.99, 1.0)):
        values = [float(10 + i) for i in range(n)]
        assert min(values) <= percentile(values, q) <= max(values)
    assert percentile([1, 2, 3, 4], 0.5) == 2.5, "linear, type 7"


@given(NUMBERS, st.floats(0, 1))
def test_any_percentile_is_within_its_values(values: list[float], q: float) -> None:
    slack = 1e-9 * max(values)
    assert min(values) - slack <= percentile(values, q) <= max(values) + slack


@pytest.mark.parametrize("bad", [[], [math.nan], [1.0, math.inf]])
def test_percentiles_of_nothing_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        percentile(bad, 0.5)


def test_the_interval_covers_as_often_as_it_says() -> None:
    """400 draws of 100 from a known law: the true median is inside in 95 % or more."""
    draw = random.Random(7)
    hits = 0
    for _ in range(400):
        found = percentile_interval([draw.expovariate(1) for _ in range(100)], 0.5)
        assert found is not None
        hits += found.low <= math.log(2) <= found.high
    assert hits >= 375


# Intervals that resample prompts.


def test_ratio_of_sums_is_no_mean_of_ratios() -> None:
    rows = [("a", 40.0, 10.0), ("b", 10.0, 90.0)]
    found = ratio_of_sums(rows, seed=1)
    assert found is not None and found.value == 0.5


def test_clusters_widen_the_interval() -> None:
    """100 requests of 10 prompts are no 100 prompts: steps of one prompt are alike."""
    draw = random.Random(3)
    by_prompt = {f"p{n}": draw.gauss(4, 1) for n in range(10)}
    rows = [(p, v + draw.gauss(0, 0.01)) for p, v in by_prompt.items() for _ in range(10)]
    together = clustered_mean(rows, seed=1)
    apart = clustered_mean([(f"{p}{n}", v) for n, (p, v) in enumerate(rows)], seed=1)
    assert together is not None and apart is not None
    assert (together.n, apart.n) == (10, 100)
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_the_clustered_interval_covers() -> None:
    draw = random.Random(5)
    hits = 0
    for n in range(60):
        rows = []
        for p in range(30):
            middle = draw.gauss(4, 1)
            rows += [(str(p), middle + draw.gauss(0, 0.1)) for _ in range(3)]
        found = clustered_mean(rows, seed=n)
        assert found is not None
        hits += found.low <= 4 <= found.high
    assert hits >= 51, "about 95 % of 60"


def test_the_same_runs_give_the_same_interval() -> None:
    rows = [(str(n % 9), float(n)) for n in range(50)]
    seed = seed_of("run-b", "run-a")
    assert seed == seed_of("run-a", "run-b") != seed_of("run-a")
    assert clustered_mean(rows, seed=seed) == clustered_mean(rows, seed=seed)


@pytest.mark.parametrize("rows", [[], [("a", 1.0)], [("a", 1.0), ("a", 2.0)]])
def test_one_prompt_has_no_interval(rows: list[tuple[str, float]]) -> None:
    assert clustered_mean(rows, seed=1) is None
    assert ratio_of_sums([("a", 1.0, 0.0), ("b", 1.0, 0.0)], seed=1) is None


def test_nothing_that_varies_has_a_point_for_an_interval() -> None:
    found = ratio_of_sums([(str(n), 4.0, 2.0) for n in range(20)], seed=1)
    assert found is not None and (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


@example([(c, 0.0, 1) for c in "abcdefgh"] + [("i", 1.5, 1)])
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefghijkl"), st.floats(0, 1e4), st.integers(0, 50)),
        max_size=30,
    )
)
@settings(deadline=None, max_examples=40)
def test_any_ratio_is_inside_its_interval(rows: list[tuple[str, float, int]]) -> None:
    found = ratio_of_sums(rows, seed=1)
    if found is not None:
        assert found.low <= found.value <= found.high


def test_paired_prompts_take_out_what_they_share() -> None:
    draw = random.Random(1)
    b = {f"p{n}": draw.uniform(50, 500) for n in range(40)}
    a = {p: v * 1.1 * draw.gauss(1, 0.01) for p, v in b.items()}
    found = paired_ratio(a, b, seed=1)
    assert found is not None and found.low > 1.08 and found.high < 1.12
    assert paired_ratio(a, {"other": 1.0}, seed=1) is None
    assert paired_ratio({"x": 0.0, "y": 1.0}, {"x": 1.0, "y": 1.0}, seed=1) is None


# Launches.


def test_repeats_of_one_launch_are_one_value() -> None:
    assert launch_means([("a", 1.0), ("a", 3.0), ("b", 5.0)]) == {"a": 2.0, "b": 5.0}


@pytest.mark.parametrize(
    ("n", "p"), [(3, 0.1), (4, 2 / 70), (5, 2 / 252), (6, 2 / 924), (7, 2 / 3432)]
)
def test_what_n_launches_can_show_at_most(n: int, p: float) -> None:
    assert smallest_p(n, n) == pytest.approx(p)
    high = [100.0 + i for i in range(n)]
    low = [10.0 + i for i in range(n)]
    for pair, above in (((high, low), 1.0), ((low, high), 0.0)):
        seen = mann_whitney(*pair)
        assert seen[0] == pytest.approx(p) and seen[1] == above


def test_mann_whitney_with_ties_is_exact_too() -> None:
    """All 924 ways to deal 6 and 6, counted here by hand."""
    a, b = [1.0, 2.0, 2.0, 3.0, 3.0, 5.0], [2.0, 3.0, 4.0, 4.0, 5.0, 6.0]
    pool = a + b

    def u(left: list[float], right: list[float]) -> float:
        return sum((x > y) + 0.5 * (x == y) for x in left for y in right)

    def far(left: list[float], right: list[float]) -> float:
        return abs(u(left, right) - 18)

    deals = list(itertools.combinations(range(12), 6))
    as_far = 0
    for deal in deals:
        left = [pool[i] for i in deal]
        right = [pool[i] for i in range(12) if i not in deal]
        as_far += far(left, right) >= far(a, b) - 1e-9
    p, above = mann_whitney(a, b)
    assert p == pytest.approx(as_far / len(deals), abs=1e-9)
    assert above == pytest.approx(u(a, b) / 36)
    assert mann_whitney([1.0, 1.0], [1.0, 1.0]) == (1.0, 0.5)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]
    assert holm([]) == [] and holm([0.9, 0.9]) == [1.0, 1.0]


def test_mcnemar_is_the_exact_binomial() -> None:
    a = {str(n): True for n in range(20)}
    b = {str(n): n >= 8 for n in range(20)}
    lost, won, p = mcnemar(a, b)
    assert (lost, won) == (8, 0) and p == pytest.approx(scipy_stats.binomtest(8, 8).pvalue)
    assert mcnemar(a, a) == (0, 0, 1.0)
    assert mcnemar({}, {}) == (0, 0, 1.0)


# Words.


def side(*values: float) -> dict[str, float]:
    return {f"launch{n}": v for n, v in enumerate(values)}


def test_a_clear_difference_is_one() -> None:
    fast, slow = side(150, 151, 149, 152, 150, 151), side(98, 99, 97, 98, 98, 99)
    found = judge(fast, slow, higher_is_better=True, seed=1)
    assert (found.word, found.launches) == (Word.BETTER, (6, 6))
    assert found.ratio.low > 1.5 > 1 and found.superiority == 1.0
    assert judge(slow, fast, higher_is_better=True, seed=1).word is Word.WORSE
    assert judge(slow, fast, higher_is_better=False, seed=1).word is Word.BETTER


def test_three_launches_show_nothing() -> None:
    found = judge(side(150, 151, 152), side(98, 99, 97), higher_is_better=True, seed=1)
    assert found.word is Word.TOO_FEW and "p below 0.1" in found.why


def test_two_modes_of_noise_are_a_tie() -> None:
    """13 and 25 by turns. The same on both sides, shifted by one, or dealt by chance."""
    one, two = side(13, 25, 13, 25, 13, 25, 13), side(25, 13, 25, 13, 25, 13, 25)
    assert judge(one, two, higher_is_better=True, seed=1).word is Word.TIE
    draw = random.Random(11)
    differ = 0
    for n in range(100):
        a, b = (side(*(draw.choice((13.0, 25.0)) for _ in range(6))) for _ in "ab")
        differ += judge(a, b, higher_is_better=True, seed=n).word is not Word.TIE
    assert differ <= 3, "all of one mode against all of the other happens, but seldom"


def test_a_sure_but_tiny_difference_is_a_tie() -> None:
    found = judge(
        side(100.5, 100.6, 100.7, 100.8, 100.55, 100.65),
        side(100.0, 100.1, 100.2, 100.3, 100.05, 100.15),
        higher_is_better=True,
        seed=1,
    )
    assert found.word is Word.TIE and found.p < 0.01 and "below 2%" in found.why


@given(
    st.lists(st.floats(1, 1000), min_size=4, max_size=8),
    st.lists(st.floats(1, 1000), min_size=4, max_size=8),
)
@settings(deadline=None, max_examples=30)
def test_swapping_the_sides_swaps_the_word(a: list[float], b: list[float]) -> None:
    swap = {Word.BETTER: Word.WORSE, Word.WORSE: Word.BETTER}
    one = judge(side(*a), side(*b), higher_is_better=True, seed=1)
    two = judge(side(*b), side(*a), higher_is_better=True, seed=1)
    # Intervals are drawn by chance, so a case at the very edge may be a tie one way.
    assert two.word in (swap.get(one.word, one.word), Word.TIE) or one.word is Word.TIE


@pytest.mark.parametrize("bad", [{}, {"a": 0.0}, {"a": -1.0}])
def test_no_launches_or_no_figure_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        judge(bad, side(1, 2, 3, 4), higher_is_better=True, seed=1)


# Noise.


def test_below_three_launches_there_is_no_bound() -> None:
    assert noise_bound([100.0, 101.0]) is None
    assert noise_bound([]) is None


def test_the_bound_is_students_prediction_interval() -> None:
    values = [100.0, 102.0, 98.0, 101.0, 99.0]
    found = noise_bound(values)
    assert found is not None
    reach = scipy_stats.t.ppf(0.995, 4) * statistics.stdev(values) * math.sqrt(1.2)
    assert found.high - found.mean == pytest.approx(reach)
    assert regressed(found.low - 0.1, found, higher_is_better=True)
    assert not regressed(found.low + 0.1, found, higher_is_better=True)
    assert not regressed(found.high + 50, found, higher_is_better=True), "better is none"
    assert regressed(found.high + 0.1, found, higher_is_better=False)


def test_the_bound_is_never_tighter_than_the_floor() -> None:
    found = noise_bound([100.0, 100.0, 100.0])
    assert found is not None and found.relative == pytest.approx(0.02)


def test_one_more_of_the_same_is_seldom_a_regression() -> None:
    draw = np.random.default_rng(1)
    alarms = 0
    for _ in range(2000):
        *base, new = (float(x) for x in draw.normal(100, 2, 6))
        found = noise_bound(base)
        assert found is not None
        alarms += regressed(new, found, higher_is_better=True)
    assert alarms <= 20, "half a percent is meant: one side of 99 %"
