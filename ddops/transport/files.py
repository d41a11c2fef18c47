"""Files on a host, over `Transport.run` alone: whole or not at all, and never by quoting.

Paths are absolute POSIX paths. What fails on the host raises `CommandFailed` with clear words;
what a transport raises passes through.
"""

from __future__ import annotations

import io
import posixpath
import secrets
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

from ddops.command import Cmd, python, sh
from ddops.errors import CommandFailed, UsageError
from ddops.model import Result
from ddops.transport import scripts, treehash
from ddops.transport.base import DEFAULT_DEADLINE_S, DEFAULT_LIMIT, Transport

#: Name of an archive's last member; its arrival proves that the whole archive arrived.
END_MEMBER = ".ddops-end-of-tree"
_FULL = ("No space left", "Disk quota exceeded", "File too large")


def write_file(
    transport: Transport,
    path: str,
    data: bytes,
    mode: int = 0o644,
    *,
    instead_of: Sequence[str] = (),
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> None:
    """Put `data` at `path` by a rename: readers see the old file or the new one, whole.

    Until the rename only the owner can read it. On failure the old file is untouched. The files
    `instead_of` are removed behind it, whether they are there or not.
    """
    for other in instead_of:
        _split(other)
    directory, name = _split(path)
    temporary = posixpath.join(directory, f".ddops-{secrets.token_hex(6)}.tmp")
    words = (path, f"{mode:04o}", temporary, str(len(data)), directory, *instead_of)
    command = sh(scripts.WRITE, *words)
    result = transport.run(command.with_stdin(data), deadline_s=deadline_s)
    _require(transport, result, f"{name} could not be written to {directory}")


def read_file(
    transport: Transport,
    path: str,
    limit: int = DEFAULT_LIMIT,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> bytes | None:
    """The file's bytes, `None` when it is missing. More than `limit` bytes is an error."""
    _split(path)
    result = transport.run(sh(scripts.READ, path), deadline_s=deadline_s, limit=limit)
    if result.truncated:
        raise CommandFailed(
            f"{transport.host}: {path} is larger than {limit} bytes",
            rc=result.rc,
            why="a cut file is worse than none",
        )
    if not result.ok and result.err.rstrip().endswith("No such file or directory"):
        return None
    _require(transport, result, f"{path} could not be read")
    return result.stdout


def read_files(
    transport: Transport,
    paths: Sequence[str],
    limit: int = DEFAULT_LIMIT,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> dict[str, bytes | None]:
    """The same of several files in one look. More than `limit` bytes in all is an error."""
    for path in paths:
        _split(path)
    result = transport.run(sh(scripts.READ_MANY, *paths), deadline_s=deadline_s, limit=limit)
    what = f"{', '.join(paths)} could not be read"
    _require(transport, result, what)
    rest, out = result.stdout, dict[str, bytes | None]()
    for path in paths:
        head, _, rest = rest.partition(b"\n")
        if head == b"-":
            out[path] = None
            continue
        size = int(head) if head.strip().isdigit() else -1
        data, rest = rest[: max(0, size)], rest[max(0, size) :]
        out[path] = data
        if len(data) != size:
            raise CommandFailed(
                f"{transport.host}: {what}",
                rc=result.rc,
                why=f"the answer is not whole, or they are larger than {limit} bytes",
            )
    return out


def make_dirs(
    transport: Transport,
    *paths: str,
    mode: int = 0o755,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> None:
    """Make directories and their parents in one call. One that is there keeps its mode."""
    for path in paths:
        _split(path)
    if paths:
        command = sh(scripts.MAKE_DIRS, f"{mode:04o}", *paths)
        result = transport.run(command, deadline_s=deadline_s)
        _require(transport, result, f"could not make {', '.join(paths)}")


def link_atomically(
    transport: Transport, target: str, link: str, *, deadline_s: float = DEFAULT_DEADLINE_S
) -> None:
    """Make `link` point at `target` in one step, whatever it pointed at before."""
    directory, _ = _split(link)
    temporary = posixpath.join(directory, f".ddops-{secrets.token_hex(6)}.tmp")
    result = transport.run(sh(scripts.LINK, target, link, temporary), deadline_s=deadline_s)
    _require(transport, result, f"could not point {link} at {target}")


def remove_tree(
    transport: Transport, path: str, below: str, *, deadline_s: float = DEFAULT_DEADLINE_S
) -> None:
    """Remove `path` and all in it; a missing one is fine. Refuses what is not below `below`.

    Checked on the text here and on the resolved directories on the host.
    """
    _split(path)
    root, plain = posixpath.normpath(below), path.rstrip("/")
    inside = posixpath.normpath(path) == plain and plain.startswith(f"{root}/")
    if not inside or not below.startswith("/") or root.strip("/") == "":
        raise UsageError(
            f"{transport.host}: refusing to remove {path}", why=f"it is not strictly below {below}"
        )
    parent, name = posixpath.split(plain)
    command = sh(scripts.REMOVE_TREE, parent, name, root)
    result = transport.run(command, deadline_s=deadline_s)
    _require(transport, result, f"could not remove {path}")


def pack_tree(local_dir: Path) -> bytes:
    """A tar of the files and links below `local_dir` that depends on their content alone.

    Sorted, no owners, no times, modes 0644 or 0755, no `__pycache__`, no empty directories.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, found in _walk(local_dir):
            member = tarfile.TarInfo(path)
            member.mode = 0o755 if found & 0o100 else 0o644
            full = local_dir / path
            if stat.S_ISLNK(found):
                member.type, member.linkname = tarfile.SYMTYPE, str(full.readlink())
                archive.addfile(member)
                continue
            data = full.read_bytes()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        archive.addfile(tarfile.TarInfo(END_MEMBER))
    return out.getvalue()


def send_tree(
    transport: Transport, local_dir: Path, remote_dir: str, deadline_s: float = 300.0
) -> None:
    """Copy a directory to `remote_dir`, which appears at once and whole; it must not exist yet."""
    parent, _ = _split(remote_dir)
    partial = f"{remote_dir}.partial.{secrets.token_hex(6)}"
    command = sh(scripts.SEND_TREE, partial, remote_dir, parent, END_MEMBER)
    packed = pack_tree(local_dir)
    result = transport.run(command.with_stdin(packed), deadline_s=deadline_s)
    _require(transport, result, f"{local_dir.name} could not be sent to {remote_dir}")


def tree_digest(local_dir: Path) -> str:
    """sha256 over (relative path, executable or not, content); see `treehash.tree_digest`."""
    try:
        return treehash.tree_digest(local_dir)
    except ValueError as error:
        raise UsageError(f"{local_dir}: {error}") from error


def digest_command(remote_dir: str, interpreter: str = "python3") -> Cmd:
    """What computes the digest on a host, in one round trip."""
    source = Path(treehash.__file__).read_text(encoding="utf-8")
    return python(source, remote_dir, interpreter=interpreter)


def remote_tree_digest(
    transport: Transport,
    remote_dir: str,
    *,
    interpreter: str = "python3",
    deadline_s: float = 120.0,
) -> str:
    """The same digest of a directory on the host; needs Python 3.9 or later there."""
    _split(remote_dir)
    result = transport.run(digest_command(remote_dir, interpreter), deadline_s=deadline_s)
    _require(transport, result, f"no digest of {remote_dir}")
    return result.out.strip()


def _walk(local_dir: Path) -> list[tuple[str, int]]:
    try:
        return sorted(treehash.walk(local_dir))
    except ValueError as error:
        raise UsageError(f"{local_dir}: {error}") from error


def _split(path: str) -> tuple[str, str]:
    """Directory and name of an absolute path; anything else is a fault of the caller."""
    directory, name = posixpath.split(path.rstrip("/"))
    if not path.startswith("/") or not name:
        raise UsageError(f"not an absolute path below /: {path!r}")
    return directory, name


def _require(transport: Transport, result: Result, what: str) -> None:
    if result.ok:
        return
    stderr = result.err.strip()
    full = any(words in stderr for words in _FULL)
    raise CommandFailed(
        f"{transport.host}: {what}",
        rc=result.rc,
        stderr=result.err,
        why=f"the disk is full or over quota: {stderr}" if full else "",
        next=f"free space on {transport.host} and run again" if full else "",
    )
