"""Where the best configuration changes with concurrency. Pure.

Between two neighbouring measured concurrencies both sides are taken as straight lines in log-log,
and the point where they meet is drawn again for resampled launches. It is never looked for beyond
what was measured. Below three launches a side, resampling would show less spread than there is, so
the interval is all that lies between the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ddops.bench.stats import CONFIDENCE, RESAMPLES, seed_of
from ddops.bench.stats_verdict import FEWEST
from ddops.recommend.model import Candidate, Choice, Crossover

#: One side at both ends of a stretch.
Side = tuple[Candidate, Candidate]


def crossovers(
    found: Sequence[Candidate], choices: Mapping[str, Mapping[int, Choice]]
) -> list[Crossover]:
    """Every change of the choice between neighbouring concurrencies, group by group."""
    by_place: dict[tuple[str, int], list[Candidate]] = {}
    for c in found:
        by_place.setdefault((c.group, c.level), []).append(c)
    out = []
    for group, levels in choices.items():
        for (low, a), (high, b) in pairwise(sorted(levels.items())):
            if a.chosen.config.key != b.chosen.config.key:
                here, there = by_place[(group, low)], by_place[(group, high)]
                out.append(_crossover(a.chosen, b.chosen, here, there))
    return out


def _crossover(
    below: Candidate, above: Candidate, here: Sequence[Candidate], there: Sequence[Candidate]
) -> Crossover:
    """`below` is chosen at the lower end, `above` at the higher one."""
    ends = (below.level, above.level)
    notes: list[str] = []
    later = _same(below, there, above, notes)
    earlier = _same(above, here, below, notes)
    ids = [*below.run_ids, *above.run_ids]
    at, low, high, how = None, float(ends[0]), float(ends[1]), ""
    lines: tuple[tuple[float, float], ...] = ()
    if later is None or earlier is None:
        lacking = below.config.name if later is None else above.config.name
        where = ends[1] if later is None else ends[0]
        how = f"somewhere between: {lacking} was not measured at {where}"
    else:
        ids += [*later.run_ids, *earlier.run_ids]
        falling, rising = (below, later), (earlier, above)
        at, low, high, how = _meet(falling, rising, seed_of(*ids))
        lines = tuple((s[0].estimate.value, s[1].estimate.value) for s in (falling, rising))
    return Crossover(
        group=below.group, below=below.config, above=above.config, ends=ends, at=at, low=low,
        high=high, how=how, notes=notes, run_ids=tuple(dict.fromkeys(ids)), lines=lines,
    )  # fmt: skip


def _same(
    wanted: Candidate, place: Sequence[Candidate], other: Candidate, notes: list[str]
) -> Candidate | None:
    """The same configuration elsewhere, or one that may be it: what was not told may be equal."""
    exact = [c for c in place if c.config.key == wanted.config.key]
    if exact:
        return exact[0]
    near = [c for c in place if c.config.like(wanted.config) and c.config.key != other.config.key]
    if not near:
        return None
    best = max(near, key=lambda c: c.estimate.value)
    notes.append(
        f"{wanted.config.name} at {wanted.level} and {best.config.name} at {best.level} are taken "
        "as one side"
    )
    return best


def _meet(falling: Side, rising: Side, seed: int) -> tuple[float | None, float, float, str]:
    """The point, its interval, and how it was found. `falling` leads at the lower end."""
    a, b = float(falling[0].level), float(falling[1].level)
    point = between(a, b, _lead(falling[0], rising[0]), _lead(falling[1], rising[1]))
    parts = [list(c.by_launch.values()) for c in (*falling, *rising)]
    least = min(map(len, parts))
    line = "log-log between the two"
    if _lead(falling[1], rising[1]) >= 0:
        line += f"; at {b:g} they tie, and the simpler one is chosen"
    if least < FEWEST:
        word = "one launch" if least == 1 else f"{least} launches"
        return point, a, b, f"{line}; {word} a side: the spread is not known"
    draw = np.random.default_rng(seed)
    f0, f1, r0, r1 = (
        draw.choice(np.asarray(p, dtype=float), (RESAMPLES, len(p))).mean(axis=1) for p in parts
    )
    places = _many(a, b, np.log(f0 / r0), np.log(f1 / r1))
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(x) for x in np.quantile(places, [tail, 1 - tail]))
    low, high = min(low, point or low), max(high, point or high)
    return point, low, high, f"{line}; {least} launches a side, resampled"


def _lead(x: Candidate, y: Candidate) -> float:
    return math.log(x.estimate.value / y.estimate.value)


def between(a: float, b: float, first: float, last: float) -> float | None:
    """Where a lead that is `first` at `a` and `last` at `b` is zero; None where it is nowhere.

    A lead that is gone at `a` already, or not yet at `b`, ends there: a tie may be chosen against
    the means.
    """
    if first <= 0 or last >= 0:
        return a if first <= 0 < -last else b if first > 0 else None
    share = first / (first - last)
    return math.exp(math.log(a) + (math.log(b) - math.log(a)) * share)


def _many(
    a: float, b: float, first: NDArray[np.float64], last: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The same for many leads at once; a lead gone at `a` counts as `a`, one not gone as `b`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(first <= 0, 0.0, np.where(last >= 0, 1.0, first / (first - last)))
    places: NDArray[np.float64] = np.exp(np.log(a) + (np.log(b) - np.log(a)) * share)
    return places
