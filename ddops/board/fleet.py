"""The fleet as it is known: what was heard is applied in order, live or from a recording. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ddops.board.judge import changes
from ddops.board.look import parse_drift, parse_look
from ddops.board.model import Books, Event, HostSpec, HostState
from ddops.board.pages_of_ledger import parse_books
from ddops.board.routers import (
    RouterSpec,
    RouterState,
    heard_error,
    heard_look,
    router_changes,
)
from ddops.errors import DdopsError

MOST_EVENTS = 500


class Kind(StrEnum):
    """What was heard."""

    LOOK = "look"
    ERROR = "error"
    DRIFT = "drift"
    BOOKS = "books"


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer, or its absence, as it came: redacted, JSON types only.

    `host` is "" for books, and a router's key for a router.
    """

    at: float
    host: str
    kind: Kind
    payload: Mapping[str, Any]


@dataclass(slots=True)
class Fleet:
    """States by host name, the ledger's last reading, and what changed."""

    hosts: dict[str, HostState]
    books: Books = field(default_factory=lambda: Books(0.0, "the ledger was not read yet"))
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    #: By key.
    routers: dict[str, RouterState] = field(default_factory=dict)
    #: Counts what was applied: whoever draws sees whether there is anything new.
    heard: int = 0

    @classmethod
    def of(cls, specs: Iterable[HostSpec], routers: Iterable[RouterSpec] = ()) -> Fleet:
        known = {r.key: RouterState(r) for r in routers}
        return cls({s.name: HostState(s) for s in specs}, routers=known)

    def apply(self, heard: Heard) -> None:
        """Take in one answer. One that cannot be read is an error of its host, and shows."""
        self.heard += 1
        if heard.kind is Kind.BOOKS:
            self.books = parse_books(heard.payload, heard.at)
            return
        if heard.host in self.routers:
            self._apply_router(self.routers[heard.host], heard)
            return
        old = self.hosts.get(heard.host)
        if old is None:
            return  # a recording may name a host that its head does not; nothing is made up of it
        new = _next(old, heard)
        self.hosts[heard.host] = new
        self.events.extend(changes(old, new, heard.at))

    def _apply_router(self, old: RouterState, heard: Heard) -> None:
        if heard.kind is Kind.LOOK:
            new = heard_look(old, heard.payload, heard.at)
        elif heard.kind is Kind.ERROR:
            new = heard_error(old, str(heard.payload.get("error", "no answer")), heard.at)
        else:
            return  # drift of a router is told with its replicas'
        self.routers[heard.host] = new
        self.events.extend(router_changes(old, new, heard.at))

    def states(self) -> Sequence[HostState]:
        return list(self.hosts.values())


def _next(old: HostState, heard: Heard) -> HostState:
    if heard.kind is Kind.DRIFT:
        return replace(old, drift=parse_drift(heard.payload, heard.at))
    if heard.kind is Kind.LOOK:
        try:
            seen = parse_look(heard.payload)
        except DdopsError as error:
            return _failed(old, heard.at, str(error))
        return replace(
            old, look=seen, look_at=heard.at, before=old.look,
            error="", error_at=None, since=None, failures=0,
        )  # fmt: skip
    return _failed(old, heard.at, str(heard.payload.get("error", "no answer")))


def _failed(old: HostState, at: float, why: str) -> HostState:
    since = old.since if old.since is not None else at
    return replace(old, error=why, error_at=at, since=since, failures=old.failures + 1)
