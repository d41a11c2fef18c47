"""The words of messages: nearest right word, kinds of values, quoting."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


def unknown(word: str, known: Collection[str], what: str = "key") -> str:
    """`unknown key `hots`, nearest is `hosts``."""
    near = nearest(word, known)
    if near:
        return f"unknown {what} `{word}`, nearest is `{near}`"
    if known and len(known) <= 12:
        return f"unknown {what} `{word}`, known are {', '.join(f'`{k}`' for k in known)}"
    return f"unknown {what} `{word}`"


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known word most like `word`, whatever its case and dashes; None when none is alike."""
    plain = {_plain(k): k for k in known}
    found = get_close_matches(_plain(word[:64]), list(plain), n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")


def kind(data: object) -> str:
    """What a TOML value is, in words. The value itself is not shown: it may be a secret."""
    if isinstance(data, bool):
        return "true" if data else "false"
    for types, word in (
        (str, "text"),
        (int, "a whole number"),
        (float, "a number with a fraction"),
        (list, "a list"),
        (dict, "a table"),
    ):
        if isinstance(data, types):
            return word
    return "a date or time"


def quote(text: str) -> str:
    """A text for a message: in double quotes, short, printable."""
    text = text if len(text) <= 60 else text[:57] + "..."
    return '"' + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text) + '"'
