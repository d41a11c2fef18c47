"""What a deploy reads of a host before it judges anything: begun at once, side by side.

These only look, and none needs another's answer. So they begin as soon as the lock is held, where a
deploy is likely; each is waited for where its transition comes, and its error is raised there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from ddops.deploy.host import ServiceOnHost
from ddops.deploy.preflight import Preflight
from ddops.deploy.release import Release
from ddops.inventory.model import Host
from ddops.plan import Proposal
from ddops.probe import Facts, collect
from ddops.snapshot import BeforeDeploy, Step, Tools

Rows = Sequence[tuple[str, str, Proposal]]


@dataclass(frozen=True, slots=True)
class Ahead:
    """Answers that are on their way. `rows` is what provision would still do."""

    facts: Future[Facts]
    rows: Future[Rows]
    parsed: Future[Preflight]
    #: Takes the snapshot, of which that part is on its way that takes nothing.
    snapshot: Callable[[Facts, bool], Step]


@contextmanager
def looking(
    service: ServiceOnHost,
    release: Release,
    prepared: Callable[[], Rows],
    preflight_timeout_s: float,
    snapshots: Callable[[Host], Tools] | str,
) -> Iterator[Ahead]:
    """Begin; at the end of the block nothing looks at the host any more.

    `snapshots` is what a snapshot needs, or why none is taken.
    """
    host = service.host
    root = str(host.vars.get("root", "/"))
    with ThreadPoolExecutor(4, thread_name_prefix="look") as pool:
        yield Ahead(
            facts=pool.submit(collect, service.transport, host.python, host.engine_dir, root),
            rows=pool.submit(prepared),
            parsed=pool.submit(service.preflight, release, preflight_timeout_s),
            snapshot=_snapshot(service, snapshots, pool),
        )


def _snapshot(
    service: ServiceOnHost, given: Callable[[Host], Tools] | str, pool: ThreadPoolExecutor
) -> Callable[[Facts, bool], Step]:
    if isinstance(given, str):
        return lambda _facts, _required: Step(given, {})
    kept = BeforeDeploy(service.transport, service.host, service.service.name, given)
    asked = pool.submit(kept.ask)

    def take(facts: Facts, required: bool) -> Step:
        asked.result()
        return kept.take(facts, required)

    return take
