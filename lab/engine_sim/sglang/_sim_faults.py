"""What the stand-in is told to do wrong, and how fast it is: `DDOPS_SIM` and a live JSON file.

The file overrides the environment and is read again whenever it changed, so that a test can
break a running server. A name nobody knows is an error: a fault that silently does not
happen makes a test pass for nothing.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from sglang._sim_args import home
from sglang._sim_log import log

Value = Union[bool, int, float, str]  # noqa: UP007 - evaluated, and hosts may have 3.9


class UnknownFault(ValueError):
    """A name or a value that means nothing here."""


@dataclass(frozen=True)
class Knob:
    """One name of the script. `bare` is its value when only the name is given."""

    kind: str  # switch, number, count, words or text
    bare: Value
    words: tuple[str, ...] = ()


KNOBS: dict[str, Knob] = {
    # speed and shape: not faults
    "step_ms": Knob("number", 1.0),
    "batch_ms": Knob("number", 0.1),
    "prefill_ms": Knob("number", 1.0),
    "commit": Knob("number", 4.0),
    "health_s": Knob("number", 1.0),
    "shards": Knob("count", 4),
    "golden": Knob("text", "sim_golden.json"),
    "listen": Knob("words", "loaded", ("first", "loaded")),
    # while it starts
    "load_s": Knob("number", 5.0),
    "port_late_s": Knob("number", 2.0),
    "die_loading": Knob("words", "oom", ("oom", "arch", "flag")),
    "never_ready": Knob("switch", True),
    # while it runs
    "die_after_s": Knob("number", 1.0),
    "die_on_request": Knob("count", 1),
    "hang": Knob("words", "all", ("health", "generate", "all")),
    "status_503": Knob("words", "health", ("health", "generate", "all")),
    "wrong_identity": Knob("words", "all", ("all", "info", "meta")),
    "stale_identity": Knob("text", ""),
    "garbage": Knob("switch", True),
    "mask_bug": Knob("switch", True),
    "early_eos": Knob("count", 3),
    "chunk_tokens": Knob("count", 4),
    "missing_usage": Knob("switch", True),
    "truncate_stream": Knob("count", 2),
    "log_secret": Knob("switch", True),
    # while it stops
    "leak_child": Knob("text", ""),
    "ignore_sigterm": Knob("switch", True),
    "slow_stop_s": Knob("number", 5.0),
    "drain_s": Knob("number", 0.0),
}
OFF = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Script:
    """One reading of the knobs; a name that is not set is absent."""

    values: Mapping[str, Value] = field(default_factory=dict)

    def on(self, name: str) -> bool:
        return name in self.values

    def number(self, name: str, default: float = 0.0) -> float:
        return float(self.values.get(name, default))

    def count(self, name: str, default: int = 0) -> int:
        return int(self.values.get(name, default))

    def word(self, name: str) -> str:
        return str(self.values.get(name, ""))

    def hits(self, name: str, part: str) -> bool:
        """Whether the fault covers this part of the server."""
        return self.word(name) in (part, "all")


def parse_pairs(text: str) -> dict[str, Value]:
    """`key=value,key`. UnknownFault names the nearest known word."""
    out: dict[str, Value] = {}
    for pair in filter(None, (p.strip() for p in text.split(","))):
        name, given, value = pair.partition("=")
        _put(out, name.strip(), value.strip() if given else None)
    return out


def parse_object(value: Any) -> dict[str, Value | None]:
    """A JSON object; `false` and `null` take a fault of the environment away."""
    if not isinstance(value, dict):
        raise UnknownFault("the sim file must hold one JSON object")
    out: dict[str, Value | None] = {}
    for name, given in value.items():
        if given is None or given is False:
            _known(name)
            out[name] = None
        else:
            one: dict[str, Value] = {}
            _put(one, name, None if given is True else str(given))
            out[name] = one.get(name)
    return out


def _put(out: dict[str, Value], name: str, text: str | None) -> None:
    knob = _known(name)
    if text is None:
        out[name] = knob.bare
    elif knob.kind == "switch":
        out.pop(name, None)
        if text.lower() not in OFF:
            out[name] = True
    elif knob.kind == "words":
        if text not in knob.words:
            raise UnknownFault(f"{name}={text}: one of {', '.join(knob.words)}")
        out[name] = text
    elif knob.kind == "text":
        out[name] = text
    else:
        out[name] = _number(name, text, whole=knob.kind == "count")


def _number(name: str, text: str, *, whole: bool) -> Value:
    try:
        number = float(text)
        if not 0 <= number < 1e9 or (whole and number != int(number)):
            raise ValueError(text)
    except (ValueError, OverflowError):
        kind = "a whole number" if whole else "a number"
        raise UnknownFault(f"{name}={text}: {kind}, zero or more, is needed") from None
    return int(number) if whole else number


def _known(name: str) -> Knob:
    if name in KNOBS:
        return KNOBS[name]
    import difflib  # only on this way out: it costs start-up time

    near = difflib.get_close_matches(name, KNOBS, n=1, cutoff=0.0)
    raise UnknownFault(f"unknown fault {name!r}; did you mean {near[0]!r}?")


class Faults:
    """The script in force now. Thread-safe; `now` costs one stat."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.path = Path(environ.get("DDOPS_SIM_FILE") or home() / ".ddops-sim.json")
        self._base = parse_pairs(environ.get("DDOPS_SIM", ""))
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = self._mark()
        self._script = self._read()

    def now(self) -> Script:
        """The newest valid reading; a broken file is reported once and the last one kept."""
        mark = self._mark()
        with self._lock:
            if mark != self._seen:
                self._seen = mark
                try:
                    self._script = self._read()
                    log(f"sim script is now {dict(self._script.values)}")
                except ValueError as error:
                    log(f"sim script not taken: {self.path}: {error}")
            return self._script

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            seen = os.stat(self.path)  # noqa: PTH116 - one call, on every request
        except OSError:
            return None
        return (seen.st_mtime_ns, seen.st_size, seen.st_ino)

    def _read(self) -> Script:
        values: dict[str, Value] = dict(self._base)
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return Script(values)
        for name, value in parse_object(json.loads(text)).items():
            if value is None:
                values.pop(name, None)
            else:
                values[name] = value
        return Script(values)
