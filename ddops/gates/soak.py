"""G6: a start that passed stays what it was for as long as the service asks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddops.gates.ladder import judge_g0, judge_g1, judge_g2, judge_g3
from ddops.gates.observation import Observation
from ddops.model import GateResult, Verdict


def judge_soak(
    looks: Sequence[Observation],
    op_id: str,
    release: str,
    identity: Mapping[str, object] | None,
    seconds: float,
) -> GateResult | None:
    """What the looks so far say: a FAIL as soon as there is one, else None.

    The process, its unit, the port and the identity must hold at every look. Health may be late
    once, as under load (sglang#22511); twice in a row is a failure. Without an `identity` nobody is
    asked for one: a follower of an engine on several hosts has none to tell.
    """
    last = looks[-1]
    for gate in (judge_g0(looks[0], last, op_id), judge_g1(last)):
        if gate.verdict is not Verdict.PASS:
            return _failed(seconds, gate)
    late = judge_g2(last)
    if late.verdict is not Verdict.PASS:
        before = judge_g2(looks[-2]) if len(looks) > 1 else None
        twice = before is not None and before.verdict is not Verdict.PASS
        return _failed(seconds, late) if twice else None
    if identity is None:
        return None
    said = judge_g3(last, release, identity)
    return None if said.verdict is Verdict.PASS else _failed(seconds, said)


def soaked(last: Observation, asked_s: float, counts: Mapping[str, float]) -> GateResult:
    """The verdict behind the last look, which must be a good one by itself."""
    evidence: dict[str, object] = {**counts, "asked": asked_s, "pid": last.pid}
    health = judge_g2(last)
    if health.verdict is not Verdict.PASS:
        words = f"at the end of {asked_s:g} s: {health.message}"
        return GateResult("G6", Verdict.FAIL, words, evidence)
    words = f"{asked_s:g} s, {counts['looks']:g} looks, no restart"
    return GateResult("G6", Verdict.PASS, words, evidence)


def _failed(seconds: float, gate: GateResult) -> GateResult:
    evidence = {**gate.evidence, "gate": gate.name, "seconds": round(seconds, 1)}
    words = f"{gate.name} after {seconds:.0f} s: {gate.message}"
    return GateResult("G6", gate.verdict, words, evidence)
