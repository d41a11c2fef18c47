"""A deploy of one service on one host, from the look before to the ledger's last row."""

from __future__ import annotations

import getpass
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ddops import lock
from ddops.clock import Clock
from ddops.command import Redactor, Secret
from ddops.compat import Launch, launch_of
from ddops.deploy.ahead import Ahead, looking
from ddops.deploy.climb import Climb, Settings, Started
from ddops.deploy.code import release_code, tree_rows
from ddops.deploy.drain import Drain, NoDrain
from ddops.deploy.host import Links, ServiceOnHost, serves
from ddops.deploy.machine import Deploy
from ddops.deploy.party import Party, PartyStop
from ddops.deploy.record import Recorder
from ddops.deploy.release import Release, build_release
from ddops.deploy.smoke import Smoke, skipped, smoke_of
from ddops.deploy.stop import Stop
from ddops.errors import DdopsError, RefusedError, UnreachableError
from ddops.events import Event, Reporter
from ddops.gates import Observation
from ddops.inventory.model import Host, Profile, Service, Waiver
from ddops.inventory.port import port_of as port_of
from ddops.ledger import Ledger
from ddops.model import State, short
from ddops.plan import Proposal, make_plan
from ddops.provision import Provision, env_recipe
from ddops.snapshot import Tools as SnapshotTools
from ddops.transport import Transport

Lookup = Callable[[str], Path]
#: What provision would still do: id, title and proposal of each step.
Rows = tuple[tuple[str, str, Proposal], ...]
#: How often, and how far apart, the health of a running engine of the right release is asked.
LOOKS, LOOK_AGAIN_S = 3, 1.5


@dataclass(frozen=True, slots=True)
class Tools:
    """What a deploy is given. `ledger` opens one connection for the calling thread.

    `restart`: make a start of its own even of what serves already, as a measurement may need.
    `snapshots`: what a snapshot of a host needs, or why this command takes none.
    `party`: the hosts of one engine, deployed side by side with this one.
    `unmeasured`: why this command does without G5, where it does.
    """

    lookup: Lookup
    ledger: Callable[[], Ledger]
    resolve: Callable[[str], Secret]
    settings: Settings
    clock: Clock
    stop: Stop
    report: Reporter
    redactor: Redactor
    lock_wait_s: float = 0.0
    waivers: tuple[Waiver, ...] = ()
    restart: bool = False
    snapshots: Callable[[Host], SnapshotTools] | str = "this command takes none"
    unmeasured: str = ""
    party: Party | None = None
    #: By service and host; what stands before a replica that is to be stopped.
    drains: Callable[[Service, Host], Drain] = lambda _service, _host: NoDrain()


@dataclass(frozen=True, slots=True)
class Outcome:
    """`changed` is False when this very release was serving already."""

    host: str
    service: str
    release: str
    changed: bool
    nonce: str
    lines: tuple[str, ...] = ()
    where: str = ""


def prepare(host: Host, service: Service, profile: Profile, lookup: Lookup) -> Release:
    """The release of a service for a kind of host. Reads local files only."""
    with tempfile.TemporaryDirectory(prefix="ddops-") as folder:
        recipe = env_recipe(host.engine_env, lookup, Path(folder))
        code = release_code(service, profile, recipe, lookup)
        return build_release(service, profile, recipe.digest, lookup, code)


def deploy_service(
    transport: Transport,
    host: Host,
    service: Service,
    profile: Profile,
    tools: Tools,
    first: Callable[[], Observation | None] | None = None,
) -> Outcome:
    """Make the release live, or prove that it is. Errors carry the exit code they mean.

    `first` is a look at the service that the caller has begun; None where nothing was seen.
    """
    release = prepare(host, service, profile, tools.lookup)

    def prepared() -> Rows:
        rows = _provision_rows(transport, host, service, tools.lookup)
        return (*rows, *tree_rows(transport, host, service, profile, tools.lookup))

    judged = launch_of(release.launch, profile.engine, service, host)
    return deploy_release(
        transport, host, service, release, tools, judged, prepared, profile, first
    )


