"""Judging parsed TOML by a msgspec type: every fault at once, each with its place.

msgspec itself stops at the first fault and knows no lines, so the walk is ours; the types, the
conversion and the JSON Schema are msgspec's. Keys that start with `x-` are free everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from typing import Generic, TypeVar

import msgspec
from msgspec import inspect as mi

from ddops.config.locate import KeyPath
from ddops.config.toml import Document
from ddops.config.words import kind, nearest, quote, unknown
from ddops.errors import Problem

T = TypeVar("T")

#: A file with more faults than this is not one that was mistyped.
MAX_FAULTS = 100
#: The largest whole number: 64 bits with a sign, as TOML promises and SQLite holds.
MAX_INT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at a key path."""

    path: KeyPath
    message: str


@dataclass(frozen=True, slots=True)
class Decoded(Generic[T]):
    """`value` was made from the good parts, None where a required part is not good.

    It serves to look for further faults; it counts only when `faults` is empty.
    """

    value: T | None
    faults: tuple[Fault, ...]


def decode(data: object, cls: type[T], path: KeyPath = ()) -> Decoded[T]:
    """Check `data` against `cls`. `path` is where `data` lies in its file."""
    faults = tuple(islice(_walk(data, mi.type_info(cls), path), MAX_FAULTS))
    inside = [f.path[len(path) :] for f in faults]
    good = _without(data, {p[:n] for p in inside for n in range(len(p) + 1)}, set(inside))
    try:
        return Decoded(msgspec.convert(good, cls), faults)
    except msgspec.ValidationError as error:
        # Without a fault: msgspec is stricter than the walk, which is a fault of the walk.
        return Decoded(None, faults or (Fault(path, str(error)),))


def problems(document: Document, faults: Iterable[Fault]) -> list[Problem]:
    """Faults with file and line. What stands at or below another one's key is left out."""
    kept: dict[KeyPath, Fault] = {}
    for fault in faults:
        if not any(fault.path[:n] in kept for n in range(1, len(fault.path) + 1)):
            kept[fault.path] = fault
    shown = [document.problem(f.path, f.message) for f in list(kept.values())[:MAX_FAULTS]]
    if len(kept) > MAX_FAULTS:
        shown.append(Problem(document.name, 0, "", f"and {len(kept) - MAX_FAULTS} faults more"))
    return shown


def _walk(data: object, info: mi.Type, path: KeyPath) -> Iterator[Fault]:
    description = why = ""
    if isinstance(info, mi.Metadata):
        description = str((info.extra_json_schema or {}).get("description", ""))
        why = str((info.extra or {}).get("why", ""))
        info = info.type
    match info:
        case mi.StructType():
            yield from _struct(data, info, path)
        case mi.DictType():
            if not isinstance(data, dict):
                yield Fault(path, f"expected a table, got {kind(data)}")
                return
            for key, value in data.items():
                if not key.startswith("x-"):
                    yield from _walk(value, info.value_type, (*path, key))
        case mi.VarTupleType() | mi.ListType():
            yield from _list(data, info, path)
        case mi.UnionType():
            yield from _union(data, info, path)
        case _:
            wrong = _leaf(data, info, description, why)
            if wrong:
                yield Fault(path, wrong)


def _struct(data: object, info: mi.StructType, path: KeyPath) -> Iterator[Fault]:
    if not isinstance(data, dict):
        yield Fault(path, f"expected a table, got {kind(data)}")
        return
    fields = {f.encode_name: f for f in info.fields}
    for key, value in data.items():
        if key in fields:
            yield from _walk(value, fields[key].type, (*path, key))
        elif not key.startswith("x-"):
            yield Fault((*path, key), unknown(key, fields))
    for key, field in fields.items():
        if field.required and key not in data:
            yield Fault((*path, key), f"required key `{key}` is missing")


def _list(data: object, info: mi.VarTupleType | mi.ListType, path: KeyPath) -> Iterator[Fault]:
    if not isinstance(data, list):
        yield Fault(path, f"expected a list, got {kind(data)}")
        return
    if len(data) < (info.min_length or 0):
        yield Fault(path, f"expected at least {info.min_length} in the list, got {len(data)}")
    if info.max_length is not None and len(data) > info.max_length:
        yield Fault(path, f"expected at most {info.max_length} in the list, got {len(data)}")
        return
    for i, item in enumerate(data):
        yield from _walk(item, info.item_type, (*path, i))


def _union(data: object, info: mi.UnionType, path: KeyPath) -> Iterator[Fault]:
    options = [t for t in info.types if not isinstance(t, mi.NoneType)]
    tries = [list(_walk(data, t, path)) for t in options]
    if [] in tries:
        return
    # The option of the right kind tells best what is wrong; a kind's own fault lies deeper or
    # speaks of more than the kind.
    fitting = [f for t, f in zip(options, tries, strict=True) if _is_kind(data, t)]
    if len(fitting) == 1 or len(options) == 1:
        yield from (fitting or tries)[0]
        return
    words = " or ".join(_words(t) for t in options)
    yield Fault(path, f"expected {words}, got {kind(data)}")


