"""What `ddops status` and `ddops board` share: the hosts that are watched, and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.board.books import Reader
    from ddops.board.fleet import Fleet
    from ddops.board.watch import HostWatch, LostRouter, RouterWatch
    from ddops.cli.app import App
    from ddops.compat import Finding
    from ddops.inventory import Host
    from ddops.transport import Transport


def watched(
    app: App,
    target: Sequence[str],
    limit: Sequence[str],
    exclude: Sequence[str],
    *,
    once: bool = False,
) -> list[HostWatch]:
    """The hosts of these targets; without any: your hosts, and the lab's.

    `once` is for one look alone: that is worth more than one try to connect.
    """
    from ddops.board.watch import HostWatch
    from ddops.errors import UsageError

    if target:
        hosts: Sequence[Host] = app.select(target, limit, exclude).hosts
    else:
        own = [h.name for h in app.inventory.hosts.values() if h.origin.kind != "shipped"]
        if not own:
            raise UsageError(
                "no host of yours, and no lab is up", next="ddops lab up, or ddops init"
            )
        hosts = app.select(own, limit, exclude).hosts
    reach = app.transport if once else partial(watching_transport, app)
    return [HostWatch(h, app.inventory, reach(h), app.lookup, app.redactor) for h in hosts]


def watched_routers(
    app: App, watches: Sequence[HostWatch], target: Sequence[str], *, once: bool = False
) -> list[RouterWatch | LostRouter]:
    """Routers of what is watched: of a service that is, and those that run on a host that is."""
    from ddops.board.routers import RouterSpec
    from ddops.board.watch import LostRouter, RouterWatch
    from ddops.errors import UsageError
    from ddops.inventory.router import routed

    names = {s.name for w in watches for s in w.services}
    hosts = {w.name for w in watches}
    asked = {t for t in target if t in app.inventory.services}
    reach = app.transport if once else partial(watching_transport, app)
    out: list[RouterWatch | LostRouter] = []
    for service in app.inventory.services.values():
        table = service.router
        # A service that was named as a target stands alone, as its replicas do.
        if table is None or (asked and service.name not in asked):
            continue
        if service.name not in names and table.host not in hosts:
            continue
        try:
            found = routed(app.inventory, service)
        except UsageError as error:  # one that is misplaced must not hide all others
            spec = RouterSpec(service.name, table.host, f"{table.listen}:{table.port}")
            out.append(LostRouter(spec, error))
            continue
        if found is not None:
            out.append(RouterWatch(found, reach(found.host), app.lookup, app.redactor))
    return out


def watching_transport(app: App, host: Host) -> Transport:
    """A connection that no other host's can hold up: it shares no bound with them, and is tried
    once, since whoever watches tries again by itself."""
    from ddops.transport import ConnectPolicy
    from ddops.transport.ssh import SshTransport

    timeout = app.settings.connect_timeout_s
    policy = ConnectPolicy(concurrent=1, attempts=1, timeout_s=timeout, attempt_s=2 * timeout)
    return SshTransport(app.ssh_target(host), policy)


def reader(app: App) -> Reader:
    """Reads the ledger; facts are judged as `ddops check` does."""
    from ddops.board.books import Reader

    return Reader(app.settings.ledger_path, app.redactor, judge_of(app))


def judge_of(app: App) -> Callable[[str, Mapping[str, object]], Sequence[Finding]]:
    """Judges kept facts of a host with the project's waivers."""
    import json

    from ddops.clock import SystemClock
    from ddops.compat import judge_all, subject_of, waive
    from ddops.inventory.router import router_alone
    from ddops.probe import parse_facts

    def judge(name: str, facts: Mapping[str, object]) -> Sequence[Finding]:
        host = app.inventory.hosts[name]
        alone = router_alone(app.inventory, host)
        found = judge_all(subject_of(parse_facts(json.dumps(facts)), host, None, router=alone))
        return waive(found, app.inventory.waivers, host, SystemClock().now().date())

    return judge


def read_books(app: App, fleet: Fleet) -> Callable[[], dict[str, Any]]:
    """Reads for the hosts of a fleet and the server starts that were seen there."""
    read = reader(app)

    def now() -> dict[str, Any]:
        nonces = {
            seen.observation.launch.nonce
            for state in fleet.states()
            if state.look is not None
            for seen in state.look.services.values()
            if seen.observation.launch is not None
        }
        return read.read(list(fleet.hosts), sorted(nonces))

    return now
