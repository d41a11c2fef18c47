"""The router of a service on its host: what it serves, and one small verb for each change.

The calls run on the router's own host, through `hostside/router.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ddops.command import Redactor, cmd, python
from ddops.deploy.host import ServiceOnHost
from ddops.errors import CommandFailed, RefusedError
from ddops.hostside import source
from ddops.inventory.router import Routed
from ddops.model import State
from ddops.transport import Transport

Lookup = Callable[[str], Path]
SCHEMA = "ddops.router/1"
#: Longer than the script's own limits come to.
LOOK_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """A replica as its router has it. `healthy` is None where the router does not know it.

    The router goes by its own looks, and two must fail in a row: a replica that hangs is healthy
    for it for up to 22 s more. `why` is what went wrong when the replica was asked just now.
    """

    url: str
    healthy: bool | None
    version: str = ""
    why: str = ""

    @property
    def proven(self) -> bool:
        """Healthy for the router, and it answered when it was asked."""
        return self.healthy is True and not self.why


@dataclass(frozen=True, slots=True)
class RouterSeen:
    """One look at a router. `kept` is what it goes on with when it is started again."""

    state: State
    ready: bool
    replicas: tuple[ReplicaSeen, ...]
    kept: tuple[str, ...]
    why: str = ""

    @property
    def healthy(self) -> tuple[str, ...]:
        return tuple(r.url for r in self.replicas if r.proven)

    def of(self, url: str) -> ReplicaSeen:
        return next((r for r in self.replicas if r.url == url), ReplicaSeen(url, None))


def parse_router(raw: Mapping[str, object]) -> RouterSeen:
    """What `hostside/router.py` printed. Raises CommandFailed where it is of another version."""
    try:
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}, want {SCHEMA!r}")
        rows = _rows(raw.get("replicas", []))
        said = raw.get("said", {})
        known = {str(r["url"]): r["healthy"] is True for r in rows}
        asked = {str(u): a for u, a in said.items()} if isinstance(said, dict) else {}
        kept = raw.get("kept", [])
        return RouterSeen(
            State(str(raw["state"])),
            raw.get("ready") is True,
            tuple(_replica(u, known.get(u), asked.get(u)) for u in {**known, **asked}),
            tuple(str(u) for u in kept) if isinstance(kept, list) else (),
            str(raw.get("why", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandFailed(
            "the router's answer is not readable",
            rc=0,
            why=f"{type(error).__name__}: {error}",
            next="ddops provision brings the host's scripts up to date",
        ) from error


def _rows(value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, list):
        raise TypeError("replicas is no list")
    return value


def _replica(url: str, healthy: bool | None, said: object) -> ReplicaSeen:
    answer: Mapping[str, object] = said if isinstance(said, dict) else {}
    version = str(answer.get("weight_version") or "")
    return ReplicaSeen(url, healthy, version, str(answer.get("error") or ""))


class NotProvisionedError(RefusedError):
    """The host has no scripts of ours: provision was never there."""


@dataclass(frozen=True, slots=True)
class RouterOnHost:
    """One service's router. `transport` is to the router's host."""

    transport: Transport
    routed: Routed
    lookup: Lookup
    redactor: Redactor

    @property
    def place(self) -> ServiceOnHost:
        """The router as a service of its own: folders, supervisor, releases and links."""
        r = self.routed
        return ServiceOnHost(
            self.transport, r.host, r.itself, r.table.port, self.lookup, self.redactor
        )

    def look(self) -> RouterSeen:
        """What the router serves, and who each of the inventory's replicas says it is.

        Where provision has never been, the host is asked all the same: `why` says so of a router
        that is down.
        """
        urls = [r.url for r in self.routed.replicas]
        try:
            return parse_router(self._call("look", *urls))
        except NotProvisionedError:
            seen = parse_router(self._call("look", *urls, sent=True))
            if seen.state is State.UP:
                return seen
            unsure = f"; {seen.why}" if seen.state is State.UNKNOWN else ""
            return replace(seen, why="not provisioned" + unsure)

    def remove(self, url: str) -> tuple[RouterSeen, Mapping[str, object]]:
        """No new request goes to `url`; refused, with `last`, for the last healthy replica."""
        raw = self._call("remove", url)
        return parse_router(raw), raw

    def add(self, url: str, seconds: float) -> tuple[RouterSeen, bool]:
        """`url` is served again; False where the router does not call it healthy in time."""
        raw = self._call("add", url, f"{seconds:g}", limit_s=seconds)
        return parse_router(raw), raw.get("added") is True

    def running(self, url: str) -> Mapping[str, object]:
        """Requests at work on a replica, by its own count; null where it tells none."""
        return self._call("running", url)

    def ask(self, version: str, seconds: float) -> Mapping[str, object]:
        """Ask through the router until that start has answered."""
        model = str(self.routed.service.served_model_name)
        return self._call("ask", version, model, f"{seconds:g}", limit_s=seconds)

    def _call(
        self, verb: str, *words: str, limit_s: float = 0.0, sent: bool = False
    ) -> Mapping[str, object]:
        """`sent`: the script goes with the call, to a host that has none."""
        place, table = self.place, self.routed.table
        script = f"{place.layout.hostside}/router.py"
        argv = (place.where.dir, table.listen, str(table.port), verb, *words)
        interpreter = place.host.python
        call = cmd(interpreter, script, *argv)
        if sent:
            call = python(source("router"), *argv, interpreter=interpreter)
        done = self.transport.run(call, deadline_s=LOOK_DEADLINE_S + limit_s)
        if not done.ok and "can't open file" in done.err:
            raise NotProvisionedError(
                f"{place.host.name}: not provisioned for a router",
                next=f"ddops provision {place.host.name}",
            )
        if not done.ok:
            raise CommandFailed(
                f"{place.host.name}: the router of {self.routed.service.name} cannot be asked to"
                f" {verb}",
                rc=done.rc,
                stderr=done.err,
                next=f"ddops provision {place.host.name}",
            )
        raw = json.loads(done.out)
        if not isinstance(raw, dict):
            raise CommandFailed(f"{place.host.name}: the router's answer is no object", rc=0)
        return raw
