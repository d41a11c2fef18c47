"""Finds and ends what a lab started, and nothing else.

A process is the lab's when its environment carries `DDOPS_LAB=<folder>`, or when it is an sshd
that was started with a configuration below that folder. Ids are looked up fresh each time and
signalled through a pidfd where the kernel has them, so that a reused id is never hit.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ddops.errors import DdopsError

TAG = "DDOPS_LAB"


def lab_processes(lab_dir: Path) -> list[int]:
    """Pids of this lab, of our own user, oldest first."""
    tag = os.fsencode(f"{TAG}={lab_dir}")
    config = os.fsencode(f"{lab_dir}/hosts/")
    out: list[int] = []
    for pid in sorted(int(n) for n in os.listdir("/proc") if n.isdigit()):
        if pid == os.getpid():
            continue
        if tag in _items(pid, "environ") or _is_our_sshd(pid, config):
            out.append(pid)
    return out


def host_processes(lab_dir: Path, host: str) -> list[int]:
    """Pids of one host that is made of processes: its sshd, its sessions, all that it started."""
    tag = os.fsencode(f"DDOPS_LAB_HOST={host}")
    config = os.fsencode(f"{lab_dir}/hosts/{host}/")
    all_of_it = with_descendants(
        [p for p in lab_processes(lab_dir)
         if tag in _items(p, "environ") or _is_our_sshd(p, config)]
    )  # fmt: skip
    return sorted(all_of_it)


def _is_our_sshd(pid: int, config: bytes) -> bool:
    """A listener shows its command line, `sshd: /usr/sbin/sshd -f <config> ...`."""
    line = b" ".join(_items(pid, "cmdline"))
    return b"sshd" in line.split(b" ")[0] and (b"-f " + config) in line


def _items(pid: int, name: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:
        return []  # gone, or another user's


def with_descendants(pids: list[int]) -> list[int]:
    """The given processes and all below them: an sshd's session children carry no tag."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _parent(int(name))) is not None:
            children.setdefault(parent, []).append(int(name))
    out, todo = list(pids), list(pids)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in out and child != os.getpid():
                out.append(child)
                todo.append(child)
    return out


def _parent(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        state, parent = text.rpartition(") ")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(parent)


def end_all(
    find: Callable[[], list[int]], *, grace_s: float, sleep: Callable[[float], None] = time.sleep
) -> list[int]:
    """TERM what `find` names, wait, KILL the rest; returns what is still there after that."""
    polls = max(1, int(grace_s / 0.05))
    for signum, rounds in ((signal.SIGTERM, polls), (signal.SIGKILL, 100)):
        told: set[int] = set()
        for _ in range(rounds):
            left = find()
            if not left:
                return []
            for pid in left:
                if pid not in told:
                    signal_one(pid, signum)
                    told.add(pid)
            sleep(0.05)
    return find()


def end_at_once(find: Callable[[], list[int]], *, limit_s: float = 20.0) -> None:
    """KILL what `find` names, and wait until each has ended: one that ends still holds things.

    The first process of a pid namespace has ended when all others of it have.
    """
    end = time.monotonic() + limit_s
    while pids := find():
        for pid in pids:
            kill_and_wait(pid, end - time.monotonic())
        if time.monotonic() > end:
            raise DdopsError(f"processes of the lab cannot be ended: {pids}", next="ps -fp <pid>")


def kill_and_wait(pid: int, limit_s: float = 20.0) -> None:
    """KILL one process, and wait until it has ended."""
    signal_one(pid, signal.SIGKILL)
    wait_gone(pid, limit_s)


def wait_gone(pid: int, limit_s: float) -> None:
    """Until a process has ended; one that only waits for its parent to look has."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return  # gone
    try:
        select.select([fd], [], [], max(0.0, limit_s))
    finally:
        os.close(fd)


def signal_one(pid: int, signum: signal.Signals) -> None:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return  # gone
    try:
        signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)
