"""`${name}` in a runbook's texts: values put in as they are, nothing computed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ddops.config.locate import KeyPath
from ddops.runbook.model import ParamTable, Scalar, Value

#: `$${` is a plain `${`.
_MARK = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
#: What stands for a value that is not known yet, so that a file can be judged before it is run.
_SAMPLES: Mapping[str, Scalar] = {
    "text": "text", "int": 1, "number": 1.0, "bool": False, "host": "host", "hosts": "host",
    "service": "service", "profile": "profile", "secret": "env:SECRET",
}  # fmt: skip


def names_in(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Every name that a value asks for, with where it stands."""
    if isinstance(value, str):
        for match in _MARK.finditer(value):
            if match.group(1) is not None:
                yield path, match.group(1)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from names_in(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from names_in(item, (*path, i))


def fill(value: Value, values: Mapping[str, Scalar]) -> Value:
    """The value with every name filled in. One name alone becomes its typed value."""
    if isinstance(value, str):
        whole = _MARK.fullmatch(value)
        if whole is not None and whole.group(1) is not None:
            return values[whole.group(1)]
        return _MARK.sub(lambda m: _text(values[m.group(1)]) if m.group(1) else "${", value)
    if isinstance(value, Mapping):
        return {k: _text(fill(v, values)) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(_item(fill(v, values)) for v in value)
    return value


def fill_words(words: tuple[str | int | float, ...], values: Mapping[str, Scalar]) -> list[object]:
    """Words of a command: a value put into one is its text, whatever the parameter's type."""
    return [_text(fill(w, values)) if isinstance(w, str) else w for w in words]


def fill_table(table: Mapping[str, Value], values: Mapping[str, Scalar]) -> dict[str, object]:
    """A table as TOML would have read it, filled in."""
    out: dict[str, object] = {}
    for key, value in table.items():
        filled = fill(value, values)
        out[key] = list(filled) if isinstance(filled, tuple) else filled
    return out


def samples(params: Mapping[str, ParamTable]) -> dict[str, Scalar]:
    """A value of the right type for each parameter: its default where it has one."""
    return {n: _SAMPLES[p.type] if p.default is None else p.default for n, p in params.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _item(value: Value) -> str | int | float:
    return value if isinstance(value, str | int | float) else str(value)
