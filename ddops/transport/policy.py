"""How hard to try to connect, and how many at once. Never applies to running a command."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ddops.errors import UnreachableError

T = TypeVar("T")


class TransientConnectError(UnreachableError):
    """Connecting failed in a way that another try may mend (not a host key, not a login)."""


@dataclass(frozen=True, slots=True, eq=False)
class ConnectPolicy:
    """Bounds on connecting, shared by every transport that is given the same policy.

    `concurrent` attempts run at once, apart from any bound on work: a fleet that reconnects
    together is what makes an sshd drop connections. `timeout_s` bounds one TCP connect,
    `attempt_s` one whole attempt (hops, handshake, login) whatever paramiko does.
    The wait before try n is `backoff_s * 2**(n-1)`, times 0.5 to 1.5.
    """

    concurrent: int = 10
    attempts: int = 3
    timeout_s: float = 10.0
    attempt_s: float = 30.0
    backoff_s: float = 0.25
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    _slots: threading.BoundedSemaphore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.concurrent < 1 or self.attempts < 1:
            raise ValueError("a connect policy needs at least one attempt at a time")
        object.__setattr__(self, "_slots", threading.BoundedSemaphore(self.concurrent))

    def connect(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds; only `TransientConnectError` is tried again."""
        for number in range(1, self.attempts + 1):
            try:
                with self._slots:
                    return attempt()
            except TransientConnectError as error:
                if number == self.attempts:
                    if number > 1:
                        error.why = f"{error.why} ({number} tries)"
                    raise
            # The slot is free while this one waits, so a dead host does not starve live ones.
            self.sleep(self.backoff_s * 2 ** (number - 1) * (0.5 + self.random()))
        raise AssertionError("unreachable: the last attempt returns or raises")