def _is_kind(data: object, info: mi.Type) -> bool:
    info = info.type if isinstance(info, mi.Metadata) else info
    match info:
        case mi.StrType() | mi.LiteralType():
            return isinstance(data, str)
        case mi.IntType():
            return isinstance(data, int) and not isinstance(data, bool)
        case mi.FloatType():
            return isinstance(data, float)
        case mi.VarTupleType() | mi.ListType():
            return isinstance(data, list)
        case mi.StructType() | mi.DictType():
            return isinstance(data, dict)
    return False


def _leaf(data: object, info: mi.Type, description: str, why: str) -> str:
    """What is wrong with a single value; empty when nothing is. `why` a number is bounded."""
    if isinstance(info, mi.LiteralType):
        return _choice(data, info)
    if isinstance(info, mi.StrType):
        return _text(data, info, description)
    if isinstance(info, mi.BoolType):
        return "" if isinstance(data, bool) else f"expected true or false, got {kind(data)}"
    if isinstance(info, mi.IntType | mi.FloatType):
        return _number(data, info, why)
    if isinstance(info, mi.DateType):
        day = isinstance(data, date) and not isinstance(data, datetime)
        return "" if day else f"expected a day, as in 2027-01-31 without quotes, got {kind(data)}"
    raise TypeError(f"no rule for {info!r}")  # a type of ours that this walk was not taught


def _choice(data: object, info: mi.LiteralType) -> str:
    if data in info.values and not isinstance(data, bool):
        return ""
    choices = tuple(str(v) for v in info.values)
    said = f"expected one of {', '.join(quote(c) for c in choices)}, got "
    if not isinstance(data, str):
        return said + kind(data)
    near = nearest(data, choices)
    return said + quote(data) + (f"; nearest is {quote(near)}" if near else "")


def _text(data: object, info: mi.StrType, description: str) -> str:
    if not isinstance(data, str):
        return f"expected {description or 'text'}, got {kind(data)}"
    if len(data) < (info.min_length or 0):
        return "expected text, got an empty one"
    if any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 for c in data):
        return "holds a control character"
    # `$` would let a line break pass behind the last character.
    if info.pattern and ("\n" in data or not re.search(info.pattern, data)):
        return f"expected {description or f'text like {info.pattern}'}, got {quote(data)}"
    return ""


def _number(data: object, info: mi.IntType | mi.FloatType, why: str) -> str:
    whole = isinstance(info, mi.IntType)
    right = isinstance(data, int) or (not whole and isinstance(data, float))
    if isinstance(data, bool) or not right or not isinstance(data, int | float):
        return f"expected {_words(info)}, got {kind(data)}"
    if isinstance(data, float) and not math.isfinite(data):
        return f"expected {_words(info)}, got {data}"
    low = (info.ge is not None and data < info.ge) or (info.gt is not None and data <= info.gt)
    high = (info.le is not None and data > info.le) or (info.lt is not None and data >= info.lt)
    if not low and not high and isinstance(data, int) and abs(data) > MAX_INT:
        high, why = True, "more than 64 bits"  # the database behind it holds no more
    if not low and not high:
        return ""
    return f"expected {_words(info)}, got {_figure(data)}" + (f": {why}" if high and why else "")


def _figure(data: int | float) -> str:
    text = str(data)
    return text if len(text) <= 30 else f"{text[:8]}... of {len(text.lstrip('-'))} digits"


def _words(info: mi.Type) -> str:
    """A type in words, with its bounds."""
    info = info.type if isinstance(info, mi.Metadata) else info
    match info:
        case mi.StrType() | mi.LiteralType():
            return "text"
        case mi.BoolType():
            return "true or false"
        case mi.VarTupleType() | mi.ListType():
            return "a list"
        case mi.StructType() | mi.DictType():
            return "a table"
        case mi.IntType() | mi.FloatType():
            words = "a whole number" if isinstance(info, mi.IntType) else "a number"
            if info.ge is not None and info.le is not None:
                return f"{words} from {info.ge} to {info.le}"
            if info.ge is not None:
                return f"{words} of at least {info.ge}"
            if info.gt is not None and info.le is not None:
                return f"{words} above {info.gt}, at most {info.le}"
            return f"{words} above {info.gt}" if info.gt is not None else words
    return "something else"


def _without(data: object, around: set[KeyPath], bad: set[KeyPath], path: KeyPath = ()) -> object:
    """A copy without what stands at `bad` and without `x-` keys; a faulty list goes whole.

    `around` holds all beginnings of the bad paths.
    """
    if not isinstance(data, dict):
        return data
    out = {}
    for key, value in data.items():
        here = (*path, key)
        whole = here in around and not isinstance(value, dict)
        if not (here in bad or whole or key.startswith("x-")):
            out[key] = _without(value, around, bad, here)
    return out
