"""Connections of a fleet end with the work on each host, whatever came of it.

To see it fail: let `App.reach` call `work` without `closing`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddops.cli import status
from ddops.cli.app import App, end_together, tell_errors
from ddops.errors import DdopsError, PartialError
from ddops.events import ListReporter
from ddops.transport import FakeTransport, SshTarget


class Counted(FakeTransport):
    """Tells how many are open."""

    open_now = 0

    def __init__(self, name: str) -> None:
        super().__init__(name)
        Counted.open_now += 1

    def close(self) -> None:
        Counted.open_now -= 1


def fail(_transport: object) -> None:
    raise DdopsError("no")


def test_a_connection_is_closed_behind_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(str(tmp_path), verbose=0, quiet=True)
    monkeypatch.setattr(app, "transport", Counted)
    host: Any = "box"
    assert app.reach(host, lambda t: (t.host, Counted.open_now)) == ("box", 1)
    with pytest.raises(DdopsError, match="no"):
        app.reach(host, fail)
    assert Counted.open_now == 0


def test_a_connection_that_was_begun_is_used_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(str(tmp_path), verbose=0, quiet=True)
    monkeypatch.setattr(app, "transport", Counted)
    host: Any = "box"
    app.begin(host)
    assert Counted.open_now == 1
    assert app.reach(host, lambda t: (t.host, Counted.open_now)) == ("box", 1)
    assert app.reach(host, lambda t: (t.host, Counted.open_now)) == ("box", 1)
    assert Counted.open_now == 0


def test_the_place_that_all_hosts_need_is_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(str(tmp_path), verbose=0, quiet=True)
    monkeypatch.setattr(app, "open_transport", lambda target: Counted(target.name))
    before = Counted.open_now
    first = app.shared_transport(SshTarget("keep", "keep"))
    assert app.shared_transport(SshTarget("keep", "keep")) is first
    assert app.shared_transport(SshTarget("keep", "keep", pin="SHA256:" + "a" * 43)) is not first
    assert Counted.open_now == before + 2
    Counted.open_now = before


@pytest.mark.parametrize("bad", [False, True])
def test_status_keeps_no_connection(bad: bool) -> None:
    class Watch:
        closed = 0

        def look(self) -> dict[str, object]:
            if bad:
                raise DdopsError("no")
            return {"a": 1}

        def close(self) -> None:
            self.closed += 1

    one: Any = Watch()
    if bad:
        with pytest.raises(DdopsError, match="no"):
            status._look(one)
    else:
        assert status._look(one) == {"a": 1}
    assert one.closed == 1


def test_hosts_that_failed_alike_are_told_once_and_the_odd_one_last() -> None:
    report = ListReporter()
    errors: list[tuple[str, DdopsError]] = [
        (f"h{n}", DdopsError(f"h{n}: not tried", next=f"ddops status h{n}")) for n in range(20)
    ]
    errors.insert(3, ("odd", DdopsError("odd: out of memory", why="the log of odd says so")))
    tell_errors(errors, report)
    told = [(e.host, e.message) for e in report.events]
    many = "20 hosts (h0, h1, h2, h3, h4, h5, h6, h7 and 12 more)"
    assert told[:2] == [(many, "not tried"), (many, "next: ddops status HOST")]
    assert told[2:] == [("", "odd: out of memory"), ("odd", "why: the log of odd says so")]
    with pytest.raises(PartialError, match=r"21 of 21 hosts failed: h0, .* and 13 more") as raised:
        end_together(errors, report)
    assert len(raised.value.what) < 120


def test_a_few_hosts_are_told_one_by_one() -> None:
    report = ListReporter()
    tell_errors([(n, DdopsError(f"{n}: no")) for n in ("a", "ab", "b")], report)
    assert [e.message for e in report.events] == ["a: no", "ab: no", "b: no"]
