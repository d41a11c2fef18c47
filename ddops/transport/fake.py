"""A host in memory, for tests of everything above: scripted answers, files, and faults."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ddops.command import Cmd
from ddops.errors import DdopsError, HostKeyError, UnreachableError
from ddops.model import Result
from ddops.transport.base import DEFAULT_DEADLINE_S, DEFAULT_LIMIT
from ddops.transport.common import Bounded, late, lost
from ddops.transport.fakefs import FakeError, FakeFiles

#: What a handler answers: a whole result, standard output alone, or an error to raise.
Answer = Result | bytes | str | DdopsError
Handler = Callable[[Cmd], Answer]
Match = str | Callable[[Cmd], bool]


class Hang(DdopsError):
    """As an answer: the command never ends, so the call runs into its deadline (at once)."""

    def __init__(self) -> None:
        super().__init__("hangs")


class FakeTransport:
    """Answers from handlers, then from its files, then `127 not found`; records every call.

    Faults count calls from 1. A call that dies or hangs `after` has had its effect; the caller
    cannot tell, as with a real host.
    """

    def __init__(self, host: str = "fake") -> None:
        self._host = host
        self._lock = threading.RLock()
        self._handlers: list[tuple[Callable[[Cmd], bool], Handler]] = []
        self._faults: dict[int, tuple[str, bool]] = {}
        self._refusal: UnreachableError | None = None
        self.files = FakeFiles()
        self.calls: list[Cmd] = []
        self.closed = False

    @property
    def host(self) -> str:
        return self._host

    def on(self, match: Match, answer: Answer | Handler) -> FakeTransport:
        """Answer commands by the name of their program or by a predicate; the latest wins."""
        wanted = (lambda c: c.argv[0] == match) if isinstance(match, str) else match
        handler = answer if callable(answer) else (lambda _: answer)
        with self._lock:
            self._handlers.insert(0, (wanted, handler))
        return self

    def die_at(self, call: int, *, after: bool = False) -> None:
        """Lose the connection at that call, before or after its effect."""
        self._faults[call] = ("die", after)

    def hang_at(self, call: int, *, after: bool = False) -> None:
        """Let that call run into its deadline, before or after its effect; takes no time."""
        self._faults[call] = ("hang", after)

    def unreachable(self, why: str = "connection refused") -> None:
        """Refuse every call from now on, until `heal`."""
        self._refusal = UnreachableError(f"{self._host}: cannot connect", why=why)

    def wrong_host_key(self) -> None:
        """Show a key that is not the pinned one, until `heal`."""
        self._refusal = HostKeyError(
            f"{self._host}: the host key has changed", next=f"ddops host trust {self._host}"
        )

    def heal(self) -> None:
        """Take back every fault that has not happened yet."""
        self._refusal = None
        self._faults.clear()

    def run(
        self, command: Cmd, *, deadline_s: float = DEFAULT_DEADLINE_S, limit: int = DEFAULT_LIMIT
    ) -> Result:
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self.calls.append(command)
            fault, after = self._faults.get(len(self.calls), ("", False))
            if fault and not after:
                raise self._fault(fault, command, deadline_s)
            handler = next((h for match, h in self._handlers if match(command)), None)
            answer = self._files_answer(command) if handler is None else None
        # Outside the lock: a handler may take its time or call back.
        if handler is not None:
            answer = handler(command)
        if fault:
            raise self._fault(fault, command, deadline_s)
        if isinstance(answer, Hang):
            raise late(self._host, command, deadline_s)
        if isinstance(answer, DdopsError):
            raise answer
        return _bounded(answer, limit) if answer is not None else _not_found(command)

    def close(self) -> None:
        self.closed = True

    def _files_answer(self, command: Cmd) -> Answer | None:
        try:
            return self.files.answer(command)
        except FakeError as error:
            return Result(error.rc, b"", f"{error.stderr}\n".encode(), 0.0)

    def _fault(self, fault: str, command: Cmd, deadline_s: float) -> UnreachableError:
        if fault == "die":
            return lost(self._host, command, "made to die")
        return late(self._host, command, deadline_s)


def _bounded(answer: Result | bytes | str, limit: int) -> Result:
    if not isinstance(answer, Result):
        data = answer.encode("utf-8", "surrogateescape") if isinstance(answer, str) else answer
        answer = Result(0, data, b"", 0.0)
    out, err = Bounded(limit), Bounded(limit)
    out.feed(answer.stdout)
    err.feed(answer.stderr)
    cut = out.truncated or err.truncated or answer.truncated
    return Result(answer.rc, out.value(), err.value(), answer.duration_s, cut)


def _not_found(command: Cmd) -> Result:
    return Result(127, b"", f"sh: {command.argv[0]}: not found\n".encode(errors="replace"), 0.0)
