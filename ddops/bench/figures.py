"""Figures of one run. Pure. Every definition: docs/explanation/numbers.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ddops.bench.answer import Chunk, Sample
from ddops.bench.stats import percentile, percentile_interval
from ddops.bench.window import Window, arrivals, running_total, tokens_between

MS = 1e6
#: Tiles of one peak: the busiest of these stretches of the window.
PEAK_TILES = 10


def ttft_ns(sample: Sample) -> int | None:
    """From the first byte sent to the first chunk whose token count rises, any channel."""
    first = sample.first
    return None if first is None or sample.sent is None else first.hi - sample.sent


def first_answer_ns(sample: Sample) -> int | None:
    """The same to the first token outside the reasoning; None when there was none."""
    first = sample.first_answer
    return None if first is None or sample.sent is None else first.hi - sample.sent


def tpot_ns(sample: Sample) -> float | None:
    """(last token - first token) / tokens after the first chunk."""
    first, last = sample.first, sample.last
    if first is None or last is None or not sample.counted or sample.tokens is None:
        return None
    later = sum(c.tokens or 0 for c in sample.chunks[1:])
    return (last.hi - first.hi) / later if later > 0 else None


def chunk_gaps_ns(sample: Sample) -> list[int]:
    """Time between chunks that brought tokens: what a reader of the stream sees."""
    return [b.hi - a.hi for a, b in pairwise(sample.chunks)]


def per_token_ns(sample: Sample) -> list[tuple[float, int]]:
    """(gap / tokens of the chunk that ends it, that many tokens)."""
    if not sample.counted:
        return []
    return [
        ((b.hi - a.hi) / b.tokens, b.tokens) for a, b in pairwise(sample.chunks) if b.tokens
    ]  # fmt: skip


def uncertainty_ns(sample: Sample) -> int | None:
    """The widest bound on when it was sent or one of its tokens came."""
    widths = [c.hi - c.lo for c in sample.chunks]
    if sample.sent is not None and sample.sent_by is not None:
        widths.append(sample.sent_by - sample.sent)
    return max(widths, default=None)


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens a verify step commits: a ratio of sums over the window, with its histogram.

    `source`: `stream` (running step counts in the stream), `steps` (one chunk for each step, the
    last one of each request left out), `requests` (final counts of whole requests).
    """

    tokens: int
    steps: int
    source: str
    histogram: Mapping[int, int] = field(default_factory=dict)
    #: 1 + accepted drafts a step, from the server's final counts: a cross-check.
    accepted: float | None = None

    @property
    def length(self) -> float:
        return self.tokens / self.steps


def commit_of(samples: Sequence[Sample], window: Window) -> Commit | None:
    """None where nothing was verified, or the server does not tell."""
    whole = [s for s in samples if s.ok and window.whole(s) and s.verify_ct]
    streamed = _streamed(samples, window)
    if streamed is not None:
        return streamed
    if not whole:
        return None
    verify = sum(s.verify_ct or 0 for s in whole)
    correct = [s.correct for s in whole]
    accepted = None if None in correct else 1 + sum(c or 0 for c in correct) / verify
    if all(s.counted and len(s.chunks) == (s.verify_ct or 0) + 1 for s in whole):
        deltas = [c.tokens or 0 for s in whole for c in s.chunks[1:-1]]
        if deltas:
            return Commit(sum(deltas), len(deltas), "steps", Counter(deltas), accepted)
    tokens = sum((s.tokens or 0) - 1 for s in whole)
    histogram: Counter[int] = Counter()
    for sample in whole:
        for drafts, steps in enumerate(sample.histogram):
            histogram[drafts + 1] += steps
    return Commit(tokens, verify, "requests", +histogram, accepted)


def _streamed(samples: Iterable[Sample], window: Window) -> Commit | None:
    """From chunks that carry the running count of verify steps; each request's last is dropped."""
    tokens = steps = 0
    histogram: Counter[int] = Counter()
    for sample in samples:
        if not sample.ok:
            continue
        for a, b in pairwise(sample.chunks[:-1]):
            if a.verify is None or b.verify is None or b.tokens is None or not window.holds(b.hi):
                continue
            tokens, steps = tokens + b.tokens, steps + b.verify - a.verify
            if b.verify - a.verify == 1:
                histogram[b.tokens] += 1
    return Commit(tokens, steps, "stream", histogram) if steps > 0 else None


@dataclass(frozen=True, slots=True)
class Figures:
    """The steady window's numbers; None is "not measured"."""

    output_tokens: int | None
    output_tps: float | None
    tps_rule: str
    peak_tps: float | None
    request_tps: float
    in_flight: float
    decoding: float
    #: Most requests that were between their first and last token at once; None for short answers.
    at_once: int | None
    commit: Commit | None
    spread: Mapping[str, float | None]
    more: Mapping[str, object]


