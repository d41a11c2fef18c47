"""Asks every host again and again, each in a thread of its own: one that hangs delays no other.

What bounds a call is the transport's deadline. A host that does not answer is asked ever more
rarely, and at once again when somebody wants it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ddops.board.fleet import Heard, Kind
from ddops.board.model import DRIFT_EVERY_S, EVERY_S
from ddops.command import Redactor
from ddops.errors import DdopsError

#: The longest pause between two tries.
MOST_S = 60.0
BOOKS_EVERY_S = 5.0


class Watch(Protocol):
    """One host that can be asked. `look` and `drift` raise DdopsError when no answer came."""

    @property
    def name(self) -> str: ...

    def look(self) -> dict[str, Any]:
        """One look, as the host printed it."""
        ...

    def drift(self) -> dict[str, Any]:
        """Rows of drift; takes seconds."""
        ...

    def close(self) -> None: ...


def pause(failures: int, draw: float, every_s: float = EVERY_S) -> float:
    """Seconds until the next try; `draw` in 0..1 spreads hosts that failed together."""
    if failures == 0:
        return every_s * (0.95 + 0.1 * draw)
    return min(MOST_S, every_s * 2.0 ** min(failures - 1, 10)) * (0.75 + 0.5 * draw)


class Poller:
    """Threads that ask; what they hear goes to `tell`, in any thread, redacted."""

    def __init__(
        self,
        watches: Sequence[Watch],
        read_books: Callable[[], dict[str, Any]],
        tell: Callable[[Heard], None],
        redactor: Redactor,
        *,
        every_s: float = EVERY_S,
        books_every_s: float = BOOKS_EVERY_S,
    ) -> None:
        self._books_every_s = books_every_s
        self._lanes = {w.name: _Lane(w, self, every_s) for w in watches}
        self._read_books = read_books
        self._tell = tell
        self._redactor = redactor
        self.stopping = threading.Event()
        self._books_now = threading.Event()

    def start(self) -> None:
        for lane in self._lanes.values():
            lane.start()
        threading.Thread(target=self._keep_reading, name="board-books", daemon=True).start()

    def look_now(self, host: str) -> None:
        """Ask this host, and for its drift, at once."""
        if host in self._lanes:
            self._lanes[host].hurry()
        self._books_now.set()

    def stop(self) -> None:
        """Ask nobody any more. Waits for nobody: a thread that hangs ends with the program."""
        self.stopping.set()
        self._books_now.set()
        for lane in self._lanes.values():
            lane.end()

    def heard(self, host: str, kind: Kind, payload: dict[str, Any]) -> None:
        if self.stopping.is_set():
            return
        clean = self._redactor.tree(payload)
        self._tell(Heard(time.time(), host, kind, clean if isinstance(clean, dict) else {}))

    def _keep_reading(self) -> None:
        waits = [1.0, 2.0]  # the first readings know of no server start yet
        last: dict[str, Any] | None = None
        while not self.stopping.is_set():
            answer = _answer(self._read_books)
            if answer is not last:  # nobody has written meanwhile
                self.heard("", Kind.BOOKS, answer)
            last = answer
            self._books_now.wait(waits.pop(0) if waits else self._books_every_s)
            self._books_now.clear()


class _Lane:
    """One host's thread, and now and then a second one that looks for drift."""

    def __init__(self, watch: Watch, poller: Poller, every_s: float) -> None:
        self._watch = watch
        self._poller = poller
        self._every_s = every_s
        self._wake = threading.Event()
        self._drift_due = 0.0
        self._drifting = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._main, name=f"board-{self._watch.name}", daemon=True).start()

    def hurry(self) -> None:
        self._drift_due = 0.0
        self._wake.set()

    def end(self) -> None:
        self._wake.set()
        self._watch.close()

    def _main(self) -> None:
        failures = 0
        draw = random.Random(self._watch.name).random  # noqa: S311  spreads hosts, guards nothing
        while not self._poller.stopping.is_set():
            answer = _answer(self._watch.look)
            failed = "error" in answer
            failures = failures + 1 if failed else 0
            kind = Kind.ERROR if failed else Kind.LOOK
            self._poller.heard(self._watch.name, kind, answer)
            if not failed and time.monotonic() >= self._drift_due:
                self._drift_due = time.monotonic() + DRIFT_EVERY_S * (0.9 + 0.2 * draw())
                self._look_for_drift()
            self._wake.wait(pause(failures, draw(), self._every_s))
            self._wake.clear()

    def _look_for_drift(self) -> None:
        """Beside the looks: hashing an engine's files must not make them late."""
        if not self._drifting.acquire(blocking=False):
            return  # the last one is not done yet

        def body() -> None:
            try:
                self._poller.heard(self._watch.name, Kind.DRIFT, _answer(self._watch.drift))
            finally:
                self._drifting.release()

        name = f"board-drift-{self._watch.name}"
        threading.Thread(target=body, name=name, daemon=True).start()


def _answer(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was answered, or why nothing was: a thread that ended would look like a silent host."""
    try:
        return ask()
    except DdopsError as error:
        return {"error": f"{error.what}{': ' + error.why if error.why else ''}"}
    except Exception as error:  # the thread's last boundary; it shows as this host's error
        return {"error": f"a fault in ddops itself: {type(error).__name__}: {error}"}
