"""Small files of people: reading one that anybody may have put there, writing one whole."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ddops.errors import DdopsError


def read_regular(path: Path, limit: int) -> tuple[bytes, os.stat_result]:
    """At most `limit` bytes and one more, so that the caller sees an excess.

    Raises OSError, also for what is no regular file: a pipe is refused, not waited for.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error)) from None
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a directory, expected a file")
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        parts = []
        while limit >= 0 and (part := os.read(fd, limit + 1)):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts), info
    finally:
        os.close(fd)


def write_whole(path: str | Path, text: str) -> None:
    """The whole text or what was there before: written beside it, then renamed.

    Raises DdopsError. What the path names must be a file, or nothing yet.
    """
    target = Path(path)
    temp = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "not a regular file")
        with temp.open("w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        temp.replace(target)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise DdopsError(f"{path} cannot be written", why=reason(error)) from error


def reason(error: BaseException) -> str:
    """What the system said, without the number and the path."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:]
