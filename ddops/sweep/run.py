"""A sweep on one host: deploy a cell, prove it, measure it, store it; the next one."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ddops import lock
from ddops.bench.plan import Point, refuse_oversize
from ddops.bench.prompts import Prompts
from ddops.bench.record import cell_of
from ddops.bench.runner import Bench, Measured
from ddops.bench.target import Target, by, known_start
from ddops.clock import Clock
from ddops.deploy import Stop, deploy_service, prepare
from ddops.deploy import Tools as DeployTools
from ddops.errors import (
    DdopsError,
    Interrupted,
    LockHeldError,
    RefusedError,
    RollbackFailedError,
    UnreachableError,
)
from ddops.events import Event, Level, Reporter
from ddops.inventory.model import Profile
from ddops.inventory.suites import Suite
from ddops.ledger import Ledger
from ddops.ledger.bench_records import Cell, Device, Identity, NewRun, Status
from ddops.model import State
from ddops.sweep.order import Start, remaining, starts

#: Errors after which nothing more can be measured on this host.
_FATAL = (Interrupted, UnreachableError, LockHeldError, RollbackFailedError)


@dataclass(frozen=True, slots=True)
class Tools:
    """What a sweep is given besides its target."""

    deploy: DeployTools
    ledger: Ledger
    clock: Clock
    stop: Stop
    report: Reporter


@dataclass(slots=True)
class Sweep:
    """One suite's arms on one host. `target.profile` is what the service goes back to."""

    target: Target
    suite: Suite
    prompts: Prompts
    arms: Sequence[Profile]
    tools: Tools
    refusals: int = 0

    def __post_init__(self) -> None:
        refuse_oversize(self.suite, self.prompts, [Point(n) for n in self.suite.levels])

    def plan(self) -> list[Start]:
        """The starts that are still to be made: cells with enough valid runs are left alone."""
        have = {p.name: self._have(p) for p in self.arms}
        lack = remaining(have, self.suite.levels, self.suite.launches)
        return starts(lack, self.suite.seed)

    def cells(self) -> dict[tuple[str, int], Cell]:
        """Every cell by arm and level."""
        return {
            (p.name, level): self._cell(p, level) for p in self.arms for level in self.suite.levels
        }

    def run(self, plan: Sequence[Start]) -> Iterator[Measured]:
        """Measure the starts of a plan. What is stored stays, however this ends."""
        profiles = {p.name: p for p in self.arms}
        for start in plan:
            if self.tools.stop.asked:
                return
            yield from self._start(profiles[start.arm], start)

    def back(self) -> None:
        """Make the service's own profile live again."""
        self._deploy(self.target.profile, restart=False)

    # ---- one start

    def _start(self, profile: Profile, start: Start) -> Iterator[Measured]:
        try:
            self._deploy(profile, restart=self._seen(profile, start))
            self.refusals = 0
        except _FATAL:
            raise
        except DdopsError as error:
            self.refusals += isinstance(error, RefusedError)
            if self.refusals > 1:
                raise  # twice in a row, for two arms: it is the host that is not ready
            self._tell(f"{profile.name} is not measured: {error.what}", Level.WARN)
            for level in start.levels:
                yield self._not_deployed(profile, level, start, error)
            return
        target = replace(self.target, profile=profile)
        work = Bench(
            target, self.suite, self.prompts, self.tools.ledger, self.tools.report,
            lambda: self.tools.stop.asked,
        )  # fmt: skip
        owner = lock.owner(f"sweep-{profile.name}", f"sweep {profile.name}", self.tools.clock)
        with lock.holding(target.transport, target.layout, owner, wait_s=0.0):
            points = [Point(level) for level in start.levels]
            yield from work.measure(
                points, range(1, self.suite.repeats + 1), lambda _: True
            )  # fmt: skip

    def _deploy(self, profile: Profile, *, restart: bool) -> None:
        t = self.target
        tools = replace(self.tools.deploy, restart=restart)
        deploy_service(t.transport, t.host, t.service, profile, tools)

    def _seen(self, profile: Profile, start: Start) -> bool:
        """Whether the start that serves now is of this arm and cannot be measured: then a new one.

        It was measured already, or this ledger does not know it: nothing could be bound to it.
        """
        seen = self.target.observe()
        if seen.engine is not State.UP or seen.launch is None:
            return False
        release = prepare(self.target.host, self.target.service, profile, self.target.lookup)
        if seen.launch.release != release.digest:
            return False
        known = known_start(self.tools.ledger, seen.launch.nonce)
        return known is None or self._measured(profile, start, seen.launch.nonce)

    def _measured(self, profile: Profile, start: Start, nonce: str) -> bool:
        keys = [self._cell(profile, level).key for level in start.levels]
        runs = (r for k in keys for r in self.tools.ledger.runs(k, valid_only=False))
        return any(r.launch == nonce for r in runs)

    def _not_deployed(
        self, profile: Profile, level: int, start: Start, error: DdopsError
    ) -> Measured:
        cell = self._cell(profile, level)
        reason = f"not deployed: {error.what}" + (f": {error.why}" if error.why else "")
        now = self.tools.clock.now()
        self.tools.ledger.add_cell(cell)
        run = self.tools.ledger.add_run(
            NewRun(
                cell=cell.key, status=Status.VOID, reason=reason, identity=Identity.NONE,
                device_class=Device.UNKNOWN, started=now, ended=now, concurrency=level, by=by(),
                repeat=start.round,
            )
        )  # fmt: skip
        return Measured(run, cell, cell.label, level, start.round, Status.VOID, reason, None)

    def _have(self, profile: Profile) -> dict[int, int]:
        """Distinct starts with a valid run, by level."""
        out: dict[int, set[str]] = defaultdict(set)
        for level in self.suite.levels:
            for run in self.tools.ledger.runs(self._cell(profile, level).key):
                if run.launch is not None:
                    out[level].add(run.launch)
        return {level: len(found) for level, found in out.items()}

    def _cell(self, profile: Profile, level: int) -> Cell:
        t = self.target
        release = prepare(t.host, t.service, profile, t.lookup)
        return cell_of(
            t.service, t.host, profile, release.digest, self.suite, self.prompts, Point(level)
        )

    def _tell(self, words: str, level: Level = Level.INFO) -> None:
        self.tools.report.emit(Event("sweep", words, self.target.host.name, level))


@dataclass(slots=True)
class Eta:
    """How long the rest may take, from how long the runs before it took, deploys included."""

    total: int
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def step(self) -> str:
        """Words for the rest after one more run."""
        self.done += 1
        left = (self.clock() - self.began) / self.done * max(0, self.total - self.done)
        return "" if self.done >= self.total else f", about {minutes(left)} left"


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
