"""Measuring what is deployed: which profile it is, and its runs under the host's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddops import lock
from ddops.bench.plan import Point, refuse_oversize
from ddops.bench.prompts import Prompts, read_prompts
from ddops.bench.runner import Bench, Measured
from ddops.bench.target import Target
from ddops.clock import Clock
from ddops.deploy import port_of, prepare
from ddops.errors import RefusedError, UsageError
from ddops.events import Reporter
from ddops.inventory import Inventory
from ddops.inventory.model import Host, Service
from ddops.inventory.suites import Kind, Suite, find_suite
from ddops.ledger import Ledger
from ddops.model import State, short
from ddops.transport import Transport

Lookup = Callable[[str], Path]


def target_of(
    transport: Transport, host: Host, service: Service, inventory: Inventory, lookup: Lookup
) -> Target:
    """A host with a service, and the service's own profile."""
    profile = inventory.profile_of(service)
    return Target(transport, host, service, profile, port_of(host, service), lookup)


def as_deployed(inventory: Inventory, target: Target) -> Target:
    """The target with the profile whose release runs there.

    Raises RefusedError when no profile of today makes that release: nobody could say then what
    the numbers belong to.
    """
    seen = target.observe()
    if seen.engine is not State.UP or seen.launch is None:
        return target  # `prove` says what to do then
    own = target.service.profile
    for name in sorted(inventory.profiles, key=lambda n: (n != own, n)):
        try:
            profile = inventory.profile_of(target.service, name)
        except UsageError:
            continue  # does not fit this service
        made = prepare(target.host, target.service, profile, target.lookup)
        if made.digest == seen.launch.release:
            return replace(target, profile=profile)
    raise RefusedError(
        f"{target.host.name}: no profile here makes the release {short(seen.launch.release)}",
        why="a profile, a model or a lock was changed since it was deployed, or a sweep was stopped"
        " at a variant of its own",
        next=f"ddops deploy {target.host.name}",
    )


@dataclass(frozen=True, slots=True)
class Deployed:
    """One suite on what one host serves. `levels` and `repeats` replace the suite's own."""

    target: Target
    suite: Suite
    prompts: Prompts
    inventory: Inventory
    levels: Sequence[int] = ()
    repeats: int | None = None

    def __post_init__(self) -> None:
        refuse_oversize(self.suite, self.prompts, self.points)

    @property
    def points(self) -> list[Point]:
        rates = [] if self.levels else [Point(rate=rate) for rate in self.suite.rates]
        return [Point(level) for level in self.levels or self.suite.levels] + rates

    @property
    def rounds(self) -> range:
        return range(1, (self.repeats or self.suite.repeats) + 1)

    def measure(
        self, book: Ledger, report: Reporter, clock: Clock, stopped: Callable[[], bool]
    ) -> Iterator[Measured]:
        """Every load and repeat, each stored as it ends. The host's lock is held meanwhile."""
        one, suite = self.target, self.suite
        work = Bench(as_deployed(self.inventory, one), suite, self.prompts, book, report, stopped)
        owner = lock.owner(f"bench-{suite.kind}", f"bench {suite.kind} {one.service.name}", clock)
        with lock.holding(one.transport, one.layout, owner, wait_s=0.0):
            yield from work.measure(self.points, list(self.rounds), lambda _: True)


def deployed(
    target: Target, kind: Kind, inventory: Inventory, root: Path, *,
    levels: Sequence[int] = (), repeats: int | None = None,
) -> Deployed:  # fmt: skip
    """The suite of a kind and its prompts, read for a target. No host is asked for that."""
    suite = find_suite(target.lookup, target.service.name, kind, root)
    prompts = read_prompts(target.lookup(suite.prompts), suite.prompts)
    return Deployed(target, suite, prompts, inventory, levels, repeats)
