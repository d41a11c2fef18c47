"""The one error tree, and the exit code of each branch.

    DdopsError                      1   failed
    ├── CommandFailed               1   a remote or local command answered non-zero
    ├── GateFailed                  1   a started engine did not prove itself
    ├── UsageError                  2   wrong arguments
    │   └── ConfigError             2   a file people write is wrong (file, line, key)
    ├── UnreachableError            3   no connection, so nothing is known
    │   ├── HostKeyError            3   the host is not the one that was pinned
    │   ├── DeadlineExceeded        3   the call did not return in time: outcome unknown
    │   └── TransportLost           3   the connection broke during a call: outcome unknown
    ├── RefusedError                4   a check or a preflight said no; nothing was changed
    ├── RolledBackError             5   failed, and the old state is back
    ├── RollbackFailedError         6   failed, and the old state is not back
    ├── LockHeldError               7   somebody else is at work on the host
    ├── PendingError                8   drift, or changes that a dry run found with --exit-code
    ├── PartialError                9   some hosts did it, others did not
    └── Interrupted               130   stopped by the user

Every error says what happened, why, and one command or action to try next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What a caller's shell sees. Anything else is a failure too."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    ROLLED_BACK = 5
    ROLLBACK_FAILED = 6
    LOCK_HELD = 7
    PENDING = 8
    PARTIAL = 9
    INTERRUPTED = 130


class DdopsError(Exception):
    """Root of all errors a user is meant to read: `what`, `why`, `next`."""

    exit_code = ExitCode.FAILED

    def __init__(self, what: str, *, why: str = "", next: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next = next

    def lines(self) -> list[str]:
        """The message as the command line prints it, one thing a line."""
        out = [self.what]
        if self.why:
            out.append(f"why: {self.why}")
        if self.next:
            out.append(f"next: {self.next}")
        return out

    def __str__(self) -> str:
        return "; ".join(self.lines())


class CommandFailed(DdopsError):
    """A command answered non-zero. `rc` is its status, `stderr` its last words (bounded)."""

    def __init__(
        self, what: str, *, rc: int, stderr: str = "", why: str = "", next: str = ""
    ) -> None:
        super().__init__(what, why=why or stderr.strip()[-2000:], next=next)
        self.rc = rc
        self.stderr = stderr


class GateFailed(DdopsError):
    """A started engine did not prove itself. `gate` is its name, G0 to G6."""

    def __init__(self, what: str, *, gate: str, why: str = "", next: str = "") -> None:
        super().__init__(what, why=why, next=next)
        self.gate = gate


class UsageError(DdopsError):
    """The command line asks for something that cannot be."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in a file: where, what, and the nearest right word."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.key + ': ' if self.key else ''}{self.message}"


class ConfigError(UsageError):
    """A file people write is wrong. Carries every problem found, not the first alone."""

    def __init__(self, problems: Sequence[Problem], *, next: str = "") -> None:
        first = str(problems[0])
        rest = [str(p) for p in problems[1:]]
        super().__init__(first, why="; ".join(rest), next=next)
        self.problems = tuple(problems)

    def lines(self) -> list[str]:
        out = [str(p) for p in self.problems]
        return [*out, f"next: {self.next}"] if self.next else out


class UnreachableError(DdopsError):
    """No connection: the host's state is unknown, never "down"."""

    exit_code = ExitCode.UNREACHABLE


class HostKeyError(UnreachableError):
    """The host shows another key than the pinned one, or none is pinned."""


class DeadlineExceeded(UnreachableError):
    """A remote call did not return in time. What it did is unknown."""


class TransportLost(UnreachableError):
    """The connection broke during a call. What the call did is unknown."""


class RefusedError(DdopsError):
    """A check or a preflight said no. Nothing was changed."""

    exit_code = ExitCode.REFUSED


class RolledBackError(DdopsError):
    """The deploy failed and the previous release serves again, gated."""

    exit_code = ExitCode.ROLLED_BACK


class RollbackFailedError(DdopsError):
    """The deploy failed and so did the way back. A person is needed."""

    exit_code = ExitCode.ROLLBACK_FAILED


class LockHeldError(DdopsError):
    """Somebody else holds the host's lock."""

    exit_code = ExitCode.LOCK_HELD


class PendingError(DdopsError):
    """Changes or drift are pending, and the caller asked to be told by exit code."""

    exit_code = ExitCode.PENDING


class PartialError(DdopsError):
    """Some hosts did it, others did not."""

    exit_code = ExitCode.PARTIAL


class Interrupted(DdopsError):
    """Stopped by the user; what was half done has been undone or is named."""

    exit_code = ExitCode.INTERRUPTED
