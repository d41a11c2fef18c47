"""A host that hangs delays no other; one that fails is asked ever more rarely.

To see it fail: ask the hosts one after another in `Poller.start`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ddops.board.fleet import Heard, Kind
from ddops.board.model import EVERY_S
from ddops.board.poller import MOST_S, Poller, Watch, pause
from ddops.command import Redactor, Secret
from ddops.errors import UnreachableError
from tests.unit.board.looks import look

SECRET = "canary-7712-ibis"
LIMIT_S = 10.0


class Host:
    """Answers what its function answers."""

    def __init__(self, name: str, look: Callable[[], dict[str, Any]]) -> None:
        self.name = name
        self._look = look
        self.looks = 0
        self.closed = False

    def look(self) -> dict[str, Any]:
        self.looks += 1
        return self._look()

    def drift(self) -> dict[str, Any]:
        return {"rows": []}

    def close(self) -> None:
        self.closed = True


def refused() -> dict[str, Any]:
    raise UnreachableError("box: cannot connect", why="refused")


class Ear:
    """Hears a poller until a condition holds; bounded."""

    def __init__(self, *hosts: Watch, every_s: float = 0.02) -> None:
        self.heard: list[Heard] = []
        self._new: queue.Queue[Heard] = queue.Queue()
        redactor = Redactor([Secret(SECRET)])
        self.poller = Poller(hosts, dict, self._new.put, redactor, every_s=every_s)

    def until(self, enough: Callable[[list[Heard]], bool]) -> list[Heard]:
        self.poller.start()
        end = time.monotonic() + LIMIT_S
        try:
            while not enough(self.heard):
                self.heard.append(self._new.get(timeout=max(0.01, end - time.monotonic())))
        finally:
            self.poller.stop()
        return self.heard


def of(heard: list[Heard], host: str, kind: Kind) -> list[Heard]:
    return [h for h in heard if (h.host, h.kind) == (host, kind)]


def test_hosts_that_hang_delay_no_other() -> None:
    stuck = threading.Event()
    released = threading.Event()

    def hang() -> dict[str, Any]:
        stuck.set()
        released.wait(LIMIT_S)
        raise UnreachableError("box: gone")

    hanging = [Host(f"h{n}", hang) for n in range(30)]
    try:
        heard = Ear(*hanging, Host("good", look)).until(lambda h: len(of(h, "good", Kind.LOOK)) > 3)
    finally:
        released.set()
    assert stuck.is_set() and all(h.looks == 1 for h in hanging)
    assert not [h for h in heard if h.host.startswith("h")], "and nothing is made up of them"


def test_what_is_heard_is_redacted_and_books_come_too() -> None:
    ear = Ear(Host("box", lambda: look(note=f"token {SECRET}", api_key="abc")))
    heard = ear.until(lambda h: bool(of(h, "box", Kind.LOOK) and of(h, "", Kind.BOOKS)
                                     and of(h, "box", Kind.DRIFT)))  # fmt: skip
    payload = of(heard, "box", Kind.LOOK)[0].payload
    assert SECRET not in str(heard)
    assert (payload["note"], payload["api_key"]) == ("token ***", "***")


@pytest.mark.parametrize("wrong", [refused, lambda: 1 / 0], ids=["unreachable", "our fault"])
def test_a_failure_is_heard_and_the_lane_goes_on(wrong: Callable[[], dict[str, Any]]) -> None:
    heard = Ear(Host("box", wrong)).until(lambda h: len(of(h, "box", Kind.ERROR)) > 1)
    assert not of(heard, "box", Kind.LOOK)
    assert not of(heard, "box", Kind.DRIFT), "what cannot be looked at is not hashed"
    said = of(heard, "box", Kind.ERROR)[0].payload["error"]
    assert said in ("box: cannot connect: refused", "a fault in ddops itself: ZeroDivisionError: "
                    "division by zero")  # fmt: skip


def test_pauses_grow_and_are_bounded() -> None:
    assert pause(0, 0.5) == EVERY_S
    grown = [pause(n, 0.5) for n in range(1, 12)]
    assert grown == sorted(grown)
    assert grown[0] == EVERY_S
    assert grown[-1] == MOST_S
    assert pause(10**6, 1.0) <= MOST_S * 1.25


def test_a_person_need_not_wait_for_the_pause() -> None:
    host = Host("box", look)
    ear = Ear(host, every_s=1000.0)

    def enough(heard: list[Heard]) -> bool:
        if len(of(heard, "box", Kind.LOOK)) == 1:
            ear.poller.look_now("box")
        return len(of(heard, "box", Kind.LOOK)) > 1

    ear.until(enough)
    assert host.looks >= 2
    assert host.closed
