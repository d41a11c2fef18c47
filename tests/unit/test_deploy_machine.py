"""The state machine without a host: every step fails once, and the way out is right each time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from ddops.clock import SystemClock
from ddops.command import Redactor, Secret
from ddops.deploy import climb, machine
from ddops.deploy.ahead import Ahead
from ddops.deploy.climb import Settings
from ddops.deploy.drain import Way
from ddops.deploy.host import Links, Standing
from ddops.deploy.machine import Deploy
from ddops.deploy.preflight import Preflight
from ddops.deploy.record import Recorder
from ddops.deploy.release import Release
from ddops.deploy.stop import Stop
from ddops.engines import LaunchSpec
from ddops.errors import (
    CommandFailed,
    DdopsError,
    GateFailed,
    Interrupted,
    LockHeldError,
    RefusedError,
    RollbackFailedError,
    RolledBackError,
    UnreachableError,
)
from ddops.events import Level, ListReporter
from ddops.gates import Observation
from ddops.gates.observation import Answer, Launch, Port
from ddops.inventory.model import Host, Node, Origin
from ddops.inventory.model import Service as Inventory
from ddops.ledger import Outcome
from ddops.model import GateResult, State, Verdict
from ddops.probe import Facts
from ddops.snapshot import Step
from ddops.supervise import ServiceState
from tests.guards.source import ROOT

NEW, OLD = "ab" * 32, "cd" * 32
HERE = Origin("project", Path("x"))
DOWN = ServiceState(State.DOWN, "STOPPED")


@dataclass
class Service:
    """A service on a host that does what it is told; `fail` maps a verb to what it raises."""

    committed: str | None = OLD
    current: str | None = OLD
    running: str | None = OLD
    fail: dict[str, list[BaseException | None]] = field(default_factory=dict)
    host: Host = field(
        default_factory=lambda: Host(name="box", origin=HERE, ssh="box", host_class="cpu")
    )
    service: Inventory = field(
        default_factory=lambda: Inventory(
            name="k", origin=HERE, model="m", profile="p", hosts=("box",)
        )
    )
    port: int = 1
    log: list[str] = field(default_factory=list)
    left: tuple[int, ...] = ()
    flag_faults: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def node(self) -> Node:
        return self.service.node

    def _do(self, verb: str) -> None:
        self.log.append(verb)
        plan = self.fail.get(verb, [])
        error = plan.pop(0) if plan else None
        if error is not None:
            raise error

    def preflight(self, *_: object) -> Preflight:
        self._do("preflight")
        return Preflight("0.5.23", self.flag_faults, (), bool(self.broken), self.broken)

    def standing(self) -> Standing:
        return Standing(Links(self.current, self.committed), "systemd")

    def stage(self, *_: object) -> dict[str, object]:
        self._do("stage")
        return {"fresh": True}

    def run_by(self, _kind: str) -> Service:
        return self

    def taken_from(self, _kind: str) -> None:
        """Nobody else had it."""

    def proven(self, _seen: Observation) -> None:
        """Nothing to keep: it is no job."""

    def stop(self, _ran_by: str = "") -> ServiceState:
        self._do("stop")
        if self.left:
            return ServiceState(State.DOWN, "STOPPED", left=self.left)
        self.running = None
        return DOWN

    def switch(self, digest: str) -> None:
        self._do("switch")
        self.current = digest

    def unlink_current(self) -> None:
        self._do("unlink")
        self.current = None

    def start(self, _op: str) -> ServiceState:
        self._do("start")
        self.running = self.current
        return ServiceState(State.UP, "STARTING")

    def commit(self, digest: str) -> None:
        self._do("commit")
        self.committed = digest

    def prune(self, _keep: int, *never: str | None) -> None:
        self._do(f"prune but {','.join(n[:2] for n in never if n)}")

    def observe(self, *, http: bool = True) -> Observation:
        self._do("observe" if http else "glance")
        release = self.running or ""
        version = f"{release[:12]}-n"
        return Observation(
            1.0, self.current, Launch("n", version, release, "op", 7, 6, 1.0),
            State.UP if self.running else State.DOWN, "", 7, 1.0, 1,
            Port(1, bool(self.running), bool(self.running), "pid 7"), 0, "",
            Answer(200), Answer(200, values={"weight_version": version}), Answer(200),
        )  # fmt: skip

    def golden_gate(self, digest: str, *_: object, speculative: bool) -> list[GateResult]:
        self._do(f"golden {digest[:2]}")
        return [GateResult("G4", Verdict.SKIP, "none", {})]

    def staged_gates(self, _digest: str) -> tuple[tuple[str, ...], dict[str, object], None]:
        return (), {}, None


class Ledger:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.broken = False
        self.refuses: tuple[str, ...] = ()

    def add_transition(self, _op: str, state: str, verdict: Outcome, _e: object) -> int:
        if self.broken:
            raise OSError("disk full")
        self.rows.append((state, verdict.value))
        return len(self.rows)

    def add_launch(self, *_: object, release: str, **__: object) -> None:
        if release in self.refuses:
            raise DdopsError("the ledger refused to add a row of launch")

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def add_gate(self, *_: object, **__: object) -> None:
        return


@dataclass
class Run:
    service: Service
    ledger: Ledger
    deploy: Deploy

    def states(self) -> dict[str, str]:
        return dict(self.ledger.rows)


def make(monkeypatch: pytest.MonkeyPatch, service: Service | None = None) -> Run:
    service, ledger, report = service or Service(), Ledger(), ListReporter()

    def quick(self: Deploy) -> None:
        return None

    monkeypatch.setattr(Deploy, "_probe", quick)
    monkeypatch.setattr(Deploy, "_compat", lambda _self, _facts: None)
    release = Release(NEW, {}, LaunchSpec((), ()), {}, (), None, None)
    journal: list[Mapping[str, object]] = []
    record = Recorder(ledger, "op", "k", "box", NEW, report, journal.extend)  # type: ignore[arg-type]
    deploy = Deploy(
        service=service,  # type: ignore[arg-type]
        standing=service.standing(), looked=None,
        ahead=Ahead(
            Later(lambda: None), Later(tuple), Later(service.preflight), lambda _f, _r: SKIPPED
        ),
        release=release, settings=Settings(5, 0, 3), record=record,
        resolve=Secret, clock=SystemClock(), stop=Stop(), report=report, redactor=Redactor(),
        still_ours=lambda: None,
    )  # fmt: skip
    return Run(service, ledger, deploy)


class Later(Future[Any]):
    """Asked when it is waited for."""

    def __init__(self, ask: Callable[[], object]) -> None:
        super().__init__()
        self.ask = ask

    def result(self, timeout: float | None = None) -> Any:
        return self.ask()


SKIPPED = Step("this command takes none", {})
BOOM = CommandFailed("box: boom", rc=1)


@dataclass
class Drain:
    """A way out and back that writes down what it was asked; `fail` maps a verb to an error."""

    log: list[str]
    fail: dict[str, list[BaseException | None]] = field(default_factory=dict)

    def _do(self, verb: str) -> None:
        self.log.append(verb)
        plan = self.fail.get(verb, [])
        error = plan.pop(0) if plan else None
        if error is not None:
            raise error

    def out(self, stop: Stop) -> Way:
        self._do("out")
        return Way("", {"in_flight": 2})

    def stay(self) -> None:
        self._do("stay")

    def leave(self) -> Mapping[str, object]:
        self._do("leave")
        return {}

    def back(self, version: str) -> Mapping[str, object]:
        self._do(f"back {version[:2]}")
        return {}


LOST = UnreachableError("box: lost")


def test_the_straight_way(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(monkeypatch)
    run.deploy.run()
    assert (run.service.current, run.service.committed, run.service.running) == (NEW, NEW, NEW)
    assert [s for s, _ in run.ledger.rows] == [
        s for s in machine.STATES if s not in ("probed", "compat_ok")
    ]
    assert "prune but ab,cd" in run.service.log  # what served before stays, whatever its age


def routed(monkeypatch: pytest.MonkeyPatch, **fail: list[BaseException | None]) -> Run:
    run = make(monkeypatch)
    verbs = {k.replace("_", " "): v for k, v in fail.items()}
    run.deploy.drain = Drain(run.service.log, verbs)
    return run


def order(run: Run, *verbs: str) -> list[str]:
    return [v for v in run.service.log if v in verbs]


def test_a_replica_is_out_before_it_stops_and_back_before_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = routed(monkeypatch)
    run.deploy.run()
    verbs = ("out", "stop", "start", "golden ab", "back ab", "commit")
    assert order(run, *verbs) == list(verbs)
    assert run.states()["drained"] == "ok"


def test_a_replica_that_does_not_drain_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    run = routed(monkeypatch, out=[RefusedError("box: the last one")])
    with pytest.raises(RefusedError, match="last one"):
        run.deploy.run()
    assert (run.states()["drained"], run.states()["failed"]) == ("fail", "fail")
    assert not order(run, "stop", "stage again")
    assert run.service.running == OLD


def test_a_drain_that_cannot_be_recorded_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run = routed(monkeypatch)
    real = run.ledger.add_transition

    def add(op: str, state: str, verdict: Outcome, evidence: object) -> int:
        if state == "drained":
            raise OSError("disk full")
        return real(op, state, verdict, evidence)

    monkeypatch.setattr(run.ledger, "add_transition", add)
    with pytest.raises(OSError, match="disk full"):
        run.deploy.run()
    assert order(run, "out", "stay", "stop") == ["out", "stay"]


def test_a_new_start_that_the_router_does_not_serve_goes_back_and_the_old_one_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = routed(monkeypatch, back_ab=[GateFailed("box: not healthy", gate="router")])
    with pytest.raises(RolledBackError, match="serves again"):
        run.deploy.run()
    assert order(run, "out", "back ab", "leave", "golden cd", "back cd", "commit") == [
        "out", "back ab", "leave", "golden cd", "back cd",
    ]  # fmt: skip
    assert (run.service.running, run.service.committed) == (OLD, OLD)


def test_an_old_start_that_the_router_does_not_take_again_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = GateFailed("box: not healthy", gate="router")
    run = routed(monkeypatch, back_ab=[gone], back_cd=[gone])
    with pytest.raises(RollbackFailedError, match="so did the way back"):
        run.deploy.run()
    assert run.states()["stuck"] == "fail"


def test_a_line_the_installed_engine_does_not_take_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make(monkeypatch, Service(flag_faults=("--x: no such option; nearest is --y",)))
    with pytest.raises(RefusedError, match="does not take this launch") as caught:
        run.deploy.run()
    assert "nearest is --y" in caught.value.why
    assert run.service.log == ["preflight"]
    assert run.states()["flags_ok"] == "fail"


def test_an_engine_without_its_environment_names_what_builds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = "ModuleNotFoundError: No module named 'sglang'"
    run = make(monkeypatch, Service(flag_faults=(fault,), broken=("lib is missing",)))
    with pytest.raises(RefusedError, match="environment is not whole") as caught:
        run.deploy.run()
    assert caught.value.why == f"lib is missing; {fault}"
    assert caught.value.next.startswith("ddops provision ")
    assert run.states()["flags_ok"] == "fail"


@pytest.mark.parametrize("verb", ["stage", "glance", "preflight"])
def test_a_failure_before_the_stop_touches_nothing(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    run = make(monkeypatch, Service(fail={verb: [BOOM]}))
    with pytest.raises(CommandFailed, match="boom"):
        run.deploy.run()
    assert "stop" not in run.service.log
    assert run.states()["failed"] == "fail"
    assert run.service.running == OLD


@pytest.mark.parametrize("verb", ["stop", "switch", "start", "commit", "observe", "golden ab"])
def test_a_failure_behind_the_stop_brings_the_old_one_back(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    run = make(monkeypatch, Service(fail={verb: [BOOM]}))
    with pytest.raises(RolledBackError, match="serves again") as raised:
        run.deploy.run()
    assert "boom" in raised.value.why
    assert (run.service.current, run.service.committed, run.service.running) == (OLD, OLD, OLD)
    assert "golden cd" in run.service.log  # the way back is gated too
    assert (run.states()["rolling_back"], run.states()["restored"]) == ("fail", "ok")


def test_a_way_back_needs_no_row_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """What served before serves again, whatever a ledger says that does not know it."""
    run = make(monkeypatch, Service(fail={"golden ab": [BOOM]}))
    run.ledger.refuses = (OLD,)
    with pytest.raises(RolledBackError, match="serves again"):
        run.deploy.run()
    assert run.service.running == OLD
    told = cast("ListReporter", run.deploy.report)
    assert "is not on record: the ledger refused" in " ".join(e.message for e in told.events)
    run = make(monkeypatch)
    run.ledger.refuses = (NEW,)
    with pytest.raises(RolledBackError, match="serves again"):  # on the way there it is a fault
        run.deploy.run()
    assert run.service.running == OLD


def test_a_first_deploy_goes_back_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(committed=None, current=None, running=None, fail={"golden ab": [BOOM]})
    run = make(monkeypatch, service)
    with pytest.raises(CommandFailed, match="boom"):
        run.deploy.run()
    assert (service.current, service.running) == (None, None)
    assert run.states()["restored"] == "ok"


@pytest.mark.parametrize("verb", ["stop", "switch", "start", "observe"])
def test_a_way_back_that_fails_is_stuck(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    run = make(monkeypatch, Service(fail={verb: [BOOM, BOOM]}))
    with pytest.raises(RollbackFailedError, match="so did the way back"):
        run.deploy.run()
    assert run.states()["stuck"] == "fail"
    assert "restored" not in run.states()


def test_what_cannot_be_ended_is_stuck_even_on_a_first_deploy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(committed=None, current=None, running=None, left=(4711,))
    run = make(monkeypatch, service)
    with pytest.raises(RollbackFailedError, match="way back") as raised:
        run.deploy.run()
    assert "4711" in raised.value.why


def test_a_fault_of_ours_on_the_way_back_is_stuck_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(monkeypatch, Service(fail={"switch": [BOOM, ValueError("odd")]}))
    with pytest.raises(RollbackFailedError, match="way back") as raised:
        run.deploy.run()
    assert "odd" in raised.value.why


@pytest.mark.parametrize("verb", ["stop", "switch", "start"])
def test_a_connection_lost_both_ways_is_unknown(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    run = make(monkeypatch, Service(fail={verb: [LOST, LOST], "stop": [None, LOST]}))
    if verb == "stop":
        run.service.fail["stop"] = [LOST, LOST]
    with pytest.raises(UnreachableError, match="unknown"):
        run.deploy.run()
    assert run.states()["rolling_back"] == "unknown"
    assert "stuck" not in run.states()


def test_a_wish_to_stop_is_carried_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(monkeypatch)
    wish = run.deploy.stop

    def ask(*_: object, **__: object) -> list[GateResult]:
        wish.ask()
        return []

    monkeypatch.setattr(run.service, "golden_gate", ask)
    with pytest.raises(Interrupted, match="before the deploy was committed") as raised:
        run.deploy.run()
    assert "serves again" in raised.value.why
    assert (run.service.running, run.service.committed) == (OLD, OLD)


def test_a_ledger_that_cannot_be_written_does_not_keep_the_service_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make(monkeypatch)

    def switch(digest: str) -> None:
        run.ledger.broken, run.service.current = True, digest

    monkeypatch.setattr(run.service, "switch", switch)
    monkeypatch.setattr(Deploy, "_start", _start_unrecorded)
    with pytest.raises(RolledBackError):
        run.deploy.run()
    assert run.service.running == OLD
    warned = [e.message for e in run.deploy.report.events]  # type: ignore[attr-defined]
    assert any("is not on record: disk full" in w for w in warned)


def _start_unrecorded(self: Deploy, _digest: str) -> Observation:
    self.service.start("op")
    return self.service.observe()


def test_a_lock_that_was_lost_ends_all_touching(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(monkeypatch)
    asked = iter([None, LockHeldError("box: the lock was taken")])

    def check() -> None:
        error = next(asked, LockHeldError("box: the lock was taken"))
        if error is not None:
            raise error

    run.deploy.still_ours = check
    with pytest.raises(LockHeldError):
        run.deploy.run()
    assert "stop" not in run.service.log
    assert run.service.running == OLD


def taken(evidence: dict[str, object], asked: list[bool]) -> Callable[[Facts, bool], Step]:
    def take(_facts: Facts, required: bool) -> Step:
        asked.append(required)
        return Step("", evidence)

    return take


def broken(_facts: Facts, _required: bool) -> Step:
    raise CommandFailed("box: git: the copy did not verify", rc=1)


def test_a_snapshot_is_a_transition_with_its_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = make(monkeypatch), list[bool]()
    run.deploy.snapshot = taken({"snapshot": "ab"}, asked)
    run.deploy.run()
    assert run.states()["snapshotted"] == "ok"
    assert asked == [False]


def test_a_snapshot_that_fails_is_said_and_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(monkeypatch)
    run.deploy.snapshot = broken
    run.deploy.run()
    assert run.states()["snapshotted"] == "skip"
    assert run.service.running == NEW
    told = [e.message for e in run.deploy.report.events if e.level is Level.WARN]  # type: ignore[attr-defined]
    assert any("did not verify" in m for m in told)


def test_a_required_snapshot_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    service.service = structs.replace(service.service, require_snapshot=True)
    run = make(monkeypatch, service)
    run.deploy.snapshot = broken
    with pytest.raises(CommandFailed, match="did not verify"):
        run.deploy.run()
    assert run.states()["snapshotted"] == "fail"
    assert "stage" not in service.log
    assert service.running == OLD


def gpu_host(monkeypatch: pytest.MonkeyPatch, used: object, apps: str = "") -> Run:
    """A machine whose GPU says this of itself behind the stop; the host is made up."""
    run = make(monkeypatch)
    run.service.host = Host(name="box", origin=HERE, ssh="box", host_class="pcie")
    raw = {"gpus": [{"memory.used": used}], "commands": {"smi_apps": {"rc": 0, "out": apps}}}
    run.service.transport = None  # type: ignore[attr-defined]
    monkeypatch.setattr(machine, "collect", lambda *_, **_kw: SimpleNamespace(raw=raw))
    return run


def soaking(monkeypatch: pytest.MonkeyPatch, logs: list[str | None], corrected: int = 0) -> Run:
    """A GPU host whose service asks for a soak, and its kernel log at one look after the other.

    With each look it has corrected so many memory errors more.
    """
    run = gpu_host(monkeypatch, "3")
    looks = [0]
    run.service.service = structs.replace(run.service.service, soak_s=0.05)

    def look(*_: object, **_kw: object) -> Facts:
        log = logs.pop(0) if len(logs) > 1 else logs[0]
        rc = None if log is None else 0
        gpu = {"uuid": "GPU-1", "memory.used": "3", "ecc.errors.uncorrected.volatile.total": "0"}
        looks[0] += 1
        lines = ("GPU 00000000:1B:00.0", "    ECC Errors", "        Volatile",
                 f"            DRAM Correctable : {corrected * looks[0]}")  # fmt: skip
        said = {"dmesg": log or "", "smi_q": "\n".join(lines), "nvlink_errors": ""}
        commands = {k: {"rc": 0, "out": v, "err": "", "why": ""} for k, v in said.items()}
        commands["dmesg"]["rc"] = rc
        raw = {"gpus": [gpu], "commands": commands, "at": 60.0 * looks[0]}
        return SimpleNamespace(raw=raw, simulated=False, digest="f" * 64)  # type: ignore[return-value]

    monkeypatch.setattr(climb, "collect", look)
    monkeypatch.setattr(Deploy, "_probe", look)
    return run


XID = "[9.1] NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=sglang, MMU Fault"


@pytest.mark.parametrize(
    ("logs", "corrected", "words"),
    [(["", "", XID], 0, "G6 FAIL"), (["", "", None], 0, "G6 UNKNOWN"), ([""], 0, ""),
     ([""], 1, ""), ([""], 6000, "G6 FAIL")],
)  # fmt: skip
def test_a_soak_looks_at_the_gpus_errors_too(
    monkeypatch: pytest.MonkeyPatch, logs: list[str | None], corrected: int, words: str
) -> None:
    run = soaking(monkeypatch, logs, corrected)
    if not words:
        run.deploy.run()
        assert run.service.running == NEW
        return
    with pytest.raises(RolledBackError) as raised:
        run.deploy.run()
    assert words in raised.value.why
    assert run.service.running == OLD


def test_a_soak_that_could_not_be_judged_is_refused_before_anything_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = soaking(monkeypatch, [None])
    with pytest.raises(RefusedError, match="kernel log"):
        run.deploy.run()
    assert "stop" not in run.service.log
    assert run.service.running == OLD


def test_no_engine_is_started_over_memory_that_somebody_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = gpu_host(monkeypatch, "61234", "4711, 61000 MiB")
    with pytest.raises(RolledBackError) as raised:
        run.deploy.run()
    assert "GPU memory is not free" in raised.value.why
    assert "pid 4711, 61000 MiB" in raised.value.why
    assert "vram_free" not in run.states()
    assert "switched" not in run.states()


@pytest.mark.parametrize(("used", "ok"), [("3", True), ("[N/A]", False), (None, False)])
def test_memory_that_cannot_be_read_is_not_free(
    monkeypatch: pytest.MonkeyPatch, used: object, ok: bool
) -> None:
    run = gpu_host(monkeypatch, used)
    if ok:
        run.deploy.run()
        assert run.states()["vram_free"] == "ok"
        return
    with pytest.raises(RolledBackError, match="serves again"):
        run.deploy.run()


def test_every_transition_that_is_written_is_one_of_the_machines() -> None:
    """The kill tables go through STATES and WAYS_OUT: what is not in there is never killed."""
    written = set()
    for path in (ROOT / "ddops/deploy").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            verbs = ("ok", "skip", "fail", "give_up", "unknown", "_row", "_try", "_ledger_row",
                     "_refuse")  # fmt: skip
            if node.func.attr in verbs and node.args and isinstance(node.args[0], ast.Constant):
                written.add(node.args[0].value)
    assert written == {*machine.STATES, *machine.WAYS_OUT}


def test_errors_keep_their_exit_codes() -> None:
    assert GateFailed("x", gate="G0").exit_code == DdopsError("x").exit_code == 1
