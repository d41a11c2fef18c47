"""Which line of a TOML text a key stands on. `tomllib` does not tell.

A scanner, not a parser: the text has been accepted by `tomllib` before, so that only the ends
of keys and values have to be found.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
# One step over a value: a whole string, a comment, plain text, or a single character.
_STEP = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+"""+'
    r"|'''(?:[^']++|'(?!''))*+'''+"
    r'|"(?:[^"\\\n]++|\\.)*+"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"""|[^"'#\[\]{}\n]++"""
    r"|.",
    re.DOTALL,
)
_KEY = re.compile(r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^=\]"'\n])+""")


class Lines:
    """Line numbers by key path. What lies inside an inline table or a list has its key's line."""

    def __init__(self, at: Mapping[KeyPath, int]) -> None:
        self._at = at

    def of(self, path: KeyPath) -> int:
        """The line of `path`, or of the nearest thing around it; 1 when nothing is known."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._at:
                return self._at[path[:end]]
        return 1


def locate(text: str) -> Lines:
    """Find every key of a valid TOML text. Of an invalid one it finds what it can."""
    return Lines(_Scan(text).run())


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.line = 1
        self.counted = 0
        self.at: dict[KeyPath, int] = {}
        self.arrays: dict[KeyPath, int] = {}

    def run(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip_blank():
            line = self._line()
            if self.text[self.pos] == "[":
                table = self._header(line)
            else:
                self._record(table, self._keys(), line)
                self.pos += 1  # the equals sign
                self._skip_value()
        return self.at

    def _line(self) -> int:
        self.line += self.text.count("\n", self.counted, self.pos)
        self.counted = self.pos
        return self.line

    def _skip_blank(self) -> bool:
        match = _BLANK.match(self.text, self.pos)
        self.pos = match.end() if match else self.pos
        return self.pos < len(self.text)

    def _keys(self) -> list[str]:
        match = _KEY.match(self.text, self.pos)
        if match is None:
            self.pos += 1
            return []
        self.pos = match.end()
        return split_key(match.group())

    def _header(self, line: int) -> KeyPath:
        double = self.text.startswith("[[", self.pos)
        self.pos += 2 if double else 1
        path = self._record((), self._keys(), line, array=double)
        end = self.text.find("\n", self.pos)
        self.pos = len(self.text) if end < 0 else end
        return path

    def _record(
        self, table: KeyPath, keys: list[str], line: int, *, array: bool = False
    ) -> KeyPath:
        """Note a key and the tables it makes on its way; returns its path with list indices."""
        path = table
        for i, key in enumerate(keys, 1):
            path = (*path, key)
            self.at.setdefault(path, line)
            if array and i == len(keys):
                self.arrays[path] = self.arrays.get(path, -1) + 1
            if path in self.arrays:
                path = (*path, self.arrays[path])
                self.at.setdefault(path, line)
        return path

    def _skip_value(self) -> None:
        """To the line break that ends the value: the first one outside brackets and strings."""
        depth = 0
        while match := _STEP.match(self.text, self.pos):
            step = match.group()
            if step == "\n" and depth <= 0:
                return
            self.pos = match.end()
            depth += (step in ("[", "{")) - (step in ("]", "}"))


def split_key(text: str) -> list[str]:
    """`a."b.c".d` as its parts; nothing of what is not a key."""
    try:
        node: object = tomllib.loads(f"{text.strip()} = 0")
    except (ValueError, RecursionError):
        return []
    parts: list[str] = []
    while isinstance(node, dict) and len(node) == 1:
        key, node = next(iter(node.items()))
        parts.append(key)
    return parts
