"""What every transport promises; the contract suite in tests/contract holds them to it."""

from __future__ import annotations

from typing import Protocol

from ddops.command import Cmd
from ddops.model import Result

#: Output kept per stream and call; what is beyond is dropped and the result says `truncated`.
DEFAULT_LIMIT = 1 << 20
#: Seconds a plain command may take, connecting not counted.
DEFAULT_DEADLINE_S = 30.0


class Transport(Protocol):
    """Runs commands on one host. Safe to use from several threads.

    `run` returns whatever the command answered, non-zero statuses too. It raises
    `UnreachableError` (nothing ran), `HostKeyError` (nothing ran), `DeadlineExceeded` or
    `TransportLost` (what ran is unknown). The deadline is enforced outside the library that
    does the transfer, and a call past it never blocks the caller any longer.
    """

    @property
    def host(self) -> str:
        """The inventory's name of the host, for messages."""
        ...

    def run(
        self, command: Cmd, *, deadline_s: float = DEFAULT_DEADLINE_S, limit: int = DEFAULT_LIMIT
    ) -> Result: ...

    def close(self) -> None: ...
