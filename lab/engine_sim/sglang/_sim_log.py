"""Log lines in upstream's shape; the rank's place in the stamp says `sim`."""

from __future__ import annotations

import os
import threading
import time

_LOCK = threading.Lock()  # whole lines, whichever thread speaks


def stamp() -> str:
    """`[2026-01-31 12:00:00 sim]`."""
    return time.strftime("[%Y-%m-%d %H:%M:%S sim]")


def log(message: str) -> None:
    """One line on stderr, as upstream's logging does."""
    write(2, f"{stamp()} {message}\n")


def warn(message: str) -> None:
    """A warning, in upstream's yellow."""
    log(f"\033[1;33m{message}\033[0m")


def access(message: str) -> None:
    """One access line on stdout, as uvicorn does."""
    write(1, f"{stamp()} INFO:     {message}\n")


def write(fd: int, text: str) -> None:
    """Whole text to the descriptor. A log that nobody reads any more does not stop a server."""
    data = text.encode("utf-8", "replace")
    with _LOCK:
        while data:
            try:
                data = data[os.write(fd, data) :]
            except OSError:
                return


def fatal(error: str, where: str = "run_scheduler_process") -> None:
    """What upstream leaves behind when a worker dies while it starts."""
    log(
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "sglang/sim.py", line 1, in {where}\n'
        f"{error}\n"
    )
    log("Received sigquit from a child process. It usually means the child failed.")
