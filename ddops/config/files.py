"""Small files of people: reading one that anybody may have put there, writing one whole."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ddops.errors import DdopsError, UsageError

#: Larger than any file of people that is read whole, but for wheels and results of benchmarks.
MOST_BYTES = 64 << 20
_PIECE = 1 << 20
_UNWRITABLE = frozenset(
    {errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.ENOTDIR,
     errno.EEXIST, errno.ENAMETOOLONG, errno.EFBIG, errno.EIO}
)  # fmt: skip
#: What a reader of a parsed file raises when it is not of the form that it looks for.
MISSHAPEN = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError)


def read_data(path: Path, *, most: int = MOST_BYTES, pipe: bool = False, next: str = "") -> bytes:
    """A file that people wrote or named, whole. Whatever is wrong is a UsageError that names it.

    `pipe` for one that the command line names: it may be `/dev/stdin` or `<(...)`.
    """
    try:
        if pipe:
            with path.open("rb") as f:
                data = f.read(most + 1)
        else:
            data, _ = read_regular(path, most)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UsageError(
            f"{path} cannot be read", why=reason(error), next=next or f"ls -l {path}"
        ) from error
    if len(data) > most:
        raise UsageError(
            f"{path} is too large", why=f"more than {most} bytes; this is not a file of ours",
            next=next or f"ls -l {path}",
        )  # fmt: skip
    return data


def read_text(path: Path, *, most: int = MOST_BYTES, pipe: bool = False, next: str = "") -> str:
    """The same, of a text in UTF-8."""
    data = read_data(path, most=most, pipe=pipe, next=next)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path} is not UTF-8 text", why=f"line {line}: {error.reason}",
            next=next or f"file {path}",
        ) from error  # fmt: skip


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds. Raises ValueError alone, also for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


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
        while limit >= 0 and (part := os.read(fd, min(limit + 1, _PIECE))):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts), info
    finally:
        os.close(fd)


def write_whole(path: str | Path, text: str, *, fresh: bool = False) -> None:
    """The whole text or what was there before: written beside it, then renamed.

    Raises DdopsError. What the path names must be a file, or nothing yet; where it shall be
    `fresh`, FileExistsError is raised for whatever is there.
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
        if fresh:
            os.link(temp, target)  # unlike a rename, it fails where somebody was quicker
        else:
            temp.replace(target)
    except FileExistsError:
        raise
    except OSError as error:
        raise unwritten(path, error) from error
    finally:
        with suppress(OSError):  # of a folder that is no folder, too
            temp.unlink()


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Around what makes or removes files at or below `path`: where the disk or its rights do not
    allow that, the error says so. Any other OSError passes.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise unwritten(error.filename or path, error) from error


def unwritten(path: str | Path, error: OSError) -> DdopsError:
    """The error of a file or folder that could not be made or written."""
    there = Path(path).absolute()
    while not there.is_dir() and there != there.parent:
        there = there.parent
    return DdopsError(
        f"{path} cannot be written", why=reason(error),
        next=f"see whether there is room and you may write: ls -ld {there}",
    )  # fmt: skip


def reason(error: BaseException) -> str:
    """What the system said, without the number and the path; what a file lacks."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, TypeError | AttributeError | IndexError):
        return f"it is not of the right form ({error})"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:]
