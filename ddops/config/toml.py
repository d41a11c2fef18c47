"""Reading a TOML file so that whatever is wrong with it is a `ConfigError` with its place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddops.config.files import read_regular, reason
from ddops.config.locate import KeyPath, Lines, locate
from ddops.errors import ConfigError, Problem

#: Nobody writes a megabyte by hand; what is larger is not one of our files.
MAX_BYTES = 1 << 20

# `tomllib` takes time by the square of a dotted key's parts: a file of one key would hang us.
_LONG_KEY = re.compile(
    r"""(?:(?<![A-Za-z0-9_-])(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){128}"""
)
#: What to try when a file is not what it should be.
HELP = "ddops config schema   # prints what each file may hold"

_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)\Z")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass(frozen=True)
class Document:
    """A parsed file. `name` is what messages call it."""

    path: Path
    name: str
    text: str
    data: dict[str, object]

    @cached_property
    def lines(self) -> Lines:
        return locate(self.text)

    def problem(self, path: KeyPath, message: str) -> Problem:
        """A fault at a key path."""
        return Problem(self.name, self.lines.of(path), dotted(path), message)


def read_toml(path: Path, *, base: Path | None = None) -> Document:
    """Read and parse; every failure is a ConfigError. Messages name the file seen from `base`."""
    name = shown(path, base)
    text = _read_text(path, name)
    return parse_toml(text, path, name)


def parse_toml(text: str, path: Path, name: str) -> Document:
    """Parse a text that came from `path`."""
    if match := _LONG_KEY.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise fault(name, "more than 128 words joined by dots; no key of ours is", line=line)
    try:
        document = Document(path, name, text, tomllib.loads(text))
        wide = _wide(document.data)
    except RecursionError:
        raise fault(name, "lists or tables are nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one; so is a number past Python's limit
        raise _syntax(name, text, error) from None
    if wide is not None:
        raise ConfigError([document.problem(wide, "a number of more than 64 bits")])
    return document


def _wide(node: object, at: KeyPath = ()) -> KeyPath | None:
    """Where a number stands that TOML itself does not promise to carry, and no ledger holds."""
    if isinstance(node, int):
        return None if -(1 << 63) <= node < 1 << 63 else at
    rows: list[tuple[str | int, object]] = []
    if isinstance(node, dict):
        rows = [*node.items()]
    elif isinstance(node, list):
        rows = [*enumerate(node)]
    found = (_wide(value, (*at, key)) for key, value in rows)
    return next((path for path in found if path is not None), None)


def shown(path: Path, base: Path | None = None) -> str:
    """A path for a message: relative to `base` if below it, unprintable bytes as escapes."""
    if base is not None and path.is_relative_to(base):
        path = path.relative_to(base)
    return ascii(str(path))[1:-1] if not str(path).isprintable() else str(path)


def dotted(path: KeyPath) -> str:
    """A key path as TOML spells it, list indices in brackets."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            word = part if _BARE.match(part) else '"' + part.replace('"', '\\"') + '"'
            out += f".{word}" if out else word
    return out


def fault(name: str, message: str, *, line: int = 0, next: str = "") -> ConfigError:
    """A ConfigError of one problem that has no key."""
    return ConfigError([Problem(name, line, "", message)], next=next)


def raise_all(problems: Sequence[Problem], *, next: str = HELP) -> None:
    """Raise what was found, in the order of files and lines; nothing found, nothing raised."""
    if problems:
        raise ConfigError(sorted(problems, key=lambda p: (p.file, p.line)), next=next)


def _read_text(path: Path, name: str) -> str:
    try:
        raw, _ = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise fault(name, f"cannot be read: {reason(error)}") from None
    if len(raw) > MAX_BYTES:
        raise fault(name, f"larger than {MAX_BYTES >> 20} MiB; this is not a file of ours")
    if b"\0" in raw:
        raise fault(name, "a binary file, expected TOML text")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise fault(name, "not UTF-8 text", line=line, next="save the file as UTF-8") from None
    if text.startswith("\ufeff"):
        raise fault(name, "starts with a byte order mark", line=1, next="save it without one")
    return text.replace("\r\n", "\n")


def _syntax(name: str, text: str, error: ValueError) -> ConfigError:
    message = str(error)
    match = _PLACE.search(message)
    line = 0
    if match:
        line = int(match.group(1)) if match.group(1) else text.rstrip("\n").count("\n") + 1
        message = message[: match.start()]
    return fault(name, f"not valid TOML: {message[:1].lower()}{message[1:]}", line=line)
