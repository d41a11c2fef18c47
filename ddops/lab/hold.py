"""Faults of hosts that are no more than processes: such a host can be frozen, and no more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from ddops.errors import RefusedError
from ddops.lab.faults import Fault
from ddops.lab.processes import host_processes, signal_one
from ddops.lab.spec import LabPaths


def fault(paths: LabPaths, name: str, fault: Fault) -> None:
    """Freeze the host: its sshd, its sessions, its supervisor and engines stop where they are."""
    if fault.kind != "freeze":
        raise RefusedError(
            f"{name}: {fault.kind} needs a host that boots",
            why="this lab's hosts are processes that share the machine's disk, kernel and loopback",
            next="ddops lab up --systemd, after ddops lab down, as root",
        )
    stopped: set[int] = set()
    while new := set(host_processes(paths.dir, name)) - stopped:  # one may fork while we look
        for pid in new:
            signal_one(pid, signal.SIGSTOP)
        stopped |= new


def heal(paths: LabPaths, name: str) -> None:
    wake(host_processes(paths.dir, name))


def wake(pids: Iterable[int]) -> None:
    """A process that is stopped does not hear that it shall end."""
    for pid in pids:
        if pid != os.getpid():
            signal_one(pid, signal.SIGCONT)


def seen(paths: LabPaths, name: str) -> str:
    """`on`, `off` or `frozen`, from the host's processes."""
    pids = host_processes(paths.dir, name)
    if not pids:
        return "off"
    return "frozen" if all(_stopped(pid) for pid in pids) else "on"


def _stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:  # noqa: PTH123
            return f.read().rpartition(") ")[2].startswith("T")
    except OSError:
        return False
