"""Routers of services: what a look at one says, how much it still says, as rows and cells. Pure.

A router is judged where it is asked (`deploy.router_view`); what is kept is that judgement. Here it
gets old: a router that did not answer the last time, or not for long, is UNKNOWN, and so is every
replica behind it. Silence is never `up`, and never `DOWN`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddops.board.model import EVERY_S, Event, Fresh, freshness
from ddops.board.report import span
from ddops.errors import DdopsError
from ddops.model import short

if TYPE_CHECKING:  # deploy brings the ledger with it: who shows a router does without
    from ddops.deploy.router import RouterSeen
    from ddops.deploy.router_view import RouterWord
    from ddops.inventory.router import Routed

SCHEMA = "ddops.router-look/1"
HEADER = ("REPLICA", "HEALTH", "RELEASE", "NONCE", "NOTE")
#: A look asks every replica too, 6 s for one that is silent: it may take twice a host's time.
PATIENCE_S = 2 * EVERY_S
UNKNOWN, NOT_KNOWN = "UNKNOWN", "?"
_STATES = ("up", "DOWN", "unknown")
_HEALTHY = "ok"


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """A service's router as the inventory names it. `replicas`: host and URL of each."""

    service: str
    host: str
    url: str
    origin: str = "project"
    replicas: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Its name among the hosts: none of theirs has a colon."""
        return f"router:{self.service}"

    @property
    def name(self) -> str:
        return f"{self.service}.router"


def spec_of_router(routed: Routed) -> RouterSpec:
    return RouterSpec(
        routed.service.name, routed.host.name, f"{routed.table.listen}:{routed.table.port}",
        routed.host.origin.kind, tuple((r.host, r.url) for r in routed.replicas),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplicaLook:
    """A replica as its router had it. `in_file`: the router goes on with it after a start."""

    name: str
    url: str
    health: str
    release: str = NOT_KNOWN
    nonce: str = NOT_KNOWN
    note: str = ""
    in_file: bool | None = None


@dataclass(frozen=True, slots=True)
class RouterLook:
    """One look, judged against the inventory. `state` is up, DOWN or unknown."""

    state: str
    why: str
    replicas: tuple[ReplicaLook, ...]


@dataclass(frozen=True, slots=True)
class RouterState:
    """All that is known of a router, as `HostState` is of a host."""

    spec: RouterSpec
    look: RouterLook | None = None
    look_at: float | None = None
    error: str = ""
    since: float | None = None
    failures: int = 0

    def age(self, now: float) -> float | None:
        return None if self.look_at is None else max(0.0, now - self.look_at)


def look_document(seen: RouterSeen, word: RouterWord) -> dict[str, Any]:
    """One look as it is heard, recorded and read again: JSON types only."""
    served = {r.url for r in seen.replicas if r.healthy is not None}
    known = seen.state.value == "up"
    return {
        "schema": SCHEMA,
        "state": word.state,
        "why": word.why,
        "replicas": [
            {"name": r.name, "url": r.url, "health": r.health, "release": r.release,
             "nonce": r.nonce, "in_file": r.url in seen.kept,
             "note": ", ".join(n for n in (r.note, file_note(
                 served=r.url in served, in_file=r.url in seen.kept) if known else "") if n)}
            for r in word.replicas
        ],
    }  # fmt: skip


def file_note(*, served: bool, in_file: bool) -> str:
    """What a router serves against its file: each start goes by the file."""
    if served and not in_file:
        return "not in the router's file: it is gone when the router starts again"
    if in_file and not served:
        return "in the router's file, and taken out by somebody else than ddops"
    return "" if served else "drained, or never put in: ddops deploy puts it back"


def parse_router_look(raw: Mapping[str, Any]) -> RouterLook:
    """Raises DdopsError when it is not of the known schema."""
    try:
        if raw["schema"] != SCHEMA or raw["state"] not in _STATES:
            raise ValueError(f"schema {raw['schema']!r}, state {raw['state']!r}")
        return RouterLook(
            str(raw["state"]), str(raw["why"]), tuple(_replica(r) for r in raw["replicas"])
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DdopsError(
            "the look at a router is not readable", why=f"{type(error).__name__}: {error}"
        ) from error


def _replica(raw: Mapping[str, Any]) -> ReplicaLook:
    return ReplicaLook(
        name=str(raw["name"]), url=str(raw["url"]), health=str(raw["health"]),
        release=str(raw["release"]), nonce=str(raw["nonce"]), note=str(raw["note"]),
        in_file=raw["in_file"] is True,
    )  # fmt: skip


def heard_look(old: RouterState, payload: Mapping[str, Any], at: float) -> RouterState:
    try:
        seen = parse_router_look(payload)
    except DdopsError as error:
        return heard_error(old, f"{error.what}: {error.why}", at)
    return replace(old, look=seen, look_at=at, error="", since=None, failures=0)


def heard_error(old: RouterState, why: str, at: float) -> RouterState:
    since = old.since if old.since is not None else at
    return replace(old, error=why, since=since, failures=old.failures + 1)


def now_of(state: RouterState, now: float) -> RouterLook:
    """What may be said now; its state is up, DOWN or UNKNOWN."""
    look, age = state.look, state.age(now)
    if look is None or age is None:
        return _unknown(state, state.error or "not asked yet")
    if state.error or freshness(age, PATIENCE_S) is not Fresh.NOW:
        why = f": {state.error}" if state.error else ""
        return _unknown(state, f"{look.state} {span(age)} ago, no answer since{why}")
    return replace(look, state=UNKNOWN) if look.state == "unknown" else look


def _unknown(state: RouterState, why: str) -> RouterLook:
    """Every replica of the inventory, and those that were seen, with nothing known of them."""
    names = dict(state.spec.replicas)
    names |= {r.name: r.url for r in state.look.replicas} if state.look else {}
    return RouterLook(UNKNOWN, why, tuple(ReplicaLook(n, u, NOT_KNOWN) for n, u in names.items()))


def served(look: RouterLook) -> str:
    """`3/4 ok`: how many of its replicas it serves and finds well; `?` where that is not known."""
    if look.state == UNKNOWN or any(r.health == NOT_KNOWN for r in look.replicas):
        return NOT_KNOWN
    return f"{sum(r.health == _HEALTHY for r in look.replicas)}/{len(look.replicas)} ok"


def head(state: RouterState, now: float) -> str:
    """The router itself, in one line."""
    look, spec = now_of(state, now), state.spec
    tag = f" [{spec.origin}]" if spec.origin not in ("", "project") else ""
    why = f": {look.why}" if look.why else ""
    return f"{spec.name} on {spec.host}{tag} at {spec.url} is {look.state}{why}"


def rows(state: RouterState, now: float) -> list[tuple[str, ...]]:
    """One line a replica."""
    return [
        (r.name, r.health, short(r.release), r.nonce, r.note) for r in now_of(state, now).replicas
    ]


def document(state: RouterState, now: float) -> dict[str, Any]:
    """The same for programs, as one more entry beside the hosts' services."""
    look, spec, age = now_of(state, now), state.spec, state.age(now)
    return {
        "host": spec.host,
        "origin": spec.origin,
        "service": spec.name,
        "router_of": spec.service,
        "url": f"http://{spec.url}",
        "state": "unknown" if look.state == UNKNOWN else look.state,
        "why": look.why,
        "age_s": None if age is None else round(age, 1),
        "replicas": [
            {"replica": r.name, "url": r.url, "health": r.health, "release": r.release,
             "nonce": r.nonce, "in_file": r.in_file, "note": r.note}
            for r in look.replicas
        ],
    }  # fmt: skip


def router_changes(old: RouterState, new: RouterState, at: float) -> Iterator[Event]:
    """What is different between two states, in words a person would log."""
    name, host = new.spec.name, new.spec.host
    if new.error and not old.error:
        yield Event(at, host, f"{name} is not known: {new.error}", bad=True)
    was, now = old.look, new.look
    if was is None or now is None or was is now:
        return
    if was.state != now.state:
        why = f": {now.why}" if now.why else ""
        yield Event(at, host, f"{name} is {now.state}{why}", bad=now.state != "up")
    before = {r.url: r.health for r in was.replicas}
    for one in now.replicas:
        if before.get(one.url) not in (None, one.health):
            words = f"{name}: {one.name} is {one.health}"
            yield Event(at, host, words, bad=one.health != _HEALTHY)


def in_need(states: Sequence[RouterState], now: float) -> int:
    """How many are not known to serve all that is theirs."""
    looks = [now_of(s, now) for s in states]
    return sum(x.state != "up" or any(r.health != _HEALTHY for r in x.replicas) for x in looks)
