"""The router itself: started when replicas are there, and brought in step with the inventory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ddops.deploy.drain import BACK_S
from ddops.deploy.environment import environment_seen
from ddops.deploy.host import ServiceOnHost, port_is_foreign
from ddops.deploy.record import Recorder
from ddops.deploy.release import Release
from ddops.deploy.router import RouterOnHost, RouterSeen
from ddops.deploy.router_release import router_release
from ddops.deploy.run import Outcome, Tools, Work, at_work, recorder
from ddops.deploy.stop import Stop
from ddops.errors import (
    DdopsError,
    GateFailed,
    RefusedError,
    RollbackFailedError,
    RolledBackError,
    UnreachableError,
)
from ddops.model import State, short
from ddops.transport.files import read_file

#: Looks at replicas that are healthy and late; each waits for six seconds by itself.
LOOKS = 3
#: The router itself listens within two seconds; a busy machine takes longer.
START_S = 60.0


@dataclass(frozen=True, slots=True)
class Settled:
    """What serves now, and what was done to the router's list."""

    outcome: Outcome
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def settle(router: RouterOnHost, versions: Mapping[str, str], tools: Tools) -> Settled:
    """The router is up and serves these replicas: by host, the start that must answer through it.

    What it serves and the inventory does not know is taken out. A replica that this run has not
    proven is left as it is. Raises GateFailed where no healthy replica is behind the router then.
    """
    release = router_release(router.routed, tools.lookup)
    if not versions:
        raise RefusedError(
            f"{router.routed.host.name}: no replica of {router.routed.service.name} is there for a"
            " router",
            next=f"ddops deploy {router.routed.service.name}",
        )
    with_urls = {router.routed.of(host).url: version for host, version in versions.items()}
    seen = _looked(router, with_urls)
    place = router.place
    if seen.state is State.UNKNOWN:  # it may serve all the same: nobody restarts what he cannot see
        raise UnreachableError(
            f"{place.host.name}: the router of {router.routed.service.name} does not answer",
            why=seen.why,
            next=f"ddops status {router.routed.service.name}",
        )
    links = place.links()
    changed = seen.state is not State.UP or links.current != release.digest
    changed = changed or links.committed != release.digest
    if changed:
        seen = _start(router, release, [*with_urls], tools)
    added, removed = _in_step(router, seen, with_urls)
    seen = _looked(router, with_urls)
    if not seen.ready or not seen.healthy:
        raise GateFailed(
            f"{place.host.name}: the router of {router.routed.service.name} is up with no healthy"
            " replica",
            gate="router",
            why=seen.why or _none(seen),
            next=f"ddops status {router.routed.service.name}",
        )
    return Settled(
        Outcome(
            place.host.name, router.routed.name, release.digest, changed, _nonce(router)
        ),
        added, removed,
    )  # fmt: skip


def _looked(router: RouterOnHost, urls: Collection[str]) -> RouterSeen:
    """A look; another one where a replica of `urls` is healthy and was too busy to answer."""
    for _ in range(LOOKS - 1):
        seen = router.look()
        mine = [seen.of(url) for url in urls]
        if all(one.proven or one.healthy is not True for one in mine):
            return seen
    return router.look()


def _none(seen: RouterSeen) -> str:
    silent = [f"{r.url}: {r.why}" for r in seen.replicas if r.healthy]
    return "; ".join(silent) or f"{len(seen.replicas)} known, none healthy"


def _nonce(router: RouterOnHost) -> str:
    launch = router.place.observe(http=False).launch
    return launch.nonce if launch else ""


