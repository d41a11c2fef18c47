"""The replicas behind a service's router, and where the router reaches each of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from ddops.errors import UsageError
from ddops.inventory.checks import is_loopback
from ddops.inventory.merge import Inventory
from ddops.inventory.model import Host, RouterTable, Service
from ddops.inventory.port import port_of
from ddops.inventory.targets import address_of, hosts_of, services_on

#: What a router's own folder on its host is called, behind the service's name.
SUFFIX = ".router"
_ANY = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, never listened on


@dataclass(frozen=True, slots=True)
class Replica:
    """One host of a routed service. `url` is where its router sends requests for it."""

    host: str
    url: str


@dataclass(frozen=True, slots=True)
class Routed:
    """A service, the host of its router, and all its replicas in the order of the inventory."""

    service: Service
    table: RouterTable
    host: Host
    replicas: tuple[Replica, ...]

    @property
    def name(self) -> str:
        """The router's own name beside its service's."""
        return self.service.name + SUFFIX

    @property
    def itself(self) -> Service:
        """The router as a service of its own: it has folders, a supervisor and releases too."""
        return structs.replace(self.service, name=self.name, router=None, engine=None)

    def of(self, host: str) -> Replica:
        return next(r for r in self.replicas if r.host == host)


def routed(inventory: Inventory, service: Service) -> Routed | None:
    """The router of a service; None where it has none. Raises UsageError where a replica is out
    of its reach."""
    table = service.router
    if table is None:
        return None
    host = inventory.hosts.get(table.host)
    if host is None:
        raise UsageError(
            f"{service.name}: there is no host `{table.host}` for its router",
            why=f"[router] host in {service.origin.file.name}",
            next="ddops host list",
        )
    replicas = tuple(Replica(h.name, _url(service, h, host)) for h in hosts_of(inventory, service))
    return Routed(service, table, host, replicas)


def routers_on(inventory: Inventory, host: Host) -> tuple[Service, ...]:
    """The services whose router runs on this host."""
    found = (s for s in inventory.services.values() if s.router and s.router.host == host.name)
    return tuple(sorted(found, key=lambda s: s.name))


def router_alone(inventory: Inventory, host: Host) -> bool:
    """Whether a router is all that the host is for: it needs no engine and no GPU."""
    return bool(routers_on(inventory, host)) and not services_on(inventory, host)


def _url(service: Service, replica: Host, router: Host) -> str:
    port = port_of(replica, service)
    if is_loopback(service.listen):
        here = replica.name == router.name or (
            is_loopback(address_of(replica)) and is_loopback(address_of(router))
        )
        if not here:
            raise UsageError(
                f"{service.name}: the router on {router.name} cannot reach {replica.name}",
                why=f"the service listens on {service.listen} there, which is that host alone",
                next="set `listen` and `api_key` in the service's file",
            )
        return f"http://{service.listen}:{port}"
    where = address_of(replica) if service.listen in _ANY else service.listen
    return f"http://{f'[{where}]' if ':' in where and '[' not in where else where}:{port}"
