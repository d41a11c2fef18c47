"""From numbers to words: better, worse, tie; inside the noise or not. Pure.

A difference counts only when it is significant on launches, big enough to matter, and its interval
leaves out 1. Anything else is a tie, and at a tie the simpler configuration stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats as scipy_stats

from ddops.bench.stats import CONFIDENCE, Interval, mann_whitney, smallest_p

ALPHA = 0.05
#: The least relative difference that matters.
EFFECT = 0.02
#: The least probability that a launch of the better side beats one of the other.
SUPERIORITY = 0.9
#: Fewer valid launches than this say nothing about noise.
FEWEST = 3
#: A bound is never tighter than this: clocks and drivers drift by as much from day to day.
FLOOR = 0.02


class Word(StrEnum):
    """What a comparison comes to, said of A."""

    BETTER = "better"
    WORSE = "worse"
    TIE = "tie"
    TOO_FEW = "too few launches"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A against B on one figure. `ratio` is A/B of the launches' means, with its interval."""

    word: Word
    why: str
    ratio: Interval
    p: float
    superiority: float
    launches: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Noise:
    """What a new run may read and still be the same: `low` to `high`, from `n` launches."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def relative(self) -> float:
        """The bound as a share of the mean."""
        return (self.high - self.mean) / self.mean


def judge(
    a: Mapping[str, float],
    b: Mapping[str, float],
    *,
    higher_is_better: bool,
    seed: int,
    alpha: float = ALPHA,
    effect: float = EFFECT,
) -> Judgement:
    """Compare two sides by their launches' means (launch: value); values are positive."""
    left, right = list(a.values()), list(b.values())
    if not left or not right or min(*left, *right) <= 0:
        raise ValueError("both sides need launches, and figures above zero")
    p, above = mann_whitney(left, right, seed=seed)
    wins = above if higher_is_better else 1 - above
    ratio = _ratio(left, right, seed)
    gain = ratio.value - 1 if higher_is_better else 1 / ratio.value - 1
    loss = 1 / ratio.value - 1 if higher_is_better else ratio.value - 1
    launches = (len(left), len(right))
    floor = smallest_p(*launches)
    if floor > alpha:
        why = f"{launches[0]} against {launches[1]} launches cannot show p below {floor:.2g}"
        return Judgement(Word.TOO_FEW, why, ratio, p, wins, launches)
    missing = _missing(p, alpha, max(gain, loss), effect, max(wins, 1 - wins), ratio)
    if missing:
        return Judgement(Word.TIE, "; ".join(missing), ratio, p, wins, launches)
    word = Word.BETTER if gain > 0 else Word.WORSE
    why = f"p {p:.2g}, difference {max(gain, loss):.1%}, superiority {max(wins, 1 - wins):.2f}"
    return Judgement(word, why, ratio, p, wins, launches)


def _missing(
    p: float, alpha: float, size: float, effect: float, wins: float, ratio: Interval
) -> list[str]:
    """What a difference lacks to count."""
    out = []
    if p > alpha:
        out.append(f"p {p:.2g} is above {alpha:g}")
    if size < effect:
        out.append(f"the difference of {size:.1%} is below {effect:.0%}")
    if wins < SUPERIORITY:
        out.append(f"the better side wins {wins:.2f} of the pairs, not {SUPERIORITY:g}")
    if ratio.low <= 1 <= ratio.high:
        out.append(f"the interval {ratio.low:.3f} to {ratio.high:.3f} holds 1")
    return out


def _ratio(left: Sequence[float], right: Sequence[float], seed: int) -> Interval:
    """mean(left)/mean(right), its interval by resampling launches on both sides."""
    a, b = np.asarray(left, dtype=float), np.asarray(right, dtype=float)
    value = float(a.mean() / b.mean())
    draw = np.random.default_rng(seed)
    tops = draw.choice(a, (10_000, len(a))).mean(axis=1)
    bottoms = draw.choice(b, (10_000, len(b))).mean(axis=1)
    low, high = np.quantile(tops / bottoms, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, float(low), float(high), min(len(a), len(b)))


def noise_bound(launches: Sequence[float], confidence: float = 0.99) -> Noise | None:
    """The interval in which one more launch of the same thing falls; None below 3 launches.

    A prediction interval (Student's t): it is wide for few launches, as it must be.
    """
    n = len(launches)
    if n < FEWEST:
        return None
    mean = math.fsum(launches) / n
    spread = float(np.std(launches, ddof=1)) * math.sqrt(1 + 1 / n)
    reach = float(scipy_stats.t.ppf((1 + confidence) / 2, n - 1)) * spread
    reach = max(reach, FLOOR * abs(mean))
    return Noise(mean, mean - reach, mean + reach, n)


def regressed(value: float, noise: Noise, *, higher_is_better: bool) -> bool:
    """Whether a new figure is worse than noise explains. Better is never a regression."""
    return value < noise.low if higher_is_better else value > noise.high
