"""Runs the command line in a process of its own to which something happens at one transition.

    python -m tests.lab.deploydriver STATE kill ARGS...         it is killed, as by SIGKILL
    python -m tests.lab.deploydriver STATE cut:SSHD.PID ARGS... that sshd dies with its sessions

It happens when the ledger has the transition's row and the host's journal has not: the moment at
which the two know the least of each other. STATE is one of the state machine's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ddops.cli import main
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


if __name__ == "__main__":
    where, what, *args = sys.argv[1:]
    kind, _, path = what.partition(":")
    at(where, kill if kind == "kill" else lambda: cut(Path(path)))
    sys.argv = ["ddops", *args]
    main()
