"""The deploy state machine of one host. Each transition is a ledger row with its evidence.

    locked -> probed -> compat_ok -> rendered -> flags_ok -> planned -> snapshotted -> staged
    -> drained -> stopped -> vram_free -> switched -> started -> gated -> committed

A transition whose part is not there yet is a recorded SKIP with its reason. Up to `staged`
nothing that serves is touched. A failure after `stopped` goes to `rolling_back`, then to
`restored` (the last committed release serves again, gated) or `stuck`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ddops.clock import Clock
from ddops.command import Redactor, Secret
from ddops.compat import Finding, judge_all, subject_of, waive
from ddops.compat import Launch as JudgedLaunch
from ddops.deploy.ahead import Ahead
from ddops.deploy.climb import Climb, Settings, Started
from ddops.deploy.drain import Drain, NoDrain
from ddops.deploy.host import ServiceOnHost, Standing, port_is_foreign
from ddops.deploy.memory import free_memory
from ddops.deploy.party import Party, PartyStop
from ddops.deploy.preflight import Preflight
from ddops.deploy.ready import Waiter
from ddops.deploy.record import Recorder
from ddops.deploy.release import Release
from ddops.deploy.smoke import Smoke, skipped
from ddops.deploy.stop import Stop
from ddops.errors import (
    DdopsError,
    Interrupted,
    LockHeldError,
    RefusedError,
    RollbackFailedError,
    RolledBackError,
    UnreachableError,
)
from ddops.events import Event, Level, Reporter
from ddops.gates import Observation
from ddops.inventory.model import Waiver
from ddops.model import State, short
from ddops.plan import Proposal
from ddops.probe import Chain, Facts, collect
from ddops.snapshot import Step

#: Every transition of a deploy that goes well, in order.
STATES = (
    "locked", "probed", "compat_ok", "rendered", "flags_ok", "planned", "snapshotted", "staged",
    "drained", "stopped", "vram_free", "switched", "started", "gated", "committed",
)  # fmt: skip
#: The ways out: nothing was touched; back, and how that ended.
WAYS_OUT = ("failed", "rolling_back", "restored", "stuck")


def _no_snapshot(_facts: Facts, _required: bool) -> Step:
    return Step("this command takes none", {})


@dataclass(slots=True)
class Deploy:
    """One attempt to make `release` live on one host. The caller holds the host's lock.

    `standing` and `looked` are what was seen since it does, and `ahead` what is being looked at.
    """

    service: ServiceOnHost
    release: Release
    standing: Standing
    looked: Observation | None
    ahead: Ahead
    settings: Settings
    record: Recorder
    resolve: Callable[[str], Secret]
    clock: Clock
    stop: Stop
    report: Reporter
    redactor: Redactor
    still_ours: Callable[[], None]
    judged: JudgedLaunch | None = None
    waivers: tuple[Waiver, ...] = ()
    snapshot: Callable[[Facts, bool], Step] = _no_snapshot
    party: Party | None = None
    drain: Drain = field(default_factory=NoDrain)
    smoke: Smoke = field(default_factory=lambda: skipped("this command does not measure"))
    #: The profile by name and what speaks for it, such as the runs behind a recommendation.
    chosen: Mapping[str, object] = field(default_factory=dict)
    #: Who ran the service before: what goes back goes back to that too.
    was: str = ""

    def run(self) -> Observation:
        """Go through all transitions. Returns the gated observation of the new launch."""
        previous = self.standing.links.committed  # the lock is held: nobody else moves it
        self.was = self.standing.ran_by
        try:
            self.record.locked(previous)
            self._before()
        except BaseException as error:
            self.record.give_up("failed", _said(error), {"touched": "nothing"})
            raise
        try:
            seen = self._after_stop()
        except LockHeldError as error:  # the host is another run's: not even a way back
            self.record.give_up("failed", _said(error), {"touched": "unknown"})
            raise
        except BaseException as error:
            raise self._roll_back(previous, error) from error
        self._settle(previous)
        return seen

    def _before(self) -> None:
        """Everything that leaves the running service alone. An error here changed nothing."""
        facts = self._probe()
        self._compat(facts)
        self._can_soak(facts)
        self.record.ok("rendered", {"release": self.release.digest, **self.chosen}, soon=True)
        self._flags(self.ahead.parsed.result())
        seen = self.looked or self.service.observe(http=False)
        if port_is_foreign(seen):
            raise self._refuse(
                "planned",
                f"port {self.service.port} is in use by {seen.port.owner}",
                "stop that process, or set another port in the service's file",
            )
        if self.release.gates and self.release.golden is None:
            raise self._refuse(
                "planned",
                f"{self.service.service.name} lists gates and has no golden file",
                "set golden in the service's file: a load that cannot be gated is a load lost",
            )
        self._provisioned(self.ahead.rows.result())
        self.record.ok("planned", {"replaces": seen.launch.release if seen.launch else None})
        self._snapshotted(facts)
        self.still_ours()
        self.stop.check("before staging")
        alone = self.party is None and isinstance(self.drain, NoDrain)
        self.record.ok("staged", self.service.stage(self.release, self.resolve), soon=alone)
        self.stop.check("before the running service was touched")
        self._meet("staged")
        self._drained()

    def _drained(self) -> None:
        """What the replica's router sent it is finished, and nothing new comes."""
        try:
            way = self.drain.out(self.stop)
        except DdopsError as error:
            self.record.fail("drained", _said(error), {})
            raise
        try:
            if way.skipped:
                self.record.skip("drained", way.skipped)
            else:
                self.record.ok("drained", way.evidence)
        except BaseException:  # it is not stopped, so its place is where it was
            self.drain.stay()
            raise

    def _provisioned(self, rows: Sequence[tuple[str, str, Proposal]]) -> None:
        """The host is as provision leaves it: environment, weights, scripts, supervisor."""
        pending = [f"{title}: {'; '.join(p.lines)}" for _, title, p in rows if p.pending]
        if pending:
            raise self._refuse(
                "planned",
                f"not as provision leaves it: {'. '.join(pending)[:600]}",
                f"ddops provision {self.service.host.name}",
            )

    def _snapshotted(self, facts: Facts) -> None:
        """The running tree is safe, where it may have changed since it was last kept."""
        required = self.service.service.require_snapshot
        try:
            step = self.snapshot(facts, required)
        except DdopsError as error:
            if required:
                self.record.fail("snapshotted", _said(error), {})
                raise
            # A backup place that is down is no reason to keep a service from its next release.
            self._say(f"no snapshot: {_said(error)}", Level.WARN)
            self.record.skip("snapshotted", f"it failed: {_said(error)}")
            return
        if step.skipped:
            self.record.skip("snapshotted", step.skipped)
        else:
            self.record.ok("snapshotted", step.evidence)

    def _probe(self) -> Facts:
        facts = self.ahead.facts.result()
        self.record.facts(facts)
        evidence = {"facts": facts.digest, "simulated": facts.simulated}
        self.record.ok("probed", evidence, soon=True)
        return facts

    def _can_soak(self, facts: Facts) -> None:
        """Better refused now than taken back after the load, for a log that nobody could read."""
        if self.service.service.soak_s <= 0 or (self.service.host.host_class or "cpu") == "cpu":
            return
        if not facts.simulated and Chain(facts).kernel_log is None:
            raise self._refuse(
                "planned",
                "the service asks for a soak, and the kernel log with the GPUs' errors is not read",
                "let the login join group adm or systemd-journal, or set soak_s = 0",
            )

    def _compat(self, facts: Facts) -> None:
        host = self.service.host
        found = judge_all(subject_of(facts, host, self.judged))
        findings = waive(found, self.waivers, host, self.clock.now().date())
        bad = [f for f in findings if f.refuses]
        evidence: dict[str, object] = {f.check: f.verdict.value for f in findings}
        waived = {f.check: f.waived for f in findings if f.waived}
        if waived:
            evidence["waived"] = waived
            self._say(f"waived: {'; '.join(f'{k} {v}' for k, v in waived.items())}")
        if bad:
            self.record.fail("compat_ok", "; ".join(_words(f) for f in bad), evidence)
            raise RefusedError(
                f"{host.name}: refused by {', '.join(f.check for f in bad)}",
                why="; ".join(_words(f) for f in bad),
                next=f"ddops check {host.name}",
            )
        self.record.ok("compat_ok", evidence, soon=True)

    def _flags(self, found: Preflight) -> None:
        """The installed engine parses the line itself: a table knows releases, not patches."""
        for warning in found.warnings:
            self._say(f"flags: {warning}")
        if found.faults:
            self.record.fail("flags_ok", "; ".join(found.faults), found.evidence)
            if found.broken:
                raise RefusedError(
                    f"{self.service.host.name}: the engine's environment is not whole",
                    why="; ".join((*found.broken, *found.faults)),
                    next=f"ddops provision {self.service.host.name}",
                )
            raise RefusedError(
                f"{self.service.host.name}: the installed engine does not take this launch",
                why="; ".join(found.faults),
                next=f"ddops check {self.service.host.name} --for {self.record.service}",
            )
        self.record.ok("flags_ok", found.evidence, soon=True)

    def _refuse(self, state: str, why: str, next: str) -> RefusedError:
        self.record.fail(state, why, {})
        return RefusedError(f"{self.service.host.name}: {why}", next=next)

    def _after_stop(self) -> Observation:
        self.still_ours()
        self._stop_old()
        with ThreadPoolExecutor(1, thread_name_prefix="look") as pool:
            stopped = pool.submit(self.service.observe, http=False)
            self._meet("stopped")
            self.service.switch(self.release.digest)
            self.record.ok("switched", {"current": self.release.digest})
        seen = self._start(self.release.digest, stopped.result())
        r = self.release
        gates = self._climb(Started(seen, r.digest, r.identity, r.gates, r.golden)).all()
        version = seen.launch.weight_version if seen.launch else ""
        routed = self.drain.back(version)
        self.record.ok("gated", {**{g.name: g.verdict.value for g in gates}, **routed})
        self._meet("gated")
        self.still_ours()
        self.service.taken_from(self.was)
        self.service.commit(self.release.digest)
        self.service.proven(seen)
        return seen

    def _settle(self, previous: str | None) -> None:
        """It is committed: what goes wrong from here on is said, and takes nothing back."""
        self.record.committed()
        try:
            self.service.prune(self.settings.keep_releases, self.release.digest, previous)
        except DdopsError as error:
            self._say(f"old releases stay: {_said(error)}", Level.WARN)

    def _stop_old(self) -> None:
        word = self._stopped("the old service", self.was)
        skipped = self._no_memory()
        self.record.ok("stopped", {"was": word}, soon=bool(skipped))
        if skipped:
            self.record.skip("vram_free", skipped)
        else:
            self._vram_free()

    def _no_memory(self) -> str:
        """Why no GPU's memory is looked at behind the stop, if none is."""
        host = self.service.host
        if self.service.service.engine == "slurm":
            return "the job looks itself, on the nodes it is given"
        if (host.host_class or "cpu") == "cpu":
            return "a CPU host"
        return "a recorded host: no GPU is behind it" if host.simulated else ""

    def _stopped(self, what: str, ran_by: str = "") -> str:
        """Stop what runs; the supervisor's word for it. A stop that left something is an error."""
        state = self.service.stop(ran_by)
        if state.left or state.state is not State.DOWN:
            raise DdopsError(
                f"{self.service.host.name}: {what} did not stop",
                why=f"state {state.word}, processes left: {list(state.left) or 'none'}",
                next="look at those processes on the host",
            )
        return state.word

    def _vram_free(self) -> None:
        host = self.service.host
        # Nothing serves now: what this does not need is not waited for.
        facts = collect(self.service.transport, host.python, host.engine_dir, only=("smi_apps",))
        self.record.ok("vram_free", {"used_mib": free_memory(host.name, facts)})

    def _start(self, digest: str, stopped: Observation | None = None) -> Observation:
        """`stopped` is a look behind the stop: the log ends there until this start writes on."""
        before = stopped or self.service.observe(http=False)
        self._say(f"starting {short(digest)}")
        self.service.start(self.record.op_id)
        waiter = Waiter(
            self.service,
            self.record.op_id,
            before.log_size,
            self.settings.load_budget_s,
            self.clock,
            self.stop,
            self.report,
            self.redactor,
        )
        seen = waiter.ready()
        if seen.launch is None:
            raise DdopsError("ready without a launch record", next="report this as a fault")
        self.record.launch(seen.launch, digest)
        self.record.ok("started", {"nonce": seen.launch.nonce, "pid": seen.pid})
        return seen

    def _roll_back(self, previous: str | None, error: BaseException) -> DdopsError:
        """Go back to the last committed release, gated. Returns what the caller raises."""
        what, host = _said(error), self.service.host.name
        self.record.give_up("rolling_back", what, {"to": previous})
        self.record.leaving = True
        self._say(f"going back to {short(previous) if previous else 'nothing served'}")
        self.stop = Stop()  # the user's wish to stop is being carried out by this
        if self.party is not None:
            self.party.forth.fail(host, error)
            self.stop = PartyStop(self.stop, self.party.back, host)
        try:
            self._go_back(previous)
        except UnreachableError as lost:
            # Not `stuck`: nobody knows what the host did. A rerun looks and goes on from there.
            self.record.unknown("rolling_back", str(lost))
            return UnreachableError(
                f"{host}: the connection was lost on the way back; what serves now is unknown",
                why=f"{what}; then: {lost}",
                next=f"ddops status {host}, then deploy again",
            )
        except (Exception, KeyboardInterrupt) as second:
            self.record.give_up("stuck", _said(second), {})
            return RollbackFailedError(
                f"{host}: the deploy failed, and so did the way back",
                why=f"{what}; then: {_said(second)}",
                next=f"ddops status {host}",
            )
        self.record.back(previous)
        if previous is None:
            return _failure(error)
        if isinstance(error, Interrupted):
            return Interrupted(error.what, why=f"{short(previous)} serves again")
        return RolledBackError(
            f"{host}: failed, rolled back: {short(previous)} serves again",
            why=what,
            next=f"ddops status {host}",
        )

    def _go_back(self, previous: str | None) -> None:
        self.still_ours()
        self.drain.leave()
        self._stopped("the new service")
        if self.party is not None:
            self.party.back.meet(self.service.host.name, "stopped")
        if previous is None:
            self.service.unlink_current()
            return
        self.service.switch(previous)
        self.service = self.service.run_by(self.was)
        seen = self._start(previous)
        gates, identity, golden = self.service.staged_gates(previous)
        # Every minute counts now: it was measured and soaked when it was new.
        self._climb(Started(seen, previous, identity, gates, golden)).correct()
        self.service.proven(seen)
        self.drain.back(seen.launch.weight_version if seen.launch else "")
        if self.party is not None:
            self.party.back.meet(self.service.host.name, "gated")

    def _meet(self, where: str) -> None:
        """Of several hosts of one engine, none goes on alone from here."""
        if self.party is not None:
            self.party.forth.meet(self.service.host.name, where)

    def _climb(self, start: Started) -> Climb:
        return Climb(
            self.service, start, self.settings, self.record, self.clock, self.stop, self._say,
            self.smoke,
        )  # fmt: skip

    def _say(self, message: str, level: Level = Level.INFO) -> None:
        self.report.emit(Event("deploy", message, self.service.host.name, level))


def _said(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "stopped by the user"
    if isinstance(error, DdopsError):  # its `next` is for whoever reads it first, not in a chain
        return f"{error.what}: {error.why}" if error.why else error.what
    return str(error) or type(error).__name__


def _failure(error: BaseException) -> DdopsError:
    """What a failed first deploy raises: nothing was served before, nothing is now."""
    if isinstance(error, DdopsError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("stopped by the user; nothing is served")
    return DdopsError(f"the deploy failed: {type(error).__name__}: {error}")


def _words(finding: Finding) -> str:
    return f"{finding.check} {finding.verdict.value}: {finding.seen} ({finding.mend})"
