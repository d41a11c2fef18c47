"""Reporters: what is shown, to whom, and never a secret."""

from __future__ import annotations

import io
import json
import re
import threading
from datetime import datetime

from ddops.command import Redactor, Secret
from ddops.events import (
    Event,
    JsonReporter,
    Level,
    ListReporter,
    NullReporter,
    TeeReporter,
    TextReporter,
)
from tests.guards.source import ROOT

REDACT = Redactor([Secret("hunter22")])
EVENTS = [
    Event("a", "detail hunter22", level=Level.DETAIL),
    Event("a", "started", host="b300"),
    Event("a", "slow", host="b300", level=Level.WARN),
    Event("a", "dead", level=Level.ERROR),
]


def text(*events: Event, **options: bool) -> list[str]:
    stream = io.StringIO()
    reporter = TextReporter(stream, REDACT, **options)
    for event in events:
        reporter.emit(event)
    return stream.getvalue().splitlines()


def test_text() -> None:
    assert text(*EVENTS) == ["b300: started", "warning: b300: slow", "error: dead"]
    assert text(*EVENTS, verbose=True)[0] == "detail ***"
    assert text(*EVENTS, quiet=True) == ["warning: b300: slow", "error: dead"]


def test_text_shows_odd_bytes_and_escapes_harmlessly() -> None:
    assert text(Event("a", "x\udcff\x1b[31my\r")) == [r"x\udcff\x1b[31my\r"]
    raw = io.BytesIO()
    narrow = io.TextIOWrapper(raw, encoding="ascii")
    TextReporter(narrow, REDACT).emit(Event("a", "größer"))
    assert raw.getvalue() == b"gr\\xf6\\xdfer\n"


def test_json_lines() -> None:
    stream = io.StringIO()
    reporter = JsonReporter(stream, REDACT)
    data = {"argv": ["--api-key", "abc"], "error": OSError("hunter22"), "odd": "\udcff", "n": 1}
    reporter.emit(Event("k", "say hunter22\n", "b300", Level.WARN, data))
    reporter.emit(Event("k", "two"))
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert datetime.fromisoformat(first.pop("at")).utcoffset() is not None
    assert first == {
        "kind": "k",
        "level": "warn",
        "host": "b300",
        "message": "say ***\n",
        "data": {"argv": ["--api-key", "***"], "error": "***", "odd": "\udcff", "n": 1},
    }
    assert (second["message"], second["data"]) == ("two", {})


def test_lines_of_many_threads_stay_whole() -> None:
    stream = io.StringIO()
    reporter = JsonReporter(stream, REDACT)

    def talk() -> None:
        for _ in range(20):
            reporter.emit(Event("k", "m" * 500))

    threads = [threading.Thread(target=talk) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 160
    assert all(json.loads(line)["kind"] == "k" for line in lines)


def test_tee_list_and_null() -> None:
    kept = ListReporter()
    TeeReporter([kept, NullReporter(), kept]).emit(EVENTS[1])
    assert kept.events == [EVENTS[1], EVENTS[1]]


def test_only_the_command_line_draws() -> None:
    """A spinner in the core waits for a terminal, and the work waits for it (as others saw)."""
    users = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "ddops").rglob("*.py")
        if re.search(r"^\s*(?:from|import) rich\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert users
    assert not [u for u in users if not u.startswith(("ddops/cli/", "ddops/board/"))]
