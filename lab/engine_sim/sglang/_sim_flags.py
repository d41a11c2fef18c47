"""SGLang's command line as argparse options, read from the table `_sim_flags.json`.

A row is `[spellings, kind, default, extra?]`. Abbreviations stay allowed, because upstream
allows them: an option that upstream split in two is ambiguous here as it is there.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from sglang._sim_log import warn

TABLE = Path(__file__).with_name("_sim_flags.json")
UNITS = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
GRAPH_KEYS = {
    "decode": ("backend", "max_bs", "bs"),
    "prefill": (
        "backend", "max_bs", "bs", "max_context_size", "full_prefill_max_req",
        "full_prefill_prefix_chunk_tokens", "max_seq_len",
    ),
}  # fmt: skip


def load_table() -> dict[str, Any]:
    """The option table, as it lies beside this module."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def add_flags(parser: argparse.ArgumentParser, table: dict[str, Any] | None = None) -> None:
    """Adds every option of the table."""
    table = table or load_table()
    for row in table["options"]:
        extra = dict(row[3]) if len(row) > 3 else {}
        choices = extra.get("choices")
        if isinstance(choices, str):
            extra["choices"] = table["choices"][choices[1:]]
        _add(parser, row[0].split(), row[1], row[2], extra)


def _add(
    parser: argparse.ArgumentParser,
    names: list[str],
    kind: str,
    default: Any,
    extra: dict[str, Any],
) -> None:
    new = extra.pop("new", None)
    if kind == "flag":
        parser.add_argument(*names, action="store_true", default=default, **extra)
    elif kind == "bool":
        parser.add_argument(*names, action=argparse.BooleanOptionalAction, default=default, **extra)
    elif kind == "dep":
        parser.add_argument(*names, action=Deprecated, nargs=0, new=new, default=default, **extra)
    elif kind == "depconst":
        parser.add_argument(*names, action=Deprecated, new=new, default=default, **extra)
    elif kind == "lora":
        parser.add_argument(*names, type=str, action=LoraPaths, default=default, **extra)
    else:
        parser.add_argument(*names, type=TYPES[kind], default=default, **extra)


class Deprecated(argparse.Action):
    """A retired spelling that still stores True, and says what replaces it."""

    def __init__(self, *args: Any, new: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.new = new

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        warn(f"'{option_string}' is deprecated and will be removed. Use '{self.new}' instead.")
        setattr(namespace, self.dest, True)


class LoraPaths(argparse.Action):
    """Paths, `name=path` pairs or JSON objects."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        paths = [json.loads(v) if v.strip().startswith("{") else v for v in values or []]
        setattr(namespace, self.dest, paths)


def human_int(text: str) -> int:
    """`1k`, `25.6k`, `1Ki` or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", text.strip())
    if match is None:
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"invalid integer value: {text!r}") from None
    number, suffix = match.groups()
    if "." in number and len(suffix) == 2:
        raise argparse.ArgumentTypeError(f"no decimals with the suffix {suffix!r}: {text!r}")
    return int(Decimal(number) * UNITS[suffix])


def json_list(text: str) -> Any:
    """A JSON value; upstream does not check that it is a list either."""
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a JSON list: {text!r}") from None


def nullable(text: str) -> str | None:
    """The word `None` and the empty string mean nothing."""
    return None if text in ("", "None") else text


def graph_backend(text: str) -> str:
    """The retired backend gets its own words before the choices are looked at."""
    if text == "tc_piecewise":
        raise argparse.ArgumentTypeError("tc_piecewise was removed")
    return text


def graph_config(text: str) -> dict[str, Any]:
    """JSON: phase to settings, only known phases and keys."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    for phase, settings in value.items():
        if phase not in GRAPH_KEYS or not isinstance(settings, dict):
            raise argparse.ArgumentTypeError(f"unknown phase or not an object: {phase!r}")
        for key in settings:
            if key not in GRAPH_KEYS[phase]:
                raise argparse.ArgumentTypeError(f"{phase}: unknown key {key!r}")
    return value


#: argparse prints a type's `__name__` in its error, so `json` keeps the name upstream shows.
TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "size": human_int,
    "json": json.loads,
    "jsonlist": json_list,
    "nstr": nullable,
    "cgbackend": graph_backend,
    "cgconfig": graph_config,
}
