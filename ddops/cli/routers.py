"""Services behind a router, for the commands that deploy, look and compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.deploy import Outcome, Row, Tools
    from ddops.deploy.drain import Drain
    from ddops.deploy.fleet import Rules
    from ddops.deploy.router import RouterOnHost
    from ddops.deploy.router_run import Settled
    from ddops.inventory import Host, Service

Pair = tuple["Host", "Service"]


def router_of(app: App, service: Service) -> RouterOnHost | None:
    """The router of a service, on its host; None where it has none."""
    from ddops.deploy.router import RouterOnHost
    from ddops.inventory.router import routed

    found = routed(app.inventory, service)
    if found is None:
        return None
    return RouterOnHost(app.transport(found.host), found, app.lookup, app.redactor)


def drains_of(app: App) -> Callable[[Service, Host], Drain]:
    """What stands before a replica that is to be stopped."""
    from ddops.deploy import drain

    return drain.drains_of(app.inventory, app.transport, app.lookup, app.redactor, app.say)


def rolling(app: App, pairs: Sequence[Pair], rules: Rules) -> tuple[list[Pair], Rules]:
    """Order and rules of an update. Behind a router that is up: one replica after the other, those
    that serve nothing first, and what has passed stays when another one fails."""
    from dataclasses import replace

    from ddops.model import State

    healthy: set[tuple[str, str]] = set()
    up = False
    for service in {s.name: s for _, s in pairs}.values():
        router = router_of(app, service)
        seen = router.look() if router is not None and router.place.links().current else None
        if router is None or seen is None or seen.state is State.DOWN:
            continue
        up = True
        urls = set(seen.healthy)
        healthy |= {(service.name, r.host) for r in router.routed.replicas if r.url in urls}
    if not up:
        return list(pairs), rules
    ordered = sorted(pairs, key=lambda p: (p[1].name, p[0].name) in healthy)
    return ordered, replace(rules, batch=rules.batch or 1, keep=True)


def settle_routers(
    app: App, outcomes: Sequence[tuple[Host, Service, Outcome | Exception]], tools: Tools
) -> list[tuple[str, str, Settled | Exception]]:
    """The router of each service serves what has been deployed: its host and URL with each."""
    from ddops.deploy import Outcome
    from ddops.deploy.router_run import settle
    from ddops.errors import DdopsError
    from ddops.model import short

    out: list[tuple[str, str, Settled | Exception]] = []
    for service in {s.name: s for _, s, _ in outcomes}.values():
        router = router_of(app, service)
        if router is None:
            continue
        versions = {
            h.name: f"{o.release[:12]}-{o.nonce}"
            for h, s, o in outcomes
            if s.name == service.name and isinstance(o, Outcome)
        }
        table, host = router.routed.table, router.routed.host.name
        url = f"http://{table.listen}:{table.port}"
        if not versions:
            continue  # nothing was deployed: nothing about the router is to be said
        try:
            done = settle(router, versions, tools)
        except DdopsError as error:
            out.append((host, url, error))
            continue
        words = f"router of {service.name}: {short(done.outcome.release)} serves at {url}"
        app.say(words, host)
        for added in done.added:
            app.say(f"{added} was not behind the router: it is now", host)
        for removed in done.removed:
            app.warn(f"{removed} is in no inventory: taken out of the router", host)
        out.append((host, url, done))
    return out


def planned_routers(app: App, services: Sequence[Service]) -> list[str]:
    """What a dry run says of the routers, from local files."""
    from ddops.deploy.router_release import router_release
    from ddops.inventory.router import routed
    from ddops.model import short

    out = []
    for service in {s.name: s for s in services}.values():
        found = routed(app.inventory, service)
        if found is None:
            continue
        table, digest = found.table, router_release(found, app.lookup).digest
        out.append(f"router of {service.name} on {found.host.name}, policy {table.policy}")
        out.append(f"  release    {short(digest)}")
        out.append(f"  listens    http://{table.listen}:{table.port}")
        out += [f"  replica    {r.host} {r.url}" for r in found.replicas]
    return out


def drift_of_router(app: App, host: Host, service: Service) -> list[Row]:
    """What drift says of a replica's router; nothing where it has none."""
    from ddops.deploy.router_release import router_release
    from ddops.deploy.router_view import drift_rows, judge_router

    router = router_of(app, service)
    if router is None:
        return []
    word = judge_router(router.routed, router.look())
    wanted = router_release(router.routed, app.lookup).digest
    current = router.place.links().current
    return drift_rows(router.routed, word, host.name, wanted, current)
