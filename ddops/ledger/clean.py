"""What goes into the ledger: redacted, valid UTF-8, valid JSON, of bounded size.

Nothing reaches SQLite but through here, so a secret cannot get into the file, its WAL or a hash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath

from ddops.command import MASK, Redactor, Secret
from ddops.errors import DdopsError
from ddops.model import canonical

#: Characters of one JSON document or text. Facts of a big host are about 0.2 M.
MAX_CHARS = 4 * 1024 * 1024
MAX_IDENT = 256

# A reference to a secret says where it is, not what it is. It must survive below names such as
# `api_key`, or a release could not be rebuilt from its row.
_REFERENCE = re.compile(r"(?:env:[A-Za-z_][A-Za-z0-9_]*|file:[^\s]+|cmd:.+)\Z")
_HEX64 = re.compile(r"[0-9a-f]{64}\Z")


def stamp(at: datetime) -> str:
    """UTC with microseconds and `Z`, fixed width: text order is time order."""
    if at.tzinfo is None:
        raise DdopsError(
            "a time without a zone cannot be recorded",
            why=f"{at.isoformat()} may mean any hour",
            next="pass an aware datetime, e.g. datetime.now(UTC)",
        )
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def when(text: str) -> datetime:
    """The reverse of `stamp`."""
    return datetime.fromisoformat(text).astimezone(UTC)


class Cleaner:
    """Turns what callers have into what may be stored."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def text(self, value: str | bytes | Secret) -> str:
        """Redacted text. Undecodable bytes and NUL become visible escapes."""
        out = self._string(value).replace("\0", "\\x00")
        return _bounded(out, "a text")

    def ident(self, value: str, what: str) -> str:
        """A key: kept as it is or refused, since a masked key would no longer be one."""
        good = isinstance(value, str) and 0 < len(value) <= MAX_IDENT and value.isprintable()
        if good and self.text(value) == value:
            return value
        raise DdopsError(
            f"not usable as {what} in the ledger",
            why=f"a key is 1 to {MAX_IDENT} printable characters and holds no secret",
            next=f"give another {what}",
        )

    def hex64(self, value: str, what: str) -> str:
        """A sha256, 64 lower-case hex digits."""
        if isinstance(value, str) and _HEX64.match(value):
            return self.ident(value, what)
        raise DdopsError(
            f"not usable as {what} in the ledger",
            why="it must be a whole sha256, 64 lower-case hex digits",
            next="pass the digest, not its short form",
        )

    def json(self, value: Mapping[str, object]) -> str:
        """Canonical JSON of a redacted mapping. NaN and infinities become strings."""
        try:
            return _bounded(canonical(self._walk(value)), "a JSON document")
        except (TypeError, ValueError, RecursionError) as e:
            # The reason may quote the value, so only its kind is passed on.
            why = str(e) if isinstance(e, _Unstorable) else type(e).__name__
            raise DdopsError(
                "a value cannot be recorded as JSON",
                why=why,
                next="pass mappings, lists, strings, numbers and booleans only",
            ) from None

    def raw_text(self, data: bytes) -> bytes:
        """Bytes of a stream, redacted; what is no UTF-8 stays as it is. Of any size."""
        text = data.decode("utf-8", "surrogateescape")
        return self._redactor(text).encode("utf-8", "surrogateescape")

    def _walk(self, value: object) -> object:
        match value:
            case None | bool():
                return value
            case Enum():
                return self._walk(value.value)
            case int() | float():
                return self._number(value)
            case str() | bytes() | Secret():
                return self._string(value)
            case datetime():
                return stamp(value)
            case PurePath():
                return self._string(str(value))
            case Mapping():
                return self._mapping(value)
            case list() | tuple():
                return self._sequence(value)
            case set() | frozenset():
                return sorted((self._walk(v) for v in value), key=canonical)
        raise _Unstorable(f"no JSON form for {type(value).__name__}")

    def _mapping(self, value: Mapping[object, object]) -> dict[str, object]:
        out: dict[str, object] = {}
        for key, item in value.items():
            base = name = self._string(key if isinstance(key, str | bytes) else str(key))
            again = 1
            while name in out:  # two keys that look alike once masked
                again += 1
                name = f"{base}#{again}"
            out[name] = self._entry(str(key), item)
        return out

    def _entry(self, key: str, value: object) -> object:
        """A value below a key that may itself name a secret."""
        if _is_reference(value):
            return self._walk(value)
        if self._redactor.tree({key: "value"}) == {key: MASK}:
            return MASK if value not in (None, "") and not isinstance(value, bool) else value
        return self._walk(value)

    def _sequence(self, value: Sequence[object]) -> list[object]:
        out: list[object] = []
        before: object = None
        for item in value:
            out.append(MASK if self._flag_value(before, item) else self._walk(item))
            before = item
        return out

    def _flag_value(self, flag: object, word: object) -> bool:
        """Whether two words of a command line are a flag that names a secret, and its value."""
        if not (isinstance(flag, str) and isinstance(word, str) and flag.startswith("-")):
            return False
        return not _is_reference(word) and self._redactor.tree([flag, "value"]) == [flag, MASK]

    def _number(self, value: int | float) -> object:
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        text = str(value)
        return value if len(text) < 4 or self._redactor(text) == text else MASK

    def _string(self, value: str | bytes | Secret) -> str:
        if isinstance(value, Secret):
            return MASK
        _check_size(len(value), "a text")  # before the redactor, which takes 0.4 s for a million
        # Redact first: a known secret may itself hold undecodable bytes.
        text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        return self._redactor(text).encode("utf-8", "backslashreplace").decode()


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and _REFERENCE.match(value) is not None


class _Unstorable(TypeError):
    """Says a type's name, never a value."""


def _bounded(text: str, what: str) -> str:
    _check_size(len(text), what)
    return text


def _check_size(size: int, what: str) -> None:
    if size <= MAX_CHARS:
        return
    raise DdopsError(
        f"{what} is too big for the ledger",
        why=f"{size} characters, at most {MAX_CHARS}",
        next="keep the whole in a file and record its digest",
    )
