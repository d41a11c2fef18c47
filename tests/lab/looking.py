"""What a test sees of this machine: processes, command lines, files."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path


def tagged(item: str) -> list[int]:
    """Pids whose environment holds `NAME=value`; no zombies."""
    want, out = os.fsencode(item), []
    for pid in (int(n) for n in os.listdir("/proc") if n.isdigit()):
        try:
            env = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            alive = _state(pid) not in "ZX"
        except OSError:
            continue
        if want in env and alive:
            out.append(pid)
    return out


def parent(pid: int) -> int:
    """The process that it is a child of now; OSError when it has ended."""
    return int(_stat(pid)[1])


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _stat(pid: int) -> list[str]:
    """The fields of proc(5) stat behind the name: state, parent, ..."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text.rpartition(") ")[2].split()


_HANDED_OUT: set[int] = set()


def unheld_ports(number: int) -> list[int]:
    """Ports to be listened on later: below what clients are given, above what labs take.

    None comes twice in a run of tests: the first may not be listened on yet.
    """
    out: list[int] = []
    for port in random.sample(sorted({*range(32000, 32768)} - _HANDED_OUT), 768 - len(_HANDED_OUT)):
        with socket.socket() as s:
            try:
                s.bind(("", port))
            except OSError:
                continue
        out.append(port)
        if len(out) == number:
            _HANDED_OUT.update(out)
            return out
    raise AssertionError(f"no {number} free ports from 32000 to 32767")


def until(condition: Callable[[], object], limit_s: float = 30.0, what: str = "it") -> None:
    """Wait for a condition; an error names it when it does not come."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {limit_s:g} s")
        time.sleep(0.05)


def seen_in_proc(secret: str) -> list[str]:
    """Command lines of all processes that hold the text."""
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if secret.encode() in line:
                out.append(line.decode("utf-8", "replace"))
    return out


def below(root: Path) -> list[Path]:
    """All that lies below a folder whose processes live: what goes meanwhile is no error."""
    return sorted(
        Path(folder, name) for folder, dirs, files in os.walk(root) for name in (*dirs, *files)
    )


def files_below(root: Path) -> dict[str, str]:
    """Every file below a folder with type, mode, size and time of change; links by target."""
    out = {}
    for path in below(root):
        try:
            seen = path.lstat()
        except FileNotFoundError:
            continue
        text = f"{seen.st_mode:o} {seen.st_size} {seen.st_mtime_ns}"
        if path.is_symlink():
            text = f"-> {path.readlink()}"
        elif path.is_dir():
            text = f"dir {seen.st_mode:o}"
        out[str(path.relative_to(root))] = text
    return out