def figures(samples: Sequence[Sample], window: Window, *, closed: bool) -> Figures:
    """All numbers of a window that is not empty."""
    seconds = window.ns / 1e9
    ok = [s for s in samples if s.ok]
    # An open loop is judged by when requests were due: those still under way at its end are the
    # slow ones, and leaving them out would hide what the loop is there to show.
    inside = [s for s in ok if (window.whole(s) if closed else window.due(s))]
    ended = [s for s in ok if window.holds(s.end)]
    counted = bool(ok) and all(s.counted for s in ok)
    peak = None
    if counted:
        times, total = running_total(arrivals(ok))
        tokens: int | None = tokens_between(times, total, window.start, window.end)
        edges = [window.start + window.ns * i // PEAK_TILES for i in range(PEAK_TILES + 1)]
        best = max(tokens_between(times, total, a, b) for a, b in pairwise(edges))
        peak = best / (seconds / PEAK_TILES)
    else:
        known = [s.tokens for s in ended]
        tokens = None if None in known else sum(t or 0 for t in known)
    return Figures(
        output_tokens=tokens,
        output_tps=None if tokens is None else tokens / seconds,
        tps_rule="chunks in the window" if counted else "requests that ended in the window",
        peak_tps=peak,
        request_tps=len(ended) / seconds,
        in_flight=time_weighted([(s.sent, s.end) for s in samples], window),
        decoding=time_weighted([(_hi(s.first), _hi(s.last)) for s in samples], window),
        at_once=_at_once(ok, window),
        commit=commit_of(samples, window),
        spread=_spread(inside, closed=closed),
        more=_more(samples, inside, closed=closed),
    )


def time_weighted(spans: Iterable[tuple[int | None, int | None]], window: Window) -> float:
    """Mean number of spans that are open over the window."""
    covered = 0
    for begin, end in spans:
        if begin is not None:
            stop = window.end if end is None else min(end, window.end)
            covered += max(0, stop - max(begin, window.start))
    return covered / window.ns if window.ns else 0.0


def _at_once(samples: Sequence[Sample], window: Window) -> int | None:
    spans = [(s.first.hi, s.last.hi) for s in samples if s.first is not None and s.last is not None]
    inside = [(a, b) for a, b in spans if b > window.start and a < window.end]
    if not inside or all(a == b for a, b in inside):
        return None  # one chunk an answer: nothing shows what ran beside it
    steps = sorted([(a, 1) for a, _ in inside] + [(b, -1) for _, b in inside])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def _hi(chunk: Chunk | None) -> int | None:
    return None if chunk is None else chunk.hi


def _known(values: Iterable[float | None]) -> list[float]:
    return [float(v) for v in values if v is not None]


def _spread(inside: Sequence[Sample], *, closed: bool) -> dict[str, float | None]:
    """Percentiles in ms; None where the sample cannot carry one."""
    values: dict[str, list[float]] = {
        "ttft": _known(ttft_ns(s) for s in inside),
        "first_answer": _known(first_answer_ns(s) for s in inside),
        "tpot": _known(tpot_ns(s) for s in inside),
        "e2e": [float(s.end - s.sent) for s in inside if s.end is not None and s.sent is not None],
        "chunk_gap": [float(g) for s in inside for g in chunk_gaps_ns(s)],
        "per_token": [v for s in inside for v, n in per_token_ns(s) for _ in range(n)],
    }
    if not closed:
        values["response_ttft"] = [s.first.hi - s.scheduled for s in inside if s.first is not None]
        values["response_e2e"] = [s.end - s.scheduled for s in inside if s.end is not None]
    out: dict[str, float | None] = {}
    for name, found in values.items():
        for q, word in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
            carried = bool(found) and percentile_interval(found, q) is not None
            out[f"{name}_{word}_ms"] = percentile(found, q) / MS if carried else None
        out[f"{name}_mean_ms"] = sum(found) / len(found) / MS if found else None
    return out


def _more(
    samples: Sequence[Sample], inside: Sequence[Sample], *, closed: bool
) -> dict[str, object]:
    late = [s.sent - s.free_at for s in samples if s.sent is not None]
    queue = [s.sent - s.scheduled for s in samples if s.sent is not None]
    widths = [c.hi - c.lo for s in samples for c in s.chunks]
    sends = [s.sent_by - s.sent for s in samples if s.sent is not None and s.sent_by is not None]
    return {
        "percentiles": "type 7; p left out where an order-statistic 95 % bound is open",
        "loop": "closed" if closed else "open",
        "requests_in_window": len(inside),
        "send_delay_p99_ms": percentile(late, 0.99) / MS if late else None,
        "client_queue_p99_ms": percentile(queue, 0.99) / MS if queue else None,
        "arrival_width_p99_ms": percentile(widths, 0.99) / MS if widths else None,
        "send_width_p99_ms": percentile(sends, 0.99) / MS if sends else None,
        "ttft_bounds_p50_ms": _bounds(inside),
        "prompt_tokens": sum(s.prompt_tokens or 0 for s in inside),
        "cached_tokens": sum(s.cached_tokens or 0 for s in inside),
        "replacements": sum(s.replacements for s in samples),
    }


def _bounds(samples: Iterable[Sample]) -> list[float] | None:
    """The median if all was sent as late and came as early as the bounds allow, and the reverse."""
    early, late = [], []
    for s in samples:
        if s.first is not None and s.sent is not None:
            early.append(max(0, s.first.lo - max(s.sent, s.sent_by or s.sent)))
            late.append(s.first.hi - s.sent)
    if not early:
        return None
    return [percentile(early, 0.5) / MS, percentile(late, 0.5) / MS]
