"""Where a run is steady: the warm-up cut, the drain cut, and the rule that made them.

Closed loop, rule `waves/1`: the window begins when every slot has finished its first `warm_waves`
requests, and ends when the first slot finds no further request. Inside it exactly C requests are
under way. Then a look for change: while the first of eight stretches makes tokens at another rate
than the rest, it is cut too, up to half of the window.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddops.bench.answer import Sample

TILES = 8
#: A stretch is like the rest when its rate is within this share of their median, or within
#: three robust deviations of it.
ALIKE = 0.10
#: With fewer tokens per stretch, a difference of rates says nothing.
TILE_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Window:
    """From `start` to `end`, ns since t0. `steady` is False where it could not be shown."""

    start: int
    end: int
    rule: str
    steady: bool
    why: str = ""
    cut_tiles: int = 0

    @property
    def ns(self) -> int:
        return self.end - self.start

    def holds(self, at: int | None) -> bool:
        return at is not None and self.start < at <= self.end

    def whole(self, sample: Sample) -> bool:
        """Sent and ended inside."""
        return (
            sample.sent is not None
            and sample.end is not None
            and sample.sent >= self.start
            and sample.end <= self.end
        )

    def due(self, sample: Sample) -> bool:
        """Scheduled inside."""
        return self.start <= sample.scheduled <= self.end

    def phase(self, sample: Sample) -> str:
        """`warmup`, `window` or `drain`, by where most of the request lies."""
        if self.whole(sample):
            return "window"
        if sample.sent is not None and sample.sent < self.start:
            return "warmup"
        return "drain"


def closed_window(samples: Sequence[Sample], concurrency: int, warm_waves: int) -> Window:
    """The steady window of a closed loop; empty, and not steady, when there is none."""
    rule = f"waves/1 warm={warm_waves}"
    slots: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.end is not None:
            slots[sample.slot].append(sample)
    if len(slots) < concurrency:
        return Window(0, 0, rule, False, f"{len(slots)} of {concurrency} slots did anything")
    for mine in slots.values():
        mine.sort(key=lambda s: s.n)
    if min(map(len, slots.values())) <= warm_waves:
        return Window(0, 0, rule, False, "a slot had no request after its warm-up")
    start = max(_end(mine[warm_waves - 1]) if warm_waves else 0 for mine in slots.values())
    end = min(_end(mine[-1]) for mine in slots.values())
    if end <= start:
        return Window(start, start, rule, False, "the drain began before the warm-up was over")
    return _cut_change(samples, Window(start, end, rule, True))


def open_window(samples: Sequence[Sample], warm_s: float) -> Window:
    """Open loop: from `warm_s` to the last time a request was due."""
    rule = f"schedule/1 warm_s={warm_s:g}"
    due = [s.scheduled for s in samples]
    if not due or max(due) <= warm_s * 1e9:
        return Window(0, 0, rule, False, "the schedule ends before the warm-up does")
    return Window(int(warm_s * 1e9), max(due), rule, True)


def _end(sample: Sample) -> int:
    assert sample.end is not None  # noqa: S101 - only ended ones are looked at
    return sample.end


def arrivals(samples: Sequence[Sample]) -> list[tuple[int, int]]:
    """(arrival, tokens) of all counted chunks, in time order."""
    found = [(c.hi, c.tokens) for s in samples for c in s.chunks if c.tokens is not None]
    return sorted(found)


def tokens_between(times: Sequence[int], total: Sequence[int], start: int, end: int) -> int:
    """Tokens that came in (start, end]; `total[i]` is the sum before the i-th arrival."""
    return total[bisect_right(times, end)] - total[bisect_right(times, start)]


def running_total(found: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Times, and the sum of tokens before each of them, with the whole sum at the end."""
    total = [0]
    for _, tokens in found:
        total.append(total[-1] + tokens)
    return [t for t, _ in found], total


def _cut_change(samples: Sequence[Sample], window: Window) -> Window:
    times, total = running_total(arrivals(samples))
    edges = [window.start + window.ns * i // TILES for i in range(TILES + 1)]
    tokens = [tokens_between(times, total, a, b) for a, b in pairwise(edges)]
    if sum(tokens) < TILES * TILE_TOKENS:
        rule = f"{window.rule}, too short to look for a change"
        return Window(window.start, window.end, rule, True)
    for cut in range(TILES // 2 + 1):
        if _alike(tokens[cut], tokens[cut + 1 :]):
            rule = f"{window.rule}, {TILES} stretches"
            return Window(edges[cut], window.end, rule, True, cut_tiles=cut)
    why = f"tokens per stretch never settle: {tokens}"
    return Window(window.start, window.end, window.rule, False, why)


def _alike(first: int, rest: Sequence[int]) -> bool:
    middle = statistics.median(rest)
    spread = 1.4826 * statistics.median(abs(r - middle) for r in rest)
    return abs(first - middle) <= max(ALIKE * middle, 3 * spread)
