"""A patch series: files of `git format-patch` with a header, in the order of `series`.

    patches/sglang-0.5.23/series        names, one a line; `#` starts a comment
    patches/sglang-0.5.23/0001-x.patch  paths from the folder that holds the package `sglang`

A patch's message says, each on a line of its own: `What:`, `Why:`, `Upstream:` (its status there)
and `Test:` (what fails without it).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddops.config.files import read_data, read_text
from ddops.errors import ConfigError, Problem, UsageError
from ddops.model import digest

Lookup = Callable[[str], Path]
HEADERS = ("What", "Why", "Upstream", "Test")
MOST_BYTES = 8 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.patch\Z")
_PATH = re.compile(rb"^(?:---|\+\+\+) (?:[ab]/([^\t\r\n]+)|/dev/null)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch. `missing` are headers it should have; `files` what it touches."""

    name: str
    data: bytes
    subject: str
    headers: dict[str, str]
    files: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(h for h in HEADERS if not self.headers.get(h))


@dataclass(frozen=True, slots=True)
class Series:
    """The patches of one engine version, in order."""

    engine: str
    patches: tuple[Patch, ...]

    @property
    def digest(self) -> str:
        """sha256 over names and bytes in order; empty for no patch at all."""
        return series_digest(self.patches)


def series_digest(patches: tuple[Patch, ...]) -> str:
    """What a release carries as `series`. Empty where there is nothing."""
    if not patches:
        return ""
    return digest([[p.name, hashlib.sha256(p.data).hexdigest()] for p in patches])


def read_series(engine: str, lookup: Lookup) -> Series:
    """The series of an engine version such as `sglang-0.5.23`. Raises ConfigError with all faults.

    An engine without a folder has no patches.
    """
    try:
        folder = lookup(f"patches/{engine}")
    except UsageError:
        return Series(engine, ())
    listed = folder / "series"
    problems: list[Problem] = []
    patches: list[Patch] = []
    lines = read_text(listed).splitlines() if listed.is_file() else []
    shown = f"patches/{engine}/series"
    for number, line in enumerate(lines, 1):
        name = line.split("#", 1)[0].strip()
        if not name:
            continue
        wrong = _fault(folder, name, {p.name for p in patches})
        if wrong:
            problems.append(Problem(shown, number, name, wrong))
            continue
        try:
            patches.append(parse_patch(name, read_data(folder / name)))
        except ValueError as error:
            problems.append(Problem(f"patches/{engine}/{name}", 0, "", str(error)))
    if problems:
        raise ConfigError(problems, next=f"mend patches/{engine}")
    return Series(engine, tuple(patches))


def parse_patch(name: str, data: bytes) -> Patch:
    """Read a format-patch file. Raises ValueError saying what is wrong with it."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"has {len(data)} bytes, more than {MOST_BYTES}")
    if not data.startswith(b"From "):
        raise ValueError("is no file of `git format-patch`: it does not begin with `From `")
    if not re.search(rb"^diff --git ", data, re.MULTILINE):
        raise ValueError("changes nothing: there is no `diff --git` line in it")
    files = sorted({m.decode("utf-8", "surrogateescape") for m in _PATH.findall(data) if m})
    outside = [f for f in files if f.startswith("/") or ".." in f.split("/")]
    if outside:
        raise ValueError(f"leads outside of the tree: {outside[0]}")
    head = data.split(b"\ndiff --git ", 1)[0].decode("utf-8", "replace")
    subject = re.search(r"^Subject: (?:\[PATCH[^\]]*\] )?(.+(?:\n .+)*)", head, re.MULTILINE)
    found = {h: m.group(1).strip() for h in HEADERS
             if (m := re.search(rf"^{h}: *(\S.*)$", head, re.MULTILINE))}  # fmt: skip
    words = " ".join(subject.group(1).split()) if subject else ""
    return Patch(name, data, words, found, tuple(files))


def _fault(folder: Path, name: str, before: set[str]) -> str:
    if not _NAME.match(name):
        return "not a patch's name: letters, digits, `.`, `_`, `-`, ending in .patch"
    if name in before:
        return "listed twice"
    return "" if (folder / name).is_file() else "no such file in this folder"
