"""Target expressions: which hosts and services a command line means.

A word is a host, a group, a service or an alias, or a pattern such as `lab*` over those names.
Commas join words. Nothing found is an error, never "all".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from msgspec import structs

from ddops.config.toml import shown
from ddops.config.words import nearest
from ddops.errors import UsageError
from ddops.inventory.merge import Inventory
from ddops.inventory.model import Host, Node, Service

#: Groups that a running lab makes: CPU hosts, and recorded GPU hosts.
LAB_GROUPS = ("lab", "lab-gpu")


@dataclass(frozen=True, slots=True)
class Selection:
    """Hosts and services in the order they were asked for, each once.

    A service stands here when it was asked for, or when a host was asked for that runs it.
    """

    hosts: tuple[Host, ...]
    services: tuple[Service, ...]
    inventory: Inventory


def resolve(
    inventory: Inventory,
    expressions: Sequence[str],
    *,
    limit: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Selection:
    """What `expressions` mean. `limit` keeps only the hosts it means, `exclude` drops its hosts.

    Raises UsageError for an unknown name and when no host is left.
    """
    words = _words(expressions)
    if not words:
        raise UsageError(
            "no target given",
            why="a target is a host, a group, a service or an alias; none of them means all",
            next="ddops host list",
        )
    hosts: dict[str, Host] = {}
    services: dict[str, Service] = {}
    for word in words:
        for name in _expand(inventory, word):
            for service in _add(inventory, name, hosts):
                services.setdefault(service.name, service)
    left = dict(hosts)
    if limit:
        keep = _hosts_of(inventory, limit)
        left = {n: h for n, h in left.items() if n in keep}
    if exclude:
        drop = _hosts_of(inventory, exclude)
        left = {n: h for n, h in left.items() if n not in drop}
    if not left:
        raise UsageError(
            f"no host is left of {', '.join(words)}",
            why=f"limit and exclude take away {', '.join(hosts)}",
            next="widen --limit, or shorten --exclude",
        )
    still = [s for s in services.values() if set(_member_names(inventory, s)) & set(left)]
    return Selection(tuple(left.values()), tuple(still), inventory)


def services_on(inventory: Inventory, host: Host) -> tuple[Service, ...]:
    """The services that name this host, directly, by a group or by an alias."""
    found = (s for s in inventory.services.values() if _is_meant(inventory, s, host))
    return tuple(sorted(found, key=lambda s: s.name))


def hosts_of(inventory: Inventory, service: Service) -> tuple[Host, ...]:
    """The hosts of a service, in the order it names them. Raises UsageError when one is missing."""
    hosts: dict[str, Host] = {}
    for name in service.hosts:
        found = _members(inventory, name)
        if not found:
            raise _absent(inventory, service, name)
        for host in found:
            hosts.setdefault(host.name, host)
    return tuple(hosts.values())


def placed(inventory: Inventory, service: Service, host: Host) -> Service:
    """The service as it stands on this host: of several that make one engine, which one it is.

    As it is where `nnodes` is 1, or where the service's hosts are not as many as that.
    """
    if service.nnodes == 1:
        return service
    if service.hosts_of_one == 1:
        return structs.replace(service, node=Node(later=True))
    names = _member_names(inventory, service)
    if len(names) != service.nnodes or host.name not in names:
        return service
    first = inventory.hosts[names[0]]
    address = address_of(first)
    node = Node(names.index(host.name), f"{address}:{service.dist_port}")
    return structs.replace(service, node=node)


def address_of(host: Host) -> str:
    """How other hosts reach this one: `vars.address`, else the name that SSH uses."""
    return str(host.vars.get("address") or host.ssh.rpartition("@")[2])


def one_service_per_host(selection: Selection) -> tuple[tuple[Host, Service], ...]:
    """Each selected host with its one selected service; raises UsageError naming the rest."""
    pairs, several, none = [], [], []
    for host in selection.hosts:
        on = [s for s in selection.services if host.name in _member_names(selection.inventory, s)]
        if len(on) == 1:
            pairs.append((host, placed(selection.inventory, on[0], host)))
        elif on:
            several.append((host, on))
        else:
            none.append(host.name)
    if several:
        host, on = several[0]
        raise UsageError(
            "; ".join(f"{h.name} has {', '.join(s.name for s in o)}" for h, o in several),
            why="one service at a time goes to a host, and the target names several",
            next=f"name the service: {on[0].name} --limit {host.name}",
        )
    if none:
        raise UsageError(
            f"no service names {', '.join(none)}",
            why="a service's `hosts` says where it runs",
            next="add the host to a file of inventory/services/",
        )
    return tuple(pairs)


def _add(inventory: Inventory, name: str, hosts: dict[str, Host]) -> tuple[Service, ...]:
    """Add the hosts that one known name means; returns the services that come with it."""
    if name in inventory.aliases:
        target = inventory.aliases[name].target
        if target in inventory.aliases or not _is_known(inventory, target):
            file = shown(inventory.aliases[name].origin.file, inventory.root)
            raise UsageError(
                f"alias {name} means {target}, and there is no host, group or service of that name",
                why=f"{file} says so",
                next="mend the alias",
            )
        name = target
    if name in inventory.services:
        service = inventory.services[name]
        for host in hosts_of(inventory, service):
            hosts.setdefault(host.name, host)
        return (service,)
    found = _members(inventory, name)
    if not found:
        raise _no_hosts(inventory, name)
    for host in found:
        hosts.setdefault(host.name, host)
    return tuple(s for host in found for s in services_on(inventory, host))


def _expand(inventory: Inventory, word: str) -> list[str]:
    """The names a word stands for: itself, or what its pattern matches."""
    if not any(c in word for c in "*?["):
        if _is_known(inventory, word):
            return [word]
        raise _unknown(inventory, word)
    names = _reachable(inventory)
    names += [n for n, a in inventory.aliases.items() if a.target in names]
    found = sorted(n for n in names if fnmatchcase(n, word))
    if not found:
        raise UsageError(
            f"no host, group or service is like {word}",
            why="a pattern that means nothing is never taken for all",
            next="ddops host list",
        )
    return found


def _reachable(inventory: Inventory) -> list[str]:
    """Hosts, and groups and services that have hosts: what a pattern may match.

    Shipped examples are nobody's machines. Where a project has hosts of its own, or a lab is up,
    a pattern does not reach out to them.
    """
    hosts = {h.name for h in inventory.hosts.values() if h.origin.kind != "shipped"}
    hosts = hosts or set(inventory.hosts)
    groups = [g for g, members in inventory.groups.items() if hosts & {h.name for h in members}]
    services = [
        s.name for s in inventory.services.values() if hosts & set(_member_names(inventory, s))
    ]
    return [*hosts, *groups, *services]


def _words(expressions: Iterable[str]) -> list[str]:
    parts = (p.strip() for e in expressions for p in e.split(","))
    return list(dict.fromkeys(p for p in parts if p))


def _hosts_of(inventory: Inventory, expressions: Sequence[str]) -> dict[str, Host]:
    hosts: dict[str, Host] = {}
    for word in _words(expressions):
        for name in _expand(inventory, word):
            _add(inventory, name, hosts)
    return hosts


def _members(inventory: Inventory, name: str) -> tuple[Host, ...]:
    """The hosts behind a host's, a group's or an alias's name; none when it is neither."""
    if name in inventory.aliases:
        name = inventory.aliases[name].target
    if name in inventory.hosts:
        return (inventory.hosts[name],)
    return inventory.groups.get(name, ())


