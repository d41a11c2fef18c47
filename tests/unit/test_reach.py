"""Connections of a fleet end with the work on each host, whatever came of it.

To see it fail: let `App.reach` call `work` without `closing`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddops.cli import status
from ddops.cli.app import App
from ddops.errors import DdopsError
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
