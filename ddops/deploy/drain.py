"""A replica's way out from behind its router, and back.

Out: the router sends it nothing new, and what it has at work is waited for. Back: the router calls
it healthy, and its new start has answered through the router. The last healthy replica is never
taken away; what is left over when the time is up goes back, and the deploy is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ddops.command import Redactor
from ddops.deploy.router import RouterOnHost
from ddops.deploy.stop import Stop
from ddops.errors import DdopsError, GateFailed, RefusedError, UnreachableError
from ddops.inventory.merge import Inventory
from ddops.inventory.model import Host, Service
from ddops.inventory.router import routed
from ddops.model import State
from ddops.transport import Transport

#: Between two counts of the requests that still run.
COUNT_EVERY_S = 0.5
#: Counts of none, one after the other: a request may be between the router and its replica.
EMPTY_COUNTS = 2
#: A router asks a replica's health before it takes it; SGLang's answers within seconds.
BACK_S = 60.0


@dataclass(frozen=True, slots=True)
class Way:
    """How a step ended: `skipped` says why there was none."""

    skipped: str
    evidence: Mapping[str, object]


class Drain(Protocol):
    """What a deploy does before its replica stops, and after it has passed its gates."""

    def out(self, stop: Stop) -> Way:
        """Take it out and wait. Raises with the replica back in its place."""
        ...

    def stay(self) -> None:
        """It is not to be stopped after all; nothing is raised."""
        ...

    def leave(self) -> Mapping[str, object]:
        """The same on the way back from a failure: nothing may keep it from going on."""
        ...

    def back(self, version: str) -> Mapping[str, object]:
        """The start of that name serves through the router. Raises GateFailed where not."""
        ...


@dataclass(frozen=True, slots=True)
class NoDrain:
    """No router: requests at work end with the old engine."""

    why: str = "no router stands before this service"

    def out(self, stop: Stop) -> Way:
        return Way(self.why, {})

    def stay(self) -> None:
        return

    def leave(self) -> Mapping[str, object]:
        return {}

    def back(self, version: str) -> Mapping[str, object]:
        return {}


@dataclass(frozen=True, slots=True)
class ReplicaDrain:
    """One replica behind a router."""

    router: RouterOnHost
    host: str
    say: Callable[[str], None]
    sleep: Callable[[float], object] = time.sleep
    now: Callable[[], float] = time.monotonic

    @property
    def _url(self) -> str:
        return self.router.routed.of(self.host).url

    @property
    def _name(self) -> str:
        return f"{self.router.routed.service.name} on {self.router.routed.host.name}"

    def out(self, stop: Stop) -> Way:
        url, began = self._url, self.now()
        at_work = self.router.running(url)
        seen, raw = self.router.remove(url)
        if seen.state is State.DOWN:
            return Way(f"its router on {self.router.routed.host.name} is not up", {})
        if seen.state is State.UNKNOWN:
            raise UnreachableError(
                f"{self.host}: the router of {self._name} does not answer",
                why=seen.why,
                next=f"ddops status {self.router.routed.service.name}",
            )
        if raw.get("last") is True:
            raise RefusedError(
                f"{self.host}: it is the last healthy replica behind the router of {self._name}",
                why=str(raw.get("why") or "without it every request would fail"),
                next="bring another replica up first: ddops status"
                f" {self.router.routed.service.name}",
            )
        try:
            if raw.get("stays") is True:
                raise DdopsError(f"{self.host}: the router of {self._name} does not let it go")
            left = self._empty(stop, at_work)
        except BaseException:
            self.stay()
            raise
        evidence = {"replica": url, "was_served": raw.get("removed") is True,
                    "in_flight": at_work.get("running"), "counted_by": at_work.get("by"),
                    "waited_s": round(self.now() - began, 2), "left": left,
                    "others": raw.get("others")}  # fmt: skip
        return Way("", evidence)

    def _empty(self, stop: Stop, at_work: Mapping[str, object]) -> int:
        """Wait until the replica has nothing at work; nobody listening there has nothing."""
        if at_work.get("refused") is True:
            return 0
        end, none = self.now() + self.router.routed.table.drain_s, 0
        while True:
            seen = self.router.running(self._url)
            running = seen.get("running")
            if seen.get("refused") is True:
                return 0
            if not isinstance(running, int):
                raise RefusedError(
                    f"{self.host}: nobody can tell whether the replica has requests at work",
                    why=str(seen.get("why")),
                    next="enable-metrics = true in its profile, and a way to it from there",
                )
            none = none + 1 if running == 0 else 0
            if none >= EMPTY_COUNTS:
                return 0
            if self.now() > end:
                raise RefusedError(
                    f"{self.host}: {running} requests still run"
                    f" {self.router.routed.table.drain_s:g} s after the router sent the last one",
                    why="some may come past the router; the replica serves through it again",
                    next="look who sends them, or set a longer [router] drain_s",
                )
            stop.check("while the replica finished its requests")
            self.sleep(COUNT_EVERY_S)

    def stay(self) -> None:
        try:
            _, ok = self.router.add(self._url, BACK_S)
            word = "serves through the router again" if ok else "is not healthy for the router"
        except DdopsError as error:
            word = f"may be left out by the router: {error.what}"
        self.say(f"{self.host} {word}")

    def leave(self) -> Mapping[str, object]:
        try:
            _, raw = self.router.remove(self._url)
            if raw.get("removed") is True:
                self._empty(Stop(), self.router.running(self._url))
        except DdopsError as error:
            self.say(f"not drained on the way back: {error.what}")
            return {"drained": error.what}
        return {"drained": raw.get("removed") is True}

    def back(self, version: str) -> Mapping[str, object]:
        url, began = self._url, self.now()
        seen, ok = self.router.add(url, BACK_S)
        if seen.state is State.DOWN:
            return {"router": "not up"}
        if not ok:
            raise GateFailed(
                f"{self.host}: the router of {self._name} does not call it healthy",
                gate="router",
                why=seen.why or f"within {BACK_S:g} s of being told of {url}",
                next=f"ddops status {self.router.routed.service.name}",
            )
        asked = self.router.ask(version, BACK_S)
        if asked.get("answered") is not True:
            raise GateFailed(
                f"{self.host}: {version} has not answered through the router of {self._name}",
                gate="router",
                why=f"{asked.get('tries')} requests were answered by {asked.get('others')}",
                next=f"ddops status {self.router.routed.service.name}",
            )
        return {"router": {"replica": url, "answered_after": asked.get("tries"),
                           "back_s": round(self.now() - began, 2)}}  # fmt: skip


def drains_of(
    inventory: Inventory,
    transport: Callable[[Host], Transport],
    lookup: Callable[[str], Path],
    redactor: Redactor,
    say: Callable[[str], None],
) -> Callable[[Service, Host], Drain]:
    """By service and host, what stands before a replica that is to be stopped."""

    def of(service: Service, host: Host) -> Drain:
        found = routed(inventory, service)
        if found is None:
            return NoDrain()
        router = RouterOnHost(transport(found.host), found, lookup, redactor)
        return ReplicaDrain(router, host.name, say)

    return of
