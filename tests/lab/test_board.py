"""The board's model of a running lab: an engine killed, a host frozen, a release changed by hand.

What it shows is held against the host's own process table and files. To see it fail: let
`HostState.fresh` answer NOW whatever the age, or let `unit` take silence for `down`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddops.board import show
from ddops.board.detail import host_page
from ddops.board.fleet import Fleet, Heard, Kind
from ddops.board.glyphs import UNICODE
from ddops.board.poller import Poller
from ddops.board.show import Row, Tone
from ddops.cli.app import App
from ddops.cli.watching import read_books, watched
from tests.lab.harness import HostView, Project

EVERY_S = 0.5
LIMIT_S = 60.0


class Watcher:
    """A poller over the lab and the fleet it tells, without a terminal."""

    def __init__(self, project: Project) -> None:
        self._app = App(str(project.root), verbose=0, quiet=True)
        watches = watched(self._app, ["lab"], (), ())
        specs = [dataclasses.replace(w.spec, every_s=EVERY_S) for w in watches]
        self.fleet = Fleet.of(specs)
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.poller = Poller(
            watches, read_books(self._app, self.fleet), self._heard.put, self._app.redactor,
            every_s=EVERY_S, books_every_s=EVERY_S,
        )  # fmt: skip
        self.looks: dict[str, int] = {}

    def take_in(self) -> None:
        while not self._heard.empty():
            heard = self._heard.get()
            self.looks[heard.host] = self.looks.get(heard.host, 0) + (heard.kind is Kind.LOOK)
            self.fleet.apply(heard)

    def row(self, host: str) -> Row:
        return Row(self.fleet.hosts[host], "tiny", self.fleet.books, time.time())

    def cells(self, host: str) -> dict[str, str]:
        return {c.head: c.make(self.row(host)).text for c in show.COLUMNS}

    def until(self, right: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not right():
            self.take_in()
            states = {n: self.cells(n) for n in self.fleet.hosts}
            assert time.monotonic() < end, f"never shown; last: {states}"
            time.sleep(0.02)

    def page(self, host: str) -> str:
        lines = host_page(self.fleet.hosts[host], self.fleet.books, time.time(), 120, UNICODE)
        return "\n".join("".join(c.text for c in li) for li in lines)

    def close(self) -> None:
        self.poller.stop()
        self._app.close()


@pytest.fixture
def board(lab: Project, serving: HostView, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    monkeypatch.setenv("HOME", str(lab.root / "account"))
    monkeypatch.setenv("DDOPS_CONNECT_TIMEOUT_S", "2")
    made = Watcher(lab)
    made.poller.start()
    yield made
    made.close()


def supervisor_pid(host: HostView) -> int:
    return int(Path(host.layout.state, "supervisor", "supervisord.pid").read_text())


def is_well(board: Watcher, host: HostView) -> bool:
    cells = board.cells(host.name)
    return (cells["REACH"], cells["UNIT"], cells["GATE"]) == ("up", "up sim", "ok")


def test_a_killed_engine_shows_as_down_and_its_restart_as_another_start(
    board: Watcher, serving: HostView
) -> None:
    board.until(lambda: is_well(board, serving) and "G4 exactness" in board.page(serving.name))
    launch = serving.launch()
    assert launch is not None
    page = board.page(serving.name)
    assert f"nonce {launch['nonce']} committed" in page
    assert f"pid {launch['pid']} runs" in page
    assert "tokens equal" in page, "the gates of this start, from the ledger"
    keeper = supervisor_pid(serving)
    os.kill(keeper, signal.SIGSTOP)  # or it would start the next one before anybody has looked
    try:
        os.kill(int(str(launch["pid"])), signal.SIGKILL)
        board.until(lambda: board.cells(serving.name)["UNIT"] == "down")
        row = board.row(serving.name)
        assert (show.gate(row).text, show.gate(row).tone) == ("down", Tone.BAD)
        assert show.reach(row).text == "up", "the host is well, its engine is not"
        assert "the process is gone" in board.page(serving.name)
        assert not Path(f"/proc/{launch['pid']}/exe").exists()
    finally:
        os.kill(keeper, signal.SIGCONT)
    board.until(lambda: is_well(board, serving))
    again = serving.launch()
    assert again is not None
    assert again["nonce"] != launch["nonce"]
    said = [e.text for e in board.fleet.events if e.host == serving.name]
    assert "tiny is down: the process is gone" in said
    assert any(str(again["nonce"]) in words for words in said)
    assert f"nonce {again['nonce']}" in board.page(serving.name)


def test_a_frozen_host_fades_and_delays_no_other(
    lab: Project, board: Watcher, serving: HostView
) -> None:
    board.until(lambda: is_well(board, serving) and board.cells("lab2")["REACH"] == "up")
    lab.ok("lab", "fault", serving.name, "freeze")
    try:
        board.until(lambda: board.cells(serving.name)["REACH"] in ("silent", "no answer"))
        before = board.looks["lab2"]
        board.until(lambda: board.cells(serving.name)["GATE"] == "~ok")
        assert board.cells(serving.name)["UNIT"] == "~up sim", "nobody saw it go down"
        board.until(lambda: board.cells(serving.name)["GATE"] == "?")
        cells = board.cells(serving.name)
        assert {cells[c] for c in ("UNIT", "RELEASE", "GATE", "QUEUE", "TOK/S")} == {"?"}
        assert "too old to show" in board.page(serving.name)
        assert board.looks["lab2"] > before + 3
        assert board.cells("lab2")["REACH"] == "up"
    finally:
        lab.ok("lab", "heal", serving.name)
    board.poller.look_now(serving.name)
    board.until(lambda: is_well(board, serving))


def test_what_was_changed_by_hand_shows_as_drift(board: Watcher, serving: HostView) -> None:
    board.until(lambda: board.cells(serving.name)["DRIFT"].startswith("same"))
    assert serving.current is not None
    file = Path(serving.service.release(serving.current)) / "launch.json"
    before = file.read_text()
    spec = json.loads(before)
    spec["argv"].append("--by-hand")
    file.write_text(json.dumps(spec))
    try:
        board.poller.look_now(serving.name)
        board.until(lambda: board.cells(serving.name)["DRIFT"].startswith("drift"))
        assert show.drift(board.row(serving.name)).tone is Tone.BAD
        assert "launch.json" in board.page(serving.name)
        assert show.gate(board.row(serving.name)).text == "ok", "it serves still, and says so"
        assert any(e.text.startswith("drifted: ") for e in board.fleet.events)
    finally:
        file.write_text(before)
    board.poller.look_now(serving.name)
    board.until(lambda: board.cells(serving.name)["DRIFT"].startswith("same"))


def test_status_is_made_of_the_same_model(lab: Project, serving: HostView) -> None:
    done = lab.ok("status", "lab1", "--json")
    assert isinstance(done.json, list)
    (row,) = done.json
    launch = serving.launch()
    assert launch is not None
    assert (row["reach"], row["state"], row["health"]) == ("up", "up", "ok")
    assert (row["nonce"], row["release"]) == (launch["nonce"], serving.committed)
    assert row["output_tps"]["value"] is None
    assert "no request is running" in row["output_tps"]["source"]
