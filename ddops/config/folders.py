"""A folder of files that ddops writes for people to use: all of it at once, and only over its own.

The folder is 0700 and its files are 0600. A mark beside them lists what was written, so that a
later run knows its own work, and leaves alone what somebody has put there or changed since.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ddops.config.files import MISSHAPEN, parse_json, read_regular, reason
from ddops.errors import DdopsError, RefusedError

MARK = ".ddops-rendered"
SCHEMA = "ddops.rendered/1"
_MARK_LIMIT = 1 << 20
#: Of Linux' fcntl.h and fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def write_folder(target: Path, files: Mapping[str, str]) -> bool:
    """Make `target` hold exactly these files, text by relative name; False when it did already.

    Raises RefusedError for a folder that is not its own earlier work as it was left, DdopsError
    when it cannot be written. Killed, it leaves the old folder or the new one, and perhaps a
    hidden folder beside it.
    """
    want = {name: _sha(text.encode()) for name, text in files.items()}
    try:
        have = _own(target)
        if have == want:
            return False
        temp = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise _failed(target, error) from error
    try:
        mark = json.dumps({"schema": SCHEMA, "files": want}, indent=1) + "\n"
        for name, text in {**files, MARK: mark}.items():
            _write(temp / name, text.encode())
        _swap(temp, target)
    except OSError as error:
        raise _failed(target, error) from error
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return True


def _own(target: Path) -> dict[str, str] | None:
    """Digests of what an earlier run wrote here; None where nothing is there yet."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise _refused(target, "it is no folder")
    if not target.exists():
        return None
    there = os.listdir(target)
    if not there:
        return None
    wrote = _read_mark(target / MARK) if MARK in there else None
    if wrote is None:  # and no look further down: it may be anything
        raise _refused(target, f"it holds {min(there)}, which ddops did not write")
    below = [p for p in target.rglob("*") if p.is_symlink() or not p.is_dir()]
    names = {str(p.relative_to(target)): p for p in below if p != target / MARK}
    for name in sorted(names.keys() | wrote.keys()):
        if name not in wrote:
            raise _refused(target, f"it holds {name}, which ddops did not write")
        if name in names and _sha(_read(names[name], 64 << 20)) != wrote[name]:
            raise _refused(target, f"{name} was changed since ddops wrote it")
    # A file that somebody took away is written anew.
    return {name: wrote[name] for name in wrote if name in names}


def _read_mark(path: Path) -> dict[str, str] | None:
    try:
        mark = parse_json(_read(path, _MARK_LIMIT))
        if mark["schema"] != SCHEMA:
            return None
        return {str(name): str(value) for name, value in mark["files"].items()}
    except MISSHAPEN:
        return None


def _read(path: Path, limit: int) -> bytes:
    if path.is_symlink():
        return b""  # nothing of ours is a link
    return read_regular(path, limit)[0]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def _swap(temp: Path, target: Path) -> None:
    """Put `temp` in the place of `target`; what was there is in `temp` then, or gone."""
    if not target.exists():
        temp.rename(target)
    elif not _exchange(temp, target):
        _swap_by_renames(temp, target)


def _exchange(one: Path, other: Path) -> bool:
    """Both names at once; False where the system or its file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "renameat2", None)
    if call is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _swap_by_renames(temp: Path, target: Path) -> None:
    """In two steps: killed between them, it leaves the old folder under a hidden name."""
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    target.replace(old)  # a folder may replace an empty one
    try:
        temp.rename(target)
    except OSError:
        if not target.exists():  # else another run was quicker, and its work is whole
            old.rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refused(target: Path, why: str) -> RefusedError:
    return RefusedError(
        f"{target} is not written over", why=why, next="name a folder that is not there yet"
    )


def _failed(target: Path, error: OSError) -> DdopsError:
    where = f" ({error.filename})" if error.filename else ""
    return DdopsError(
        f"{target} cannot be written", why=reason(error) + where,
        next=f"make its parent folder, one you may write to: {target.parent}",
    )  # fmt: skip
