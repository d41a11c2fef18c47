"""The hosts of one engine, deployed side by side: they go on together or back together.

Each host has its own lock, state machine and thread. They meet where one must not be ahead of the
others: nothing is stopped before all are staged, no rank starts before all have stopped, none is
committed before rank 0 has answered right for all. A host that fails fails the party: the others
hear it where they meet, and wherever they would look whether to stop.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

from ddops.deploy.stop import Stop
from ddops.errors import DdopsError, GateFailed

POLL_S = 0.2


class Phase:
    """One way, forth or back, of so many hosts."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._values: dict[str, dict[str, Hashable]] = {}
        self._failed: tuple[str, BaseException] | None = None

    def meet(self, host: str, where: str, value: Hashable = None) -> list[Hashable]:
        """Wait until all are here; what each brought. Raises what `check` raises."""
        with self._changed:
            here = self._values.setdefault(where, {})
            here[host] = value
            self._changed.notify_all()
            while len(here) < self._size:
                self._check(host)
                self._changed.wait(POLL_S)
        return list(here.values())

    def fail(self, host: str, error: BaseException) -> None:
        """This host does not come any more; the first one to say so is who failed."""
        with self._changed:
            self._failed = self._failed or (host, error)
            self._changed.notify_all()

    def check(self, host: str) -> None:
        """Raise GateFailed, with the exit code of what happened, when another host failed."""
        with self._changed:
            self._check(host)

    def _check(self, host: str) -> None:
        if self._failed is None or self._failed[0] == host:
            return
        other, cause = self._failed
        what = cause.what if isinstance(cause, DdopsError) else str(cause) or type(cause).__name__
        error = GateFailed(
            f"{host}: {other} is of the same engine, and failed",
            gate="nodes",
            why=what,
            next=f"ddops status {other}",
        )
        if isinstance(cause, DdopsError):
            error.exit_code = cause.exit_code
        raise error


@dataclass(frozen=True, slots=True)
class Party:
    """All hosts of one engine. `back` is used by those that have touched something."""

    hosts: tuple[str, ...]
    forth: Phase = field(init=False)
    back: Phase = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "forth", Phase(len(self.hosts)))
        object.__setattr__(self, "back", Phase(len(self.hosts)))

    def agree(self, host: str, what: str, value: Hashable) -> None:
        """Raise RefusedError's kind of refusal where the hosts would do different things."""
        found = self.forth.meet(host, what, value)
        if len(set(found)) > 1:
            raise DdopsError(
                f"{host}: the hosts of one engine would not have the same {what}",
                why=", ".join(str(v)[:12] for v in found),
                next="ddops status, then a deploy: it makes them alike",
            )

    def leave(self, host: str, error: BaseException) -> None:
        """This host is out of it, whichever way the others are going."""
        self.forth.fail(host, error)
        self.back.fail(host, error)


class PartyStop(Stop):
    """A wish to stop, of the user or of another host of the engine."""

    def __init__(self, wish: Stop, phase: Phase, host: str) -> None:
        super().__init__()
        self._wish, self._phase, self._host = wish, phase, host

    def ask(self) -> None:
        self._wish.ask()

    @property
    def asked(self) -> bool:
        return self._wish.asked

    def check(self, where: str) -> None:
        self._phase.check(self._host)
        self._wish.check(where)

    def wait(self, seconds: float) -> bool:
        return self._wish.wait(seconds)
