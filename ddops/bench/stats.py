"""Statistics of runs. Pure: numbers in, numbers out; every random draw comes from a given seed.

The unit of evidence is the launch: repeats on one server start share its luck, so tests compare
launches. Within a run, requests of one prompt share the prompt: intervals resample prompts.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

CONFIDENCE = 0.95
RESAMPLES = 10_000
#: Values that one resampling pass may hold: bounds its memory to about 100 MB.
_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval; `n` is the number of independent units behind it."""

    value: float
    low: float
    high: float
    n: int


def seed_of(*names: str) -> int:
    """A seed from run ids: the same runs give the same intervals, byte for byte."""
    text = "\n".join(sorted(names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def carries(n: int, q: float, confidence: float = CONFIDENCE) -> bool:
    """Whether `n` samples bound the `q` quantile on both sides at this confidence.

    The outermost order statistics must do it: p99 needs 368 samples, a median 6.
    """
    tail = (1 - confidence) / 2
    return n > 0 and q**n <= tail and (1 - q) ** n <= tail


def percentile(values: Sequence[float], q: float) -> float:
    """The `q` quantile (0 to 1), linear between order statistics (type 7). Needs one value."""
    _finite(values)
    return float(np.quantile(np.asarray(values, dtype=float), q, method="linear"))


def percentile_interval(
    values: Sequence[float], q: float, confidence: float = CONFIDENCE
) -> Interval | None:
    """The quantile with its distribution-free interval; None where the sample cannot carry it."""
    n = len(values)
    if not carries(n, q, confidence):
        return None
    tail = (1 - confidence) / 2
    ordered = np.sort(np.asarray(values, dtype=float))
    # Ranks l, u (from 1) with P(l <= Binomial(n, q) < u) >= confidence.
    low = int(scipy_stats.binom.ppf(tail, n, q))
    high = int(scipy_stats.binom.ppf(1 - tail, n, q)) + 1
    return Interval(
        percentile(values, q),
        float(ordered[max(low, 1) - 1]),
        float(ordered[min(high, n) - 1]),
        n,
    )


def ratio_of_sums(
    rows: Iterable[tuple[Hashable, float, float]], *, seed: int, confidence: float = CONFIDENCE
) -> Interval | None:
    """sum(numerator) / sum(denominator) over (prompt, numerator, denominator).

    Never a mean of ratios. The interval resamples whole prompts, since the steps of one request
    and the requests of one prompt are alike. None without data, or with one prompt alone.
    """
    sums: dict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for prompt, numerator, denominator in rows:
        sums[prompt][0] += numerator
        sums[prompt][1] += denominator
    # A prompt without a denominator (no verify step, say) measured nothing.
    parts = np.array([x for x in sums.values() if x[1] > 0], dtype=float).reshape(-1, 2)
    top, bottom = parts[:, 0], parts[:, 1]
    if len(parts) < 2:
        return None
    return _resampled(top, bottom, seed, confidence)


def clustered_mean(
    rows: Iterable[tuple[Hashable, float]], *, seed: int, confidence: float = CONFIDENCE
) -> Interval | None:
    """The mean over all (prompt, value), with an interval that resamples prompts."""
    return ratio_of_sums(((p, v, 1.0) for p, v in rows), seed=seed, confidence=confidence)


def paired_ratio(
    a: Mapping[str, float], b: Mapping[str, float], *, seed: int, confidence: float = CONFIDENCE
) -> Interval | None:
    """Geometric mean of a/b over the prompts both have, with its interval over prompts."""
    both = sorted(set(a) & set(b))
    if len(both) < 2 or any(a[p] <= 0 or b[p] <= 0 for p in both):
        return None
    logs = np.array([math.log(a[p] / b[p]) for p in both])
    found = _resampled(logs, np.ones(len(logs)), seed, confidence)
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.n)


def _resampled(
    top: NDArray[np.float64], bottom: NDArray[np.float64], seed: int, confidence: float
) -> Interval:
    """Bootstrap (BCa) of sum(top)/sum(bottom) over units."""
    n = len(top)
    value = float(top.sum() / bottom.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        each = top / bottom
    if np.all(bottom > 0) and np.ptp(each) == 0:
        return Interval(value, value, value, n)  # nothing varies, so there is nothing to resample

    def statistic(index: NDArray[np.int64], axis: int = -1) -> NDArray[np.float64]:
        below = bottom[index].sum(axis=axis)
        answer: NDArray[np.float64] = top[index].sum(axis=axis) / np.where(below > 0, below, np.nan)
        return answer

    # BCa needs the estimate to vary when any unit is left out; with units of weight 0, or very
    # few, plain percentiles are what is left.
    low = high = math.nan
    for method in ("BCa", "percentile") if n >= 8 and np.all(bottom > 0) else ("percentile",):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy_stats.DegenerateDataWarning)
            done = scipy_stats.bootstrap(
                (np.arange(n),),
                statistic,
                n_resamples=RESAMPLES,
                batch=max(1, _AT_ONCE // n),
                vectorized=True,
                confidence_level=confidence,
                method=method,
                rng=np.random.default_rng(seed),
            )
        low, high = (float(x) for x in done.confidence_interval)
        if math.isfinite(low) and math.isfinite(high):
            break  # BCa gives NaN where the draws hardly differ; then percentiles are left
    return Interval(value, min(low, value), max(high, value), n)


def launch_means(rows: Iterable[tuple[str, float]]) -> dict[str, float]:
    """One value a launch: the mean of its repeats."""
    found: dict[str, list[float]] = defaultdict(list)
    for launch, value in rows:
        found[launch].append(value)
    return {launch: math.fsum(values) / len(values) for launch, values in found.items()}


def mann_whitney(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """Two-sided p, and the probability that a value of `a` is the greater one (ties half).

    Exact at any size launches come in: by counting without ties, by all permutations with them.
    """
    _finite([*a, *b])
    tied = len({*a, *b}) < len(a) + len(b)
    if len({*a, *b}) == 1:
        return 1.0, 0.5
    method = (
        scipy_stats.PermutationMethod(n_resamples=100_000, rng=np.random.default_rng(seed))
        if tied
        else "exact"
    )
    found = scipy_stats.mannwhitneyu(a, b, alternative="two-sided", method=method)
    return float(min(1.0, found.pvalue)), float(found.statistic) / (len(a) * len(b))


def smallest_p(n: int, m: int) -> float:
    """The least two-sided p that `n` against `m` launches can give: what they can ever show."""
    return min(1.0, 2 / math.comb(n + m, n))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for there being many (Holm), in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    out, worst = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, p_values[i] * (len(p_values) - rank)))
        out[i] = worst
    return out


def mcnemar(a: Mapping[str, bool], b: Mapping[str, bool]) -> tuple[int, int, float]:
    """Tasks only `a` solved, tasks only `b` solved, and the exact two-sided p of that."""
    both = set(a) & set(b)
    only_a = sum(a[t] and not b[t] for t in both)
    only_b = sum(b[t] and not a[t] for t in both)
    if only_a + only_b == 0:
        return 0, 0, 1.0
    found = scipy_stats.binomtest(only_a, only_a + only_b, 0.5)
    return only_a, only_b, float(found.pvalue)


def _finite(values: Sequence[float]) -> None:
    if not values or not all(math.isfinite(v) for v in values):
        raise ValueError("needs at least one value, and finite ones only")
