"""The training text: a few modules of the running interpreter's own standard library.

Nothing is downloaded. The text differs a little between CPython releases, so the
fingerprint is recorded next to the models that were made from it.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

TRAIN = (
    "json/__init__.py",
    "json/decoder.py",
    "json/encoder.py",
    "json/scanner.py",
    "json/tool.py",
    "abc.py",
    "bisect.py",
    "heapq.py",
    "queue.py",
)
HELD_OUT = ("fnmatch.py", "sched.py")


def read(names: tuple[str, ...]) -> list[str]:
    """The text of each named stdlib module, in the order given."""
    root = Path(sysconfig.get_path("stdlib"))
    return [(root / name).read_text(encoding="utf-8") for name in names]


def fingerprint(texts: list[str]) -> str:
    """SHA-256 over the texts, joined by NUL."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
