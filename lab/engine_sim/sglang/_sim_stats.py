"""Counters, histograms and the prefix cache of the stand-in; what `/metrics` is made of."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence as Items

TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
ITL = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1,
    0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8,
)  # fmt: skip
E2E = (*TTFT, 600, 1200, 1800, 2400)
STREAMING = ("true", "false")  # upstream's label `is_streaming`
WINDOW_S = 1.0  # over which throughput is measured
CACHE_LIMIT = 1 << 20  # remembered prefixes; then the cache starts afresh, as after an eviction


class Histogram:
    """Counts by upper bound; the caller holds the lock."""

    def __init__(self, bounds: Items[float]) -> None:
        self.bounds = tuple(float(b) for b in bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        place = sum(b < value for b in self.bounds)
        self.counts[place] += times
        self.total += value * times


class Stats:
    """Everything counted since the start. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = 0
        self.queued = 0
        self.prompt_tokens = dict.fromkeys(STREAMING, 0)
        self.generation_tokens = dict.fromkeys(STREAMING, 0)
        self.requests = dict.fromkeys(STREAMING, 0)
        self.cached_tokens = 0
        self.aborted = 0
        self.verify_calls = 0
        self.verify_tokens = 0
        self.correct_drafts = 0
        self.steps = 0
        self.ttft = {s: Histogram(TTFT) for s in STREAMING}
        self.itl = Histogram(ITL)
        self.e2e = {s: Histogram(E2E) for s in STREAMING}
        self._recent: deque[tuple[float, int]] = deque()

    def tokens(self, count: int) -> None:
        """Notes tokens made just now; the caller holds the lock."""
        now = time.monotonic()
        self._recent.append((now, count))
        while self._recent and self._recent[0][0] < now - WINDOW_S:
            self._recent.popleft()

    def throughput(self) -> float:
        """Tokens a second over the last second; the caller holds the lock."""
        since = time.monotonic() - WINDOW_S
        return sum(n for at, n in self._recent if at >= since) / WINDOW_S

    def accept_length(self) -> float:
        """Mean tokens committed by a verify step, 0 before the first."""
        return self.verify_tokens / self.verify_calls if self.verify_calls else 0.0


class PrefixCache:
    """Remembers prompts by prefix, in whole pages, and says how much of one was seen before."""

    def __init__(self, page: int) -> None:
        self._page = max(1, page)
        self._lock = threading.Lock()
        self._seen: set[int] = set()

    def match(self, ids: Items[int]) -> int:
        """Tokens found, and the prompt remembered. The last token is always computed."""
        hit, key, keys = 0, 0, []
        for place, token in enumerate(ids, 1):
            key = hash((key, token))
            if place % self._page == 0:
                keys.append(key)
                if place < len(ids) and hit == place - self._page and key in self._seen:
                    hit = place
        with self._lock:
            if len(self._seen) > CACHE_LIMIT:
                self._seen.clear()
            self._seen.update(keys)
        return hit

    def flush(self) -> None:
        with self._lock:
            self._seen.clear()
