"""A host of the inventory that can be asked: one connection, one round trip a look."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddops.board.look import look_spec, parse_look
from ddops.board.model import HostSpec, ServiceSpec
from ddops.board.routers import RouterSpec, look_document, spec_of_router
from ddops.command import ALONE, Redactor, cmd
from ddops.errors import CommandFailed, DdopsError
from ddops.hostside import joined
from ddops.inventory import Host, Inventory, Service, placed, services_on
from ddops.inventory.port import port_of
from ddops.inventory.router import Routed
from ddops.transport import Transport

Lookup = Callable[[str], Path]
#: The script's own limits come to less; a host that needs longer is not answering.
LOOK_DEADLINE_S = 25.0
LOOK_LIMIT = 4 << 20


def spec_of(host: Host, services: Sequence[Service]) -> HostSpec:
    """The host as the board names it."""
    return HostSpec(
        name=host.name,
        origin=host.origin.kind,
        groups=tuple(host.groups),
        kind=host.host_class or "",
        simulated=host.simulated,
        services=tuple(
            ServiceSpec(s.name, port_of(host, s), s.listen, s.node.rank > 0) for s in services
        ),
    )


class HostWatch:
    """Asks one host for what the board shows."""

    def __init__(
        self,
        host: Host,
        known: Inventory,
        transport: Transport,
        lookup: Lookup,
        redactor: Redactor,
        script: Callable[[], str] = lambda: joined("observe", "board"),
    ) -> None:
        self.host = host
        self.services = tuple(placed(known, s, host) for s in services_on(known, host))
        self.spec = spec_of(host, self.services)
        self._known = known
        self._transport = transport
        self._lookup = lookup
        self._redactor = redactor
        self._words = (host.python, *ALONE, "-", look_spec(self.spec, host.engine_dir))
        self._script = script().encode()

    @property
    def name(self) -> str:
        return self.host.name

    def look(self) -> dict[str, Any]:
        """One look, as the host printed it; proven to be readable."""
        done = self._transport.run(
            cmd(*self._words, stdin=self._script), deadline_s=LOOK_DEADLINE_S, limit=LOOK_LIMIT
        )
        if not done.ok:
            raise CommandFailed(
                f"{self.name}: the host cannot be looked at",
                rc=done.rc,
                stderr=done.err,
                next=f"ddops probe {self.name}",
            )
        try:
            raw = json.loads(done.out)
        except ValueError as error:
            raise DdopsError(f"{self.name}: the host's look is not JSON", why=str(error)) from error
        parse_look(raw)
        if not isinstance(raw, dict):
            raise DdopsError(f"{self.name}: the host's look is not an object")
        return raw

    def drift(self) -> dict[str, Any]:
        """Rows of drift of every service that was ever deployed here."""
        # Here: it brings the ledger with it, which a look at many hosts does without.
        from ddops.deploy import drift_of
        from ddops.deploy.host import ServiceOnHost

        looked = parse_look(self.look())
        rows: list[dict[str, str]] = []
        for service in self.services:
            seen = looked.services[service.name].observation
            if seen.current is None:
                continue  # nothing was released here: nothing can have drifted
            target = ServiceOnHost(
                self._transport, self.host, service, port_of(self.host, service), self._lookup,
                self._redactor,
            )  # fmt: skip
            for row in drift_of(target, seen, self._wanted(service)):
                rows.append(
                    {"service": service.name, "what": row.what, "recorded": row.recorded,
                     "observed": row.observed, "verdict": row.verdict.value}
                )  # fmt: skip
        return {"rows": rows}

    def close(self) -> None:
        self._transport.close()

    def _wanted(self, service: Service) -> str | None:
        """What the inventory would deploy; None where it cannot be rendered here."""
        from ddops.deploy import prepare

        try:
            profile = self._known.profile_of(service)
            return prepare(self.host, service, profile, self._lookup).digest
        except DdopsError:
            return None


class LostRouter:
    """A router that the inventory puts where it cannot be: it is shown, and why it is not asked."""

    def __init__(self, spec: RouterSpec, error: DdopsError) -> None:
        self.spec = spec
        self.error = error

    @property
    def name(self) -> str:
        return self.spec.key

    def look(self) -> dict[str, Any]:
        raise self.error

    def drift(self) -> dict[str, Any]:
        return {"rows": []}

    def close(self) -> None:
        """Nothing is open."""


class RouterWatch:
    """Asks the router of one service, on its host, what it serves."""

    def __init__(
        self, routed: Routed, transport: Transport, lookup: Lookup, redactor: Redactor
    ) -> None:
        self.routed = routed
        self.spec = spec_of_router(routed)
        self._transport = transport
        self._lookup = lookup
        self._redactor = redactor

    @property
    def name(self) -> str:
        return self.spec.key

    def look(self) -> dict[str, Any]:
        """One look, judged against the inventory."""
        from ddops.deploy.router import RouterOnHost
        from ddops.deploy.router_view import judge_router

        router = RouterOnHost(self._transport, self.routed, self._lookup, self._redactor)
        seen = router.look()
        return look_document(seen, judge_router(self.routed, seen))

    def drift(self) -> dict[str, Any]:
        """None of its own: `ddops drift` tells it with its replicas'."""
        return {"rows": []}

    def close(self) -> None:
        self._transport.close()