def _chosen(profile: Profile | None) -> dict[str, object]:
    """The profile and its evidence, for the ledger: which runs a deploy rests on."""
    if profile is None:
        return {}
    evidence = profile.evidence
    return {
        "profile": profile.name,
        "evidence": {"status": evidence.status, "runs": list(evidence.runs)},
    }


def deploy_release(
    transport: Transport,
    host: Host,
    service: Service,
    release: Release,
    tools: Tools,
    judged: Launch | None,
    prepared: Callable[[], Rows],
    profile: Profile | None = None,
    first: Callable[[], Observation | None] | None = None,
) -> Outcome:
    """The same for a release that is there already, such as a snapshot's."""
    target = ServiceOnHost(
        transport, host, service, port_of(host, service), tools.lookup, tools.redactor
    )
    with together(target, tools) as tools:
        return _deploy(target, release, tools, judged, prepared, profile, first or (lambda: None))


@contextmanager
def together(target: ServiceOnHost, tools: Tools) -> Iterator[Tools]:
    """This host's part in an engine on several: however it ends, the others hear of it."""
    party, name, nodes = tools.party, target.host.name, target.service.hosts_of_one
    if nodes > 1 and (party is None or not target.node.address):
        raise RefusedError(
            f"{name}: {target.service.name} is one engine on {nodes} hosts",
            why="they are deployed together or not at all",
            next=f"ddops deploy {target.service.name}",
        )
    if party is None:
        yield tools
        return
    try:
        yield replace(tools, stop=PartyStop(tools.stop, party.forth, name))
    except BaseException as error:
        party.leave(name, error)
        raise
    party.back.fail(name, DdopsError(f"{name}: has the new release already"))


def _deploy(
    target: ServiceOnHost,
    release: Release,
    tools: Tools,
    judged: Launch | None,
    prepared: Callable[[], Rows],
    profile: Profile | None,
    first: Callable[[], Observation | None],
) -> Outcome:
    service, host, party = target.service, target.host, tools.party
    if party is not None:
        party.agree(host.name, "release", release.digest)
    seen = first() or look(target)
    unchanged = None if tools.restart else _unchanged(seen, target, release)
    # Somebody at work may be about to change it: then the lock decides, and a second look.
    if unchanged is not None and lock.read(target.transport, target.layout) is not None:
        unchanged = None
    if (unchanged := _all(unchanged, target, tools, "first look")) is not None:
        return unchanged
    if seen is None:
        raise RefusedError(f"{host.name}: not provisioned", next=f"ddops provision {host.name}")
    what = f"deploy {service.name} {short(release.digest)}"
    with at_work(target, what, tools) as work, ExitStack() as until_done:
        begin = partial(until_done.enter_context, work.looking(release, prepared))
        likely = tools.restart or not serves(seen, release.digest, follower=target.node.rank > 0)
        ahead = begin() if likely else None
        patient = None if tools.restart else _patient_look(target, release, tools.stop)
        unchanged = _unchanged(patient, target, release)
        if (unchanged := _all(unchanged, target, tools, "second look")) is not None:
            return unchanged
        if patient is not None and patient.unproven and _serving(patient, target, release):
            return work.prove(release, patient)
        return work.go(release, ahead or begin(), judged, profile, patient)


def _all(
    unchanged: Outcome | None, target: ServiceOnHost, tools: Tools, where: str
) -> Outcome | None:
    """Of an engine on several hosts nothing is unchanged unless all of it is."""
    if tools.party is None:
        return unchanged
    same = tools.party.forth.meet(target.host.name, where, unchanged is not None)
    return unchanged if all(same) else None