def _in_step(
    router: RouterOnHost, seen: RouterSeen, versions: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    added, removed = [], []
    for url, version in versions.items():
        if seen.of(url).proven:
            continue
        _, ok = router.add(url, BACK_S)
        if not ok or router.ask(version, BACK_S).get("answered") is not True:
            why = router.look().of(url).why
            raise GateFailed(
                f"{router.routed.host.name}: {url} does not serve through the router",
                gate="router",
                why=why and f"asked from there: {why}",
                next=f"ddops status {router.routed.service.name}",
            )
        if seen.of(url).healthy is None:
            added.append(url)
    ours = {r.url for r in router.routed.replicas}
    for replica in seen.replicas:
        if replica.healthy is not None and replica.url not in ours:
            router.remove(replica.url)
            removed.append(replica.url)
    return tuple(added), tuple(removed)


def _start(router: RouterOnHost, release: Release, urls: Sequence[str], tools: Tools) -> RouterSeen:
    place = router.place
    with at_work(place, f"router {router.routed.service.name}", tools) as work:
        record = recorder(work.ledger, place, release, work.op_id, tools)
        previous = place.links().committed
        record.locked(previous)
        try:
            _fit(router, release)
            record.ok("planned", {"replicas": list(urls)})
            record.ok("staged", {"fresh": place.stage(release, tools.resolve)})
            for url in urls:  # what it starts with; where it runs, they are there already
                router.add(url, 0)
        except BaseException as error:
            record.give_up("failed", str(error), {"touched": "nothing"})
            raise
        try:
            seen = _up(router, release.digest, work, tools)
        except DdopsError as error:
            raise _back(router, previous, error, work, record, tools) from error
        record.ok("started", {"replicas": list(seen.kept)})
        place.commit(release.digest)
        record.committed()
        place.prune(tools.settings.keep_releases, release.digest, previous)
        return seen


def _fit(router: RouterOnHost, release: Release) -> None:
    """Its environment and scripts are as provision leaves them."""
    place = router.place
    env = place.layout.env(str(release.content["lock"]))
    wrong = environment_seen(place.transport, place.host, f"{env}/bin/python").wrong
    start = f"{place.layout.hostside}/router_start.py"
    if read_file(place.transport, start) is None:
        wrong = (*wrong, f"{start} is not there")
    if wrong:
        raise RefusedError(
            f"{place.host.name}: not provisioned for a router",
            why="; ".join(wrong),
            next=f"ddops provision {place.host.name}",
        )
    before = place.observe(http=False)
    if port_is_foreign(before):
        raise RefusedError(
            f"{place.host.name}: port {place.port} is in use by {before.port.owner}",
            next="stop that process, or set another [router] port",
        )


def _up(router: RouterOnHost, digest: str, work: Work, tools: Tools) -> RouterSeen:
    """Stop what runs, start this release, and wait until it answers on its port."""
    place, clock = router.place, tools.clock
    _down(place)
    place.switch(digest)
    place.start(work.op_id)
    end = clock.monotonic() + START_S
    while True:
        seen = router.look()
        now = place.observe(http=False)
        if seen.state is State.UP and now.port.owned and now.launch is not None:
            return seen
        if clock.monotonic() > end:
            tail = tools.redactor(now.log_tail[-600:]).strip()
            raise GateFailed(
                f"{place.host.name}: the router of {router.routed.service.name} does not come up",
                gate="router",
                why=tail or seen.why,
                next=f"see {place.where.log}/engine.log on the host",
            )
        tools.stop.check("while the router started")
        clock.sleep(0.2)


def _down(place: ServiceOnHost) -> None:
    state = place.stop()
    if state.left or state.state is not State.DOWN:
        raise DdopsError(
            f"{place.host.name}: the router did not stop",
            why=f"state {state.word}, processes left: {list(state.left) or 'none'}",
            next="look at those processes on the host",
        )


def _back(
    router: RouterOnHost,
    previous: str | None,
    error: DdopsError,
    work: Work,
    record: Recorder,
    tools: Tools,
) -> DdopsError:
    """The router that was there before, or none; what the caller raises."""
    place, name = router.place, router.place.host.name
    record.give_up("rolling_back", error.what, {"to": previous})
    try:
        if previous is None:
            _down(place)
            place.unlink_current()
        else:
            _up(router, previous, work, replace(tools, stop=Stop()))
    except DdopsError as second:
        record.give_up("stuck", second.what, {})
        return RollbackFailedError(
            f"{name}: the router failed, and so did the way back",
            why=f"{error.what}; then: {second.what}",
            next=f"ddops status {router.routed.service.name}",
        )
    record.back(previous)
    if previous is None:
        return error
    return RolledBackError(
        f"{name}: the router failed, {short(previous)} serves again",
        why=f"{error.what}: {error.why}",
        next=f"ddops status {router.routed.service.name}",
    )
