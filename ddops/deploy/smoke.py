"""G5: is the new start as fast as earlier ones of its configuration on this very device?

What it is judged by is the ledger's noise bound: the valid smoke runs of at least three earlier
starts of the same family (the release may be another one). Below that there is nothing to judge
by, and the gate is a SKIP that says so. A load that could not be measured is one too; one whose
answers are wrong fails. What is measured here stands in the gate's evidence, and is no run: a
baseline that grew by what it let pass would follow a service down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddops.deploy.host import ServiceOnHost
from ddops.errors import CommandFailed
from ddops.events import Event, Reporter
from ddops.gates import Observation
from ddops.inventory.model import Profile
from ddops.ledger import Ledger
from ddops.model import GateResult, Verdict

if TYPE_CHECKING:  # numpy and scipy come with it: loaded where there is something to judge by
    from ddops.bench.answer import Load
    from ddops.bench.plan import Point
    from ddops.bench.runner import Bench
    from ddops.bench.target import Proof

Smoke = Callable[[Observation], GateResult]
FIGURE = "output_tps"
FEWEST = 3
#: A bound as wide as this part of the mean lets everything pass.
WIDEST = 0.5
#: Rules of a run's validity that speak of the engine's answers; others speak of the measuring.
WRONG = ("identity", "requests", "output length", "counts", "degenerate")
#: A first figure below the bound is not believed alone.
TRIES = 3


def skipped(why: str) -> Smoke:
    """A G5 that is not climbed, and why."""
    return lambda _seen: GateResult("G5", Verdict.SKIP, why, {})


def smoke_of(
    target: ServiceOnHost, release: str, profile: Profile, ledger: Ledger, report: Reporter
) -> Smoke:
    """The gate for one release. Reads the suite now: a fault in it is found before any stop."""
    name = target.service.name
    if not any(c.suite == "smoke" and c.service == name for c in ledger.cells()):
        return skipped(_too_few(0))
    from ddops.bench.plan import Point, refuse_oversize
    from ddops.bench.prompts import read_prompts
    from ddops.bench.runner import Bench
    from ddops.bench.target import Target
    from ddops.inventory.suites import find_suite

    suite = find_suite(target.lookup, name, "smoke")
    prompts = read_prompts(target.lookup(suite.prompts), suite.prompts)
    point = Point(min(suite.levels))
    refuse_oversize(suite, prompts, [point])
    t = target
    measured = Target(t.transport, t.host, t.service, profile, t.port, t.lookup)
    bench = Bench(measured, suite, prompts, ledger, report, lambda: False)
    return Measure(bench, point, release)


def _too_few(launches: int) -> str:
    return f"{launches} of {FEWEST} starts of this configuration have a valid smoke run here"


@dataclass(frozen=True, slots=True)
class Measure:
    """One G5, called with the start that is ready."""

    bench: Bench
    point: Point
    release: str

    def __call__(self, seen: Observation) -> GateResult:
        known = self._launches()
        if known < FEWEST or seen.launch is None:
            return GateResult("G5", Verdict.SKIP, _too_few(known), {})
        host = self.bench.target.host.name
        words = "measuring, to compare with earlier starts"
        self.bench.report.emit(Event("gate", words, host))
        found: list[float] = []
        bad: list[str] = []
        wrong: list[str] = []
        for n in range(1, TRIES + 1):
            try:
                value, why, at_fault, load = self._once(seen, n)
            except CommandFailed as error:
                bad.append(error.what)
                continue
            if value is None:
                (wrong if at_fault else bad).append(why)
                continue
            found.append(value)
            result = self._judge(load, found)
            if result.verdict is not Verdict.FAIL:
                return result
        if found:
            return result
        verdict, said = (Verdict.FAIL, wrong) if wrong else (Verdict.SKIP, bad)
        return GateResult("G5", verdict, f"not measured: {said[-1]}", {"why": [*wrong, *bad]})

    def _launches(self) -> int:
        family = self.bench.cell(self.release, self.point).family
        ledger = self.bench.ledger
        runs = (r for c in ledger.cells() if c.family == family for r in ledger.runs(c.key))
        return len({r.launch for r in runs})

    def _once(self, seen: Observation, n: int) -> tuple[float | None, str, bool, Load]:
        """One load: its figure, or why there is none and whether the answers are at fault."""
        from ddops.bench.runner import analyse
        from ddops.bench.validity import judge_run
        from ddops.ledger.bench_records import Status

        bench, proof = self.bench, _proof(seen)
        load = bench.target.run(bench.plan(proof, self.point, n))
        window, numbers = analyse(load, self.point, bench.suite)
        against = judge_run(load, window, numbers, bench.asked(proof, self.point))
        value = numbers.output_tps if numbers is not None else None
        if against or value is None:
            why = "; ".join(map(str, against)) or "no window"
            at_fault = any(f.status is Status.INVALID and f.rule in WRONG for f in against)
            return None, why, at_fault, load
        return value, "", False, load

    def _judge(self, load: Load, found: list[float]) -> GateResult:
        from ddops.bench.compare import history, noise_of
        from ddops.bench.runner import device_name
        from ddops.bench.stats_verdict import regressed
        from ddops.bench.target import device_of

        bench = self.bench
        kind, device = device_of(load.before.info, bench.target.host), device_name(load)
        family = bench.cell(self.release, self.point).family
        noise = noise_of(history(bench.ledger, family, kind, device), FIGURE)
        if noise is None:
            return GateResult("G5", Verdict.SKIP, f"{_too_few(0)}, on {device} ({kind})", {})
        if noise.relative > WIDEST:
            words = f"{noise.n} earlier starts differ by {noise.relative:.0%} about their mean"
            why = {"low": round(noise.low, 3), "mean": round(noise.mean, 3), "launches": noise.n}
            return GateResult("G5", Verdict.SKIP, f"{words}: they judge nothing", why)
        value = sum(found) / len(found)
        evidence: dict[str, object] = {
            "figure": FIGURE, "value": round(value, 3), "each": [round(v, 3) for v in found],
            "low": round(noise.low, 3), "mean": round(noise.mean, 3), "launches": noise.n,
            "device": device, "device_class": kind.value,
        }  # fmt: skip
        worse = regressed(value, noise, higher_is_better=True)
        words = (
            f"{value:.1f} tok/s, {'below' if worse else 'not below'} {noise.low:.1f}"
            f" of {noise.n} earlier starts on {device} ({kind})"
        )
        return GateResult("G5", Verdict.FAIL if worse else Verdict.PASS, words, evidence)


def _proof(seen: Observation) -> Proof:
    from ddops.bench.target import Proof

    assert seen.launch is not None  # noqa: S101 - looked at before anything is measured
    launch = seen.launch
    return Proof(launch.weight_version, launch.nonce, launch.release, None, seen)
