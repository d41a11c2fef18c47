"""What a board with `--write` may do: each is an ordinary command line of ddops."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddops.board.model import Event


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do to one host. A destructive one wants the host's name typed."""

    key: str
    title: str
    effect: str
    words: tuple[str, ...]
    destructive: bool = True

    def argv(self, host: str) -> tuple[str, ...]:
        """The command line behind `ddops`."""
        return tuple(host if w == "HOST" else w for w in self.words)


ACTIONS = (
    Action(
        "B", "Roll back", "the running release is stopped, and the last other one that passed its"
        " gates is started", ("rollback", "HOST", "--yes"),
    ),
    Action(
        "U", "Release a stale lock", "whoever held it loses it; refused while its heart beats",
        ("lock", "release", "HOST", "--stale"),
    ),
    Action("C", "Check", "facts are collected and kept", ("probe", "HOST"), destructive=False),
)  # fmt: skip


def run(
    argv: Sequence[str], host: str, project: str, tell: Callable[[Event], None],
    now: Callable[[], float],
) -> None:  # fmt: skip
    """Run a command line of ours in a thread; what it says on stderr is told line by line."""

    def body() -> None:
        line = f"ddops {' '.join(argv)}"
        tell(Event(now(), host, f"started: {line}"))
        words = [sys.executable, "-m", "ddops", "--project", project, *argv]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            check=False,
        )  # fmt: skip
        for said in done.stderr.splitlines()[-20:]:
            tell(Event(now(), host, said, bad=done.returncode != 0))
        tell(Event(now(), host, f"ended with {done.returncode}: {line}", done.returncode != 0))

    threading.Thread(target=body, name=f"board-action-{host}", daemon=True).start()