def _is_meant(inventory: Inventory, service: Service, host: Host) -> bool:
    """As `_members` of its names, but without listing a fleet for each of its hosts."""
    for name in service.hosts:
        if name in inventory.aliases:
            name = inventory.aliases[name].target
        if name == host.name or (name in host.groups and name not in inventory.hosts):
            return True
    return False


def _member_names(inventory: Inventory, service: Service) -> list[str]:
    return [h.name for name in service.hosts for h in _members(inventory, name)]


def _is_known(inventory: Inventory, name: str) -> bool:
    named = {n for s in inventory.services.values() for n in s.hosts}
    return (
        name in inventory.hosts
        or name in inventory.services
        or name in inventory.aliases
        or name in inventory.groups
        or name in named
        or name in LAB_GROUPS
    )


def _unknown(inventory: Inventory, word: str) -> UsageError:
    names = [*inventory.hosts, *inventory.groups, *inventory.services, *inventory.aliases]
    near = nearest(word, names)
    return UsageError(
        f"unknown target `{word}`" + (f", nearest is `{near}`" if near else ""),
        why="it is no host, group, service or alias",
        next="ddops host list",
    )


def _no_hosts(inventory: Inventory, name: str) -> UsageError:
    if name in LAB_GROUPS:
        up = "ddops lab up" if name == "lab" else "ddops lab up --gpu pcie"
        return UsageError(f"no host is in group {name}; `{up}` makes them", next=up)
    near = nearest(name, [*inventory.hosts, *inventory.groups])
    return UsageError(
        f"there is no host or group `{name}`" + (f", nearest is `{near}`" if near else ""),
        why="a service names it",
        next="mend the service's `hosts`, or give a host this group in inventory/hosts.toml",
    )


def _absent(inventory: Inventory, service: Service, name: str) -> UsageError:
    error = _no_hosts(inventory, name)
    file = shown(service.origin.file, inventory.root)
    return UsageError(error.what, why=f"service {service.name} ({file}) names it", next=error.next)
