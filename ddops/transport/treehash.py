"""One digest of a directory tree, the same here and on a host.

This file is sent as it is to `python3 -` on the host, so that both sides run the same text. It
uses the standard library only and runs on Python 3.9.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

SKIPPED = "__pycache__"


def walk(root: Path) -> Iterator[tuple[str, int]]:
    """Relative path and mode of each file and link below `root`; `ValueError` on other things."""
    stack = [""]
    while stack:
        relative = stack.pop()
        with os.scandir(root / relative) as entries:
            for entry in entries:
                path = f"{relative}/{entry.name}" if relative else entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    if entry.name != SKIPPED:
                        stack.append(path)
                elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                    yield path, mode
                else:
                    raise ValueError(f"neither a file, a directory nor a link: {path!r}")


def content_digest(path: Path, mode: int) -> str:
    """sha256 of a file's bytes, or of a link's target."""
    if stat.S_ISLNK(mode):
        return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    found = hashlib.sha256()
    with path.open("rb") as stream:
        for chunk in iter(lambda: stream.read(1 << 20), b""):
            found.update(chunk)
    return found.hexdigest()


def line(path: str, mode: int, inner: str) -> bytes:
    """One entry of the digest; the path's bytes end at a NUL, so no name can imitate another."""
    kind = "l" if stat.S_ISLNK(mode) else "x" if mode & 0o100 else "-"
    return os.fsencode(f"{path}\0{kind}\0{inner}\n")


def tree_digest(root: Path) -> str:
    """sha256 over (relative path, kind, content) in byte order of the paths; 64 hex digits.

    The kind is `x` for a file its owner may execute, `-` for another file, `l` for a link. Empty
    directories, owners, times and other mode bits do not count; `__pycache__` is left out.
    """
    total = hashlib.sha256()
    for path, mode in sorted(walk(root), key=lambda found: os.fsencode(found[0])):
        total.update(line(path, mode, content_digest(root / path, mode)))
    return total.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(tree_digest(Path(sys.argv[1])) + "\n")
