"""What happens, as data; how it looks, as a consumer of it.

The core emits `Event`s to a `Reporter`. Progress bars, plain lines and JSON lines are
reporters; the core has no spinner threads and never prints.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import ClassVar, Protocol, TextIO

from ddops.command import Redactor


class Level(Enum):
    """How loud an event is: `DETAIL` shows with -v only."""

    DETAIL = "detail"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `host` is empty for what concerns no single host."""

    kind: str
    message: str
    host: str = ""
    level: Level = Level.INFO
    data: Mapping[str, object] = field(default_factory=dict)


class Reporter(Protocol):
    """Takes events. Must be callable from several threads at once."""

    def emit(self, event: Event) -> None: ...


class NullReporter:
    """Drops everything."""

    def emit(self, event: Event) -> None:
        return None


class ListReporter:
    """Keeps everything, for tests and for callers that look back."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


def _writable(text: str, stream: TextIO) -> str:
    """`text` as the stream can take it: a host's odd bytes must not end the program, nor its
    escape sequences reach the terminal."""
    shown = "".join(c if c in "\n\t" or c.isprintable() else _escaped(c) for c in text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


class TextReporter:
    """Plain lines for people, redacted. `verbose` shows `DETAIL` too, `quiet` only warnings."""

    _MARK: ClassVar[Mapping[Level, str]] = {Level.WARN: "warning: ", Level.ERROR: "error: "}

    def __init__(
        self, stream: TextIO, redactor: Redactor, *, verbose: bool = False, quiet: bool = False
    ) -> None:
        self._stream = stream
        self._redact = redactor
        self._verbose = verbose
        self._quiet = quiet
        self._live = stream.isatty()
        self._shown = ""
        self._lock = threading.Lock()

    def progress(self, done: int, total: int, what: str = "hosts") -> None:
        """How far a fan-out is: one line that is written over on a terminal, each quarter of
        many elsewhere. The last call takes the line away."""
        if self._quiet or total < 2:
            return
        words = f"{done} of {total} {what}"
        if not self._live:
            if total >= 16 and done * 4 // total > (done - 1) * 4 // total:
                self.emit(Event("progress", words))
            return
        with self._lock:
            self._shown = words if done < total else ""
            self._stream.write(f"\r\x1b[K{self._shown}")
            self._stream.flush()

    def emit(self, event: Event) -> None:
        if event.level is Level.DETAIL and not self._verbose:
            return
        if self._quiet and event.level in (Level.DETAIL, Level.INFO):
            return
        host = f"{event.host}: " if event.host else ""
        line = self._redact(f"{self._MARK.get(event.level, '')}{host}{event.message}")
        with self._lock:
            over = "\r\x1b[K" if self._shown else ""
            self._stream.write(f"{over}{_writable(line, self._stream)}\n{self._shown}")
            self._stream.flush()


class JsonReporter:
    """One JSON object a line, redacted; the log file's format. Times are UTC, ISO 8601."""

    def __init__(self, stream: TextIO, redactor: Redactor) -> None:
        self._stream = stream
        self._redact = redactor
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        row = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": event.kind,
            "level": event.level.value,
            "host": event.host,
            "message": event.message,
            "data": dict(event.data),
        }
        # ASCII: any text of a host can be written, whatever the stream's encoding.
        line = json.dumps(self._redact.tree(row))
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


class TeeReporter:
    """Hands every event to several reporters."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = tuple(reporters)

    def emit(self, event: Event) -> None:
        for reporter in self._reporters:
            reporter.emit(event)
