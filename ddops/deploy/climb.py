"""The gates of one start, in their order; the first that does not pass ends the climb.

G3  asked first: there is no use in golden prompts of somebody else
G4  the service's own, then a quiet time, then G0 to G3 at a look behind it
G5  a short measurement against what the ledger knows of this configuration
G6  the soak, where the service asks for one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddops.clock import Clock
from ddops.compat.errors_since import COMMANDS, judge_errors
from ddops.deploy.host import ServiceOnHost
from ddops.deploy.ready import LOST_S
from ddops.deploy.record import Recorder
from ddops.deploy.stop import Stop
from ddops.errors import GateFailed, HostKeyError, UnreachableError
from ddops.gates import (
    Golden,
    Observation,
    judge_g0,
    judge_g1,
    judge_g2,
    judge_g3,
    judge_soak,
    soaked,
)
from ddops.model import GateResult, Verdict
from ddops.probe import Facts, collect

#: Between two looks of a soak; a short one is looked at ten times.
SOAK_LOOK_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers of a deploy, in seconds."""

    load_budget_s: float
    ready_quiet_s: float
    keep_releases: int
    gate_timeout_s: float = 60.0
    preflight_timeout_s: float = 180.0


@dataclass(frozen=True, slots=True)
class Started:
    """A start that is ready, as it was first seen, and what its release must prove."""

    seen: Observation
    digest: str
    identity: Mapping[str, object]
    gates: tuple[str, ...]
    golden: Golden | None


def with_errors(gate: GateResult, before: Facts | None, after: Facts | None) -> GateResult:
    """The soak's verdict, and what the GPUs say: the worse of both, where there are GPUs."""
    if gate.verdict is not Verdict.PASS or before is None or after is None:
        return gate
    errors = judge_errors(before, after)
    evidence = {**gate.evidence, "gpus": errors.evidence}
    return GateResult("G6", errors.verdict, f"{gate.message}; {errors.message}", evidence)


@dataclass(slots=True)
class Climb:
    """One climb. Every result is on record, with the start that it is of."""

    service: ServiceOnHost
    start: Started
    settings: Settings
    record: Recorder
    clock: Clock
    stop: Stop
    say: Callable[[str], None]
    smoke: Callable[[Observation], GateResult]
    #: The operation that the start belongs to, where that is not the one at work.
    of: str = ""

    @property
    def op_id(self) -> str:
        return self.of or self.record.op_id

    def all(self) -> list[GateResult]:
        """Every gate. Raises GateFailed at the first that does not pass."""
        ladder = self.correct()
        ladder.append(self._keep(self.smoke(self.start.seen)))
        self.stop.check("before the deploy was committed")
        ladder.append(self._keep(self._soak()))
        self.stop.check("before the deploy was committed")
        return ladder

    def correct(self) -> list[GateResult]:
        """G0 to G4: it is this start of this release, and answers right."""
        start, first = self.start, self.start.seen
        if self.follower:
            return self._alive()
        version = first.launch.weight_version if first.launch else ""
        results = [judge_g3(first, start.digest, start.identity)]
        if results[0].verdict is Verdict.PASS:
            speculative = start.identity.get("speculative_algorithm") is not None
            results += self.service.golden_gate(
                start.digest, version, start.gates, start.golden, self.settings.gate_timeout_s,
                speculative=speculative,
            )  # fmt: skip
        self.stop.wait(self.settings.ready_quiet_s)
        last = self.service.observe()
        ladder = [judge_g0(first, last, self.op_id), judge_g1(last), judge_g2(last)]
        ladder += [judge_g3(last, start.digest, start.identity), *results[1:]]
        self._tell(ladder)
        self._judge([*ladder[:3], results[0], *ladder[3:]])
        self.stop.check("before the deploy was committed")
        return ladder

    @property
    def follower(self) -> bool:
        """One of several hosts of an engine, and not the one that answers for all."""
        return self.service.node.rank > 0

    def _alive(self) -> list[GateResult]:
        """A follower's gates: its process, its port, and the health it has learnt to tell."""
        self.stop.wait(self.settings.ready_quiet_s)
        last = self.service.observe()
        first = self.start.seen
        ladder = [judge_g0(first, last, self.op_id), judge_g1(last), judge_g2(last)]
        ladder += [GateResult(g, Verdict.SKIP, "rank 0 answers for all", {}) for g in ("G3", "G4")]
        self._tell(ladder)
        self._judge(ladder)
        return ladder

    def _soak(self) -> GateResult:
        asked = self.service.service.soak_s
        if asked <= 0:
            return GateResult("G6", Verdict.SKIP, "the service asks for no soak", {})
        self.say(f"soaking for {asked:g} s")
        start, looks, counts = self.start, [self.start.seen], {"looks": 0, "late": 0, "lost_s": 0.0}
        errors = self._gpu_errors()
        began = good = self.clock.monotonic()
        every = min(SOAK_LOOK_S, asked / 10)
        while True:
            if self.stop.wait(every):
                self.stop.check("while the new release was soaking")
            try:
                looks.append(self.service.observe())
            except HostKeyError:
                raise
            except UnreachableError:
                # Not a word about the engine; a soak that ends unseen is none, though.
                counts["lost_s"] = max(counts["lost_s"], round(self.clock.monotonic() - good, 1))
                if self.clock.monotonic() - good > LOST_S:
                    raise
                continue
            good = self.clock.monotonic()
            counts["looks"] += 1
            counts["late"] += judge_g2(looks[-1]).verdict is not Verdict.PASS
            failed = judge_soak(
                looks, self.op_id, start.digest,
                None if self.follower else start.identity, good - began,
            )  # fmt: skip
            if failed is not None:
                return failed
            if good - began >= asked:
                gate = soaked(looks[-1], asked, counts | {"seconds": round(good - began, 1)})
                return with_errors(gate, errors, self._gpu_errors())
            del looks[1:-1]  # the first and the last two are all that is judged

    def _gpu_errors(self) -> Facts | None:
        """What GPUs and kernel say of errors now; None where no GPU is behind the host."""
        host = self.service.host
        if (host.host_class or "cpu") == "cpu" or host.simulated:
            return None
        until = self.clock.monotonic() + LOST_S
        while True:
            try:
                return collect(self.service.transport, host.python, host.engine_dir, only=COMMANDS)
            except HostKeyError:
                raise
            except UnreachableError:
                if self.clock.monotonic() > until:
                    raise
            if self.stop.wait(SOAK_LOOK_S):
                self.stop.check("while the new release was soaking")

    def _keep(self, gate: GateResult) -> GateResult:
        self._tell([gate])
        self._judge([gate])
        return gate

    def _tell(self, gates: Sequence[GateResult]) -> None:
        launch = self.start.seen.launch
        self.record.gates(gates, launch.nonce if launch else None)
        for gate in gates:
            self.say(f"{gate.name} {gate.verdict.value}: {gate.message}")

    def _judge(self, ladder: Sequence[GateResult]) -> None:
        """A gate passes, warns, or is skipped for a recorded reason; unknown is not a pass."""
        well = (Verdict.PASS, Verdict.WARN, Verdict.SKIP)
        bad = next((g for g in ladder if g.verdict not in well), None)
        if bad is not None:
            host = self.service.host.name
            raise GateFailed(
                f"{host}: {bad.name} {bad.verdict.value}: {bad.message}",
                gate=bad.name,
                next=f"ddops status {host}",
            )
