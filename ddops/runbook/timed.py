"""A step in the time it has. What does not end is asked to stop, then left and never undone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ddops.clock import Clock
from ddops.deploy import Stop
from ddops.errors import DeadlineExceeded

T = TypeVar("T")
#: What a step that was asked to stop may take to put things back.
GRACE_S = 60.0
_LOOK_S = 0.2


class Overdue(DeadlineExceeded):
    """The time was over. `left` says that the step is still at work: nothing may be done beside
    it, so the run ends here."""

    def __init__(self, what: str, *, why: str, left: bool) -> None:
        super().__init__(what, why=why, next="ddops runbook list")
        self.left = left


class _Work(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.values: list[T] = []
        self.error: BaseException | None = None
        self.done = threading.Event()

    def __call__(self) -> None:
        try:
            self.values.append(self._work())
        except BaseException as error:
            self.error = error  # raised again where it was asked for
        finally:
            self.done.set()


def in_time(
    work: Callable[[], T], *, limit_s: float, whole: Stop, stop: Stop, clock: Clock, what: str,
    grace_s: float = GRACE_S,
) -> T:  # fmt: skip
    """Run `work` in a thread. The wish to stop of the `whole` run is handed on to its `stop`."""
    one = _Work(work)
    thread = threading.Thread(target=one, daemon=True, name=f"step {what}")
    thread.start()
    end = clock.monotonic() + limit_s
    while not one.done.wait(_LOOK_S):
        if whole.asked:
            stop.ask()
        if clock.monotonic() >= end:
            stop.ask()
            _last_chance(one, what, limit_s, grace_s)
    if one.error is not None:
        raise one.error
    return one.values[0]


def _last_chance(one: _Work[T], what: str, limit_s: float, grace_s: float) -> None:
    ended = one.done.wait(grace_s)
    how = f"it then ended: {one.error or 'done'}" if ended else (
        f"it did not stop within {grace_s:g} s more; what it did is not known")  # fmt: skip
    raise Overdue(f"{what}: not done within {limit_s:g} s", why=how, left=not ended)