@dataclass(frozen=True, slots=True)
class Work:
    """The host's lock is held, and the ledger is open."""

    target: ServiceOnHost
    tools: Tools
    op_id: str
    ledger: Ledger
    still_ours: Callable[[], None]

    def looking(
        self, release: Release, prepared: Callable[[], Rows]
    ) -> AbstractContextManager[Ahead]:
        """Begin to read what `go` judges; at the end of the block nothing is read any more."""
        limit, snapshots = self.tools.settings.preflight_timeout_s, self.tools.snapshots
        return looking(self.target, release, prepared, limit, snapshots)

    def go(
        self,
        release: Release,
        ahead: Ahead,
        judged: Launch | None,
        profile: Profile | None = None,
        seen: Observation | None = None,
    ) -> Outcome:
        """Through the state machine; answers what is live then.

        Without a `profile` it is not known with which earlier runs this one could be compared.
        `seen` is what the caller saw of the service, since it holds the lock.
        """
        target, tools, standing = self.target, self.tools, self.target.standing()
        machine = Deploy(
            service=target,
            release=release,
            settings=tools.settings,
            record=recorder(self.ledger, target, release, self.op_id, tools, standing.links),
            standing=standing,
            looked=seen,
            ahead=ahead,
            resolve=tools.resolve,
            clock=tools.clock,
            stop=tools.stop,
            report=tools.report,
            redactor=tools.redactor,
            still_ours=self.still_ours,
            judged=judged,
            waivers=tools.waivers,
            snapshot=ahead.snapshot,
            party=tools.party,
            drain=tools.drains(target.service, target.host),
            smoke=self._smoke(release, profile),
            chosen=_chosen(profile),
        )
        after = machine.run()
        return _outcome(target, release, after, changed=True)

    def prove(self, release: Release, seen: Observation) -> Outcome:
        """Gate what serves already, and was started again without a deploy behind it."""
        target, tools, launch = self.target, self.tools, seen.launch
        record = recorder(self.ledger, target, release, self.op_id, tools)
        assert launch is not None  # noqa: S101 - it serves
        record.locked(release.digest)
        record.launch(launch, release.digest)
        record.ok("started", {"nonce": launch.nonce, "pid": seen.pid, "again": seen.unproven})
        climb = Climb(
            target, Started(seen, release.digest, release.identity, release.gates, release.golden),
            tools.settings, record, tools.clock, tools.stop,
            lambda words: tools.report.emit(Event("deploy", words, target.host.name)),
            skipped("it was measured when it was new"), of=launch.op_id,
        )  # fmt: skip
        try:
            gates = climb.correct()
        except BaseException as error:
            record.give_up("failed", str(error), {"touched": "nothing"})
            raise
        record.ok("gated", {g.name: g.verdict.value for g in gates})
        target.proven(seen)
        record.committed()
        return _outcome(target, release, seen, changed=False)

    def _smoke(self, release: Release, profile: Profile | None) -> Smoke:
        if self.tools.unmeasured:
            return skipped(self.tools.unmeasured)
        if self.target.node.rank:
            return skipped("rank 0 answers for all")
        if profile is None:
            return skipped("the profile behind this release is not known here")
        return smoke_of(self.target, release.digest, profile, self.ledger, self.tools.report)


@contextmanager
def at_work(target: ServiceOnHost, what: str, tools: Tools) -> Iterator[Work]:
    """Hold the host's lock for one operation."""
    op_id = f"{tools.clock.now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    owner = lock.owner(op_id, what, tools.clock)

    def tell(words: str) -> None:
        tools.report.emit(Event("lock", words, target.host.name))

    with (
        lock.holding(
            target.transport, target.layout, owner,
            wait_s=tools.lock_wait_s, pause=tools.stop.pause, tell=tell,
        ) as lease,
        tools.ledger() as ledger,
    ):  # fmt: skip
        yield Work(target, tools, op_id, ledger, lease.check)


