"""Runs the command line in a process of its own to which something happens at one transition.

    python -m tests.lab.deploydriver STATE kill ARGS...         it is killed, as by SIGKILL
    python -m tests.lab.deploydriver STATE cut:SSHD.PID ARGS... that sshd dies with its sessions
    python -m tests.lab.deploydriver STATE clock:SECONDS ARGS... the wall clock jumps by so much

It happens when the ledger has the transition's row and the host's journal has not: the moment at
which the two know the least of each other. STATE is one of the state machine's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from ddops.cli import main
from ddops.clock import SystemClock
from ddops.deploy.record import Recorder
from ddops.ledger import Outcome


def at(state: str, act: Callable[[], None]) -> None:
    """Have `act` happen behind the first row of that name."""
    real, done = Recorder._ledger_row, list[str]()

    def row(self: Recorder, name: str, verdict: Outcome, evidence: Mapping[str, object]) -> None:
        real(self, name, verdict, evidence)
        if name == state and not done:
            done.append(name)
            act()

    setattr(Recorder, "_ledger_row", row)  # noqa: B010 - a method, on purpose


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def cut(pid_file: Path) -> None:
    """End a host's sshd: the listener first, so that nothing comes back."""
    pid = int(pid_file.read_text())
    done = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    for one in (pid, *(int(p) for p in done.stdout.split())):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def jump(seconds: float) -> None:
    """As `date -s` would: every reader of the wall clock sees it, no monotonic one does."""
    real, now = time.time, SystemClock.now
    setattr(time, "time", lambda: real() + seconds)  # noqa: B010
    setattr(SystemClock, "now", lambda self: now(self) + timedelta(seconds=seconds))  # noqa: B010


if __name__ == "__main__":
    where, what, *args = sys.argv[1:]
    kind, _, more = what.partition(":")
    acts = {"kill": kill, "cut": lambda: cut(Path(more)), "clock": lambda: jump(float(more))}
    at(where, acts[kind])
    sys.argv = ["ddops", *args]
    main()
