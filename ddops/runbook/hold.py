"""Who is at work on a run: a lock of the kernel, gone with its process however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddops.config.files import unwritten
from ddops.errors import LockHeldError


@contextmanager
def holding(state: Path, run_id: str, by: str) -> Iterator[None]:
    """Hold a run for a block. Raises LockHeldError with the name of who holds it."""
    folder = state / "runbooks"
    path = folder / f"{run_id}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise unwritten(path, error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(handle, 500, 0).decode("utf-8", "replace") or "somebody"
            raise LockHeldError(
                f"run {run_id} is being worked on by {who}",
                next=f"ddops runbook log {run_id}",
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{by} pid {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def holder(state: Path, run_id: str) -> str | None:
    """Who is at work on a run now; None for nobody. Changes nothing."""
    try:
        handle = os.open(state / "runbooks" / f"{run_id}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(handle, 500, 0).decode("utf-8", "replace") or "somebody"
    finally:
        os.close(handle)
    return None
