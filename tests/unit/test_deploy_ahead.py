"""What a deploy reads ahead, and when it hears of it; and which rows reach the host together."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddops.deploy import ahead
from ddops.deploy.ahead import looking
from ddops.deploy.record import Recorder
from ddops.errors import CommandFailed, RefusedError
from ddops.events import ListReporter
from ddops.inventory.model import Host, Origin
from ddops.ledger import Outcome
from ddops.snapshot import Step
from ddops.transport import FakeTransport

HOST = Host(name="box", origin=Origin("project", Path("x")), ssh="box")


class Service:
    """Answers the flags; everything else is asked of what the test puts in place."""

    transport = FakeTransport("box")
    host = HOST

    class service:
        name = "k"

    def preflight(self, *_: object) -> str:
        return "parsed"


class Kept:
    """Stands for the snapshot: `asks` is what `ask` does."""

    asks: Any = staticmethod(lambda: None)

    def __init__(self, *_: object) -> None: ...

    def ask(self) -> None:
        type(self).asks()

    def take(self, _facts: object, required: bool) -> Step:
        return Step(f"required {required}", {})


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> type[Kept]:
    monkeypatch.setattr(ahead, "collect", lambda *_: "facts")
    monkeypatch.setattr(ahead, "BeforeDeploy", Kept)
    monkeypatch.setattr(Kept, "asks", staticmethod(lambda: None))
    return Kept


def begin(rows: Any = tuple, snapshots: Any = lambda _host: None) -> Any:
    service: Any = Service()
    release: Any = None
    return looking(service, release, rows, 5.0, snapshots)


def test_all_is_asked_at_once(kept: type[Kept]) -> None:
    both = threading.Barrier(2, timeout=10)  # breaks, and raises, where one waits for the other
    kept.asks = staticmethod(both.wait)

    def rows() -> tuple[()]:
        both.wait()
        return ()

    with begin(rows) as found:
        assert (found.facts.result(), found.rows.result(), found.parsed.result()) == (
            "facts", (), "parsed",
        )  # fmt: skip
        assert found.snapshot(None, True).skipped == "required True"


def test_an_error_is_told_where_its_turn_comes(kept: type[Kept]) -> None:
    def broken() -> None:
        raise RefusedError("no place")

    kept.asks = staticmethod(broken)
    with begin(broken) as found:
        assert found.parsed.result() == "parsed"
        with pytest.raises(RefusedError, match="no place"):
            found.rows.result()
        with pytest.raises(RefusedError, match="no place"):
            found.snapshot(None, False)


def test_a_command_without_snapshots_asks_nothing(kept: type[Kept]) -> None:
    def never() -> None:
        raise AssertionError("asked")

    kept.asks = staticmethod(never)
    with begin(snapshots="a way back") as found:
        assert found.snapshot(None, False) == Step("a way back", {})


def test_nothing_is_read_behind_the_block(kept: type[Kept]) -> None:
    go, done = threading.Event(), list[str]()

    def slow() -> tuple[()]:
        go.wait(10)
        done.append("read")
        return ()

    with pytest.raises(CommandFailed), begin(slow):
        threading.Timer(0.05, go.set).start()
        raise CommandFailed("box: boom", rc=1)
    assert done == ["read"]  # the lock is given back behind this


class Ledger:
    def __init__(self) -> None:
        self.rows: list[str] = []

    def add_transition(self, _op: str, state: str, _verdict: Outcome, _e: object) -> int:
        self.rows.append(state)
        return len(self.rows)


def test_rows_with_nothing_between_them_reach_the_host_together() -> None:
    ledger, sent = Ledger(), list[list[str]]()

    def journal(rows: Sequence[Mapping[str, object]]) -> None:
        sent.append([f"{r['state']} {r['verdict']}" for r in rows])

    record = Recorder(ledger, "op", "k", "box", "ab", ListReporter(), journal)  # type: ignore[arg-type]
    record.ok("probed", {}, soon=True)
    record.ok("compat_ok", {}, soon=True)
    assert (ledger.rows, sent) == (["probed", "compat_ok"], [])  # here each is written at once
    record.ok("planned", {})
    assert sent == [["probed ok", "compat_ok ok", "planned ok"]]
    record.ok("staged", {}, soon=True)
    record.give_up("failed", "boom", {})
    assert sent[1:] == [["staged ok", "failed fail"]]
    record.ok("more", {})
    assert sent[2:] == [["more ok"]]