def look(target: ServiceOnHost) -> Observation | None:
    """The service as it is, or None on a host where provision has never been."""
    try:
        return target.observe()
    except UnreachableError:
        raise
    except DdopsError as error:
        target_dir = f"{target.layout.hostside}/observe.py"
        if "No such file" in str(error) or "can't open file" in str(error):
            return None
        raise DdopsError(
            f"{target.host.name}: {target_dir} does not answer",
            why=error.why,
            next=f"ddops provision {target.host.name}",
        ) from error


def _provision_rows(
    transport: Transport, host: Host, service: Service, lookup: Lookup
) -> tuple[tuple[str, str, Proposal], ...]:
    """Every provision step with what it would still do for this service."""
    with tempfile.TemporaryDirectory(prefix="ddops-") as folder:
        steps = Provision(transport, host, [service], lookup, Path(folder)).steps()
        return make_plan(host.name, steps).rows


def _patient_look(target: ServiceOnHost, release: Release, stop: Stop) -> Observation | None:
    """A look; more than one where only the health of the right release is missing.

    A busy engine may be late with one answer, and a restart for that costs a load (sglang#22511).
    """
    for _ in range(LOOKS - 1):
        seen = look(target)
        if (
            seen is None
            or seen.engine is not State.UP
            or serves(seen, release.digest, follower=target.node.rank > 0)
        ):
            return seen
        if seen.current != release.digest or not committed(target, release):
            return seen
        stop.wait(LOOK_AGAIN_S)
    return look(target)


def _unchanged(seen: Observation | None, target: ServiceOnHost, release: Release) -> Outcome | None:
    """The outcome of a deploy of what serves already, and has passed its gates; else None."""
    if seen is None or seen.unproven or not _serving(seen, target, release):
        return None
    if seen.job is not None and target.unit_beside(release).get("diff"):
        return None  # what the host asks of its scheduler has changed, and is no part of a release
    return _outcome(target, release, seen, changed=False)


def _serving(seen: Observation, target: ServiceOnHost, release: Release) -> bool:
    follower = target.node.rank > 0
    return serves(seen, release.digest, follower=follower) and committed(target, release)


def _outcome(target: ServiceOnHost, release: Release, seen: Observation, changed: bool) -> Outcome:
    nonce = seen.launch.nonce if seen.launch else ""
    where = target.orchestrator.endpoint(target.service, target.port, seen)
    return Outcome(
        target.host.name, target.service.name, release.digest, changed, nonce, where=where
    )


def committed(target: ServiceOnHost, release: Release) -> bool:
    return target.links().committed == release.digest


def recorder(
    ledger: Ledger,
    target: ServiceOnHost,
    release: Release,
    op_id: str,
    tools: Tools,
    links: Links | None = None,
) -> Recorder:
    """`links` as they are on the host, where the caller knows them."""
    host, links = target.host, links or target.links()
    pins = {"gpu_uuids": list(host.pins.gpu_uuids), "host_key": host.pins.host_key}
    ledger.add_host(host.name, pins)
    content = release.content
    spec = content["spec"]
    ledger.add_release(
        release.digest,
        service=target.service.name,
        spec=spec if isinstance(spec, dict) else {},
        upstream=str(content["upstream"]),
        series=str(content["series"]),
        lock=str(content["lock"]),
        plugin=str(content["plugin"]),
        model=str(content["model"]),
        draft=str(content["draft"]),
    )
    ledger.add_deployment(
        op_id,
        service=target.service.name,
        release=release.digest,
        host=host.name,
        by=f"{getpass.getuser()}@{socket.gethostname()}",
        previous=links.committed,
    )

    return Recorder(
        ledger, op_id, target.service.name, host.name, release.digest, tools.report,
        target.journal, tools.clock,
    )  # fmt: skip


def tell(report: Reporter, outcome: Outcome) -> None:
    """One line for people: what serves now."""
    words = "is live" if outcome.changed else "unchanged: already live"
    report.emit(
        Event("deploy", f"{outcome.service}: {short(outcome.release)} {words}", outcome.host)
    )
