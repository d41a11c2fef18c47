"""What the transports share: bounded output, deadlines outside the library, their errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ddops.command import Cmd
from ddops.errors import DeadlineExceeded, TransportLost

T = TypeVar("T")
_SHOWN = 120
#: sshd's own default for MaxSessions; one more is refused.
MAX_SESSIONS = 10


class Bounded:
    """Keeps the first `limit` bytes it is fed and counts the rest away."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.truncated = False

    def feed(self, chunk: bytes) -> None:
        room = self._limit - len(self._data)
        self._data += chunk[:room]
        if len(chunk) > room:
            self.truncated = True

    def value(self) -> bytes:
        return bytes(self._data)


class NotStartedError(Exception):
    """No session could be opened, so nothing ran."""


class BrokenError(Exception):
    """The session ended without a status: what ran is unknown."""


class OverdueError(Exception):
    """The work had not ended in time; it may still be going on."""


class Job(Generic[T]):
    """Work in a daemon thread, so that whoever waits can stop waiting.

    The thread itself cannot be stopped; the caller breaks whatever it is blocked on.
    """

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._work = work
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # handed to the waiting thread, whatever it is
            self._error = error
        finally:
            self._done.set()

    def within(self, seconds: float) -> T:
        """The work's value or its exception; `OverdueError` when neither came in time."""
        if not self._done.wait(max(0.0, seconds)):
            raise OverdueError
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


def wire(command: Cmd) -> bytes:
    """The command as it goes to the shell; words keep their undecodable bytes."""
    return command.render().encode("utf-8", "surrogateescape")


def brief(command: Cmd) -> str:
    """The command for a message: one line, short, printable."""
    text = command.render().encode("utf-8", "backslashreplace").decode()
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def late(host: str, command: Cmd, deadline_s: float) -> DeadlineExceeded:
    """The error of a call past its deadline."""
    return DeadlineExceeded(
        f"{host}: no end within {deadline_s:g} s: {brief(command)}",
        why="the host or the command hangs; whether the command took effect is unknown",
        next=f"ddops status {host}",
    )


def lost(host: str, command: Cmd, why: str) -> TransportLost:
    """The error of a call whose connection broke."""
    return TransportLost(
        f"{host}: the connection broke during: {brief(command)}",
        why=f"{why}; whether the command took effect is unknown",
        next=f"ddops status {host}",
    )
