"""The user's wish to stop: the first Ctrl-C finishes the safe step, the second ends at once."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from ddops.errors import Interrupted


class Stop:
    """Set from a signal handler or by a caller; looked at between steps."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._noted = False

    def note(self) -> None:
        """`asked` from now on. All that a signal handler may do: an event's lock may be held by
        the very line that it interrupts."""
        self._noted = True

    def ask(self) -> None:
        self._noted = True
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._noted

    def check(self, where: str) -> None:
        """Raise `Interrupted` when a stop was asked for."""
        if self.asked:
            raise Interrupted(f"stopped by the user {where}")

    def wait(self, seconds: float) -> bool:
        """Sleep unless a stop comes; returns whether it came."""
        return self._asked.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Sleep before the next try for a lock; raise `Interrupted` as soon as a stop comes."""
        self.wait(seconds)
        self.check("while it waited for the lock")


@contextmanager
def on_interrupt(stop: Stop, tell: Callable[[str], None]) -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into `stop`; a second one ends the block at once.

    A signal that whoever started us had us ignore stays ignored: `nohup`, a shell's background job.
    A terminal that closes may send its SIGHUP twice, and behind it nobody asks for anything: only
    the first counts, and it is never the second wish.
    """
    words = "stopping: the step at work is ended, what is half done goes back; again: at once"

    def heard_of() -> None:
        stop.ask()  # ends what waits
        tell(words)

    def handle(signum: int, _frame: FrameType | None) -> None:
        if stop.asked:
            if signum == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        stop.note()
        with suppress(RuntimeError):  # no thread to be had: the wish is noted all the same
            _thread.start_new_thread(heard_of, ())

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [s for s in wanted if signal.getsignal(s) != signal.SIG_IGN]
    old = {s: signal.signal(s, handle) for s in heard}
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped at once",
            why="the hosts are left as they were at this moment, their locks too",
            next="ddops status, then the same again: it finds the holder of the lock gone",
        ) from None
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)
