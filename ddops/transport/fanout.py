"""The same work on many hosts, side by side and bounded."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def fan_out(
    items: Iterable[T],
    work: Callable[[T], R],
    *,
    parallel: int = 10,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[tuple[T, R | Exception]]:
    """Each item with what `work` returned or the exception it raised, in the items' order.

    One host's failure is an outcome beside the others', never the end of all. `KeyboardInterrupt`
    (and any other non-`Exception`) is raised at once: nothing new starts, and what is running is
    left to end by its own deadline in daemon threads. `progress` hears, in the caller's thread, how
    many of how many are done.
    """
    if parallel < 1:
        raise ValueError("parallel must be at least 1")
    todo = list(items)
    outcomes: dict[int, R | Exception] = {}
    waiting: queue.SimpleQueue[tuple[int, T]] = queue.SimpleQueue()
    for entry in enumerate(todo):
        waiting.put(entry)
    ended: queue.SimpleQueue[tuple[int, R | BaseException]] = queue.SimpleQueue()
    stop = threading.Event()

    def worker() -> None:
        while not stop.is_set():
            try:
                index, item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((index, work(item)))
            except BaseException as error:  # handed to the caller, who decides
                ended.put((index, error))

    for number in range(min(parallel, len(todo))):
        threading.Thread(target=worker, name=f"fan-out-{number}", daemon=True).start()
    try:
        while len(outcomes) < len(todo):
            index, outcome = ended.get()
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
            outcomes[index] = outcome
            progress(len(outcomes), len(todo))
    finally:
        stop.set()
    return [(item, outcomes[index]) for index, item in enumerate(todo)]
