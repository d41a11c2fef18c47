"""The gate ladder, judged. Pure: observations in, verdicts out.

    G0  the engine runs: same process, same start, not restarted while we looked
    G1  the port is listened on by a process of ours
    G2  /health answers 200
    G3  the server says it is this start of this release
    G4  the service's own correctness gates (ddops.gates.golden)

`/v1/models` counts for nothing: it answers before the model can.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddops.gates.observation import Observation
from ddops.model import GateResult, State, Verdict, short


def judge_g0(first: Observation, last: Observation, op_id: str) -> GateResult:
    """The same engine process at both looks, started by this operation."""
    evidence: dict[str, object] = {
        "pid": last.pid,
        "nonce": last.launch.nonce if last.launch else None,
        "seconds": round(last.at - first.at, 1),
    }
    if last.engine is not State.UP or last.launch is None:
        return GateResult("G0", _absent(last), f"engine not running: {last.engine_why}", evidence)
    if first.launch is None or first.launch.nonce != last.launch.nonce:
        return GateResult("G0", Verdict.FAIL, "the engine was restarted while we looked", evidence)
    if last.launch.op_id != op_id:
        return GateResult("G0", Verdict.FAIL, "the engine was started by another deploy", evidence)
    wrong = _unit_wrong(first, last) or _job_wrong(first, last)
    if wrong is not None:
        return GateResult("G0", wrong[0], wrong[1], evidence)
    if last.job is not None:
        evidence |= {"job": last.job.id, "nodes": list(last.job.nodes)}
        words = f"pid {last.pid} on {', '.join(last.job.nodes)} is stable, job {last.job.id}"
        return GateResult("G0", Verdict.PASS, words, evidence)
    return GateResult("G0", Verdict.PASS, f"pid {last.pid} is stable", evidence)


def _unit_wrong(first: Observation, last: Observation) -> tuple[Verdict, str] | None:
    """What systemd says against it; None where it says nothing, or is not there."""
    unit, launch = last.unit, last.launch
    if unit is None or launch is None:
        return None
    if unit.active == "unknown":
        return Verdict.UNKNOWN, f"{unit.name} cannot be asked for: {unit.why}"
    if unit.active != "active":
        return Verdict.FAIL, f"{unit.name} is {unit.active}"
    if unit.main_pid != launch.guard_pid:
        return Verdict.FAIL, f"{unit.name} has main pid {unit.main_pid}, not {launch.guard_pid}"
    if first.unit is not None and first.unit.restarts != unit.restarts:
        return Verdict.FAIL, f"{unit.name} was restarted while we looked"
    return None


def _job_wrong(first: Observation, last: Observation) -> tuple[Verdict, str] | None:
    """What a scheduler, and the other ranks of its job, say against it."""
    job, before = last.job, first.job
    if job is None or before is None:
        return None
    if job.state != "RUNNING":
        return Verdict.FAIL, job.why
    if (before.id, before.restarts) != (job.id, job.restarts):
        return Verdict.FAIL, f"job {job.id} was started again while we looked"
    for rank in job.ranks:
        if rank.state is not State.UP:
            verdict = Verdict.FAIL if rank.state is State.DOWN else Verdict.UNKNOWN
            return verdict, f"engine on {rank.node} not running: {rank.why}"
    if [r.nonce for r in before.ranks] != [r.nonce for r in job.ranks]:
        return Verdict.FAIL, "a rank of the engine was restarted while we looked"
    return None


def judge_g1(seen: Observation) -> GateResult:
    """Our process owns the listening socket: nobody else can answer our probes."""
    port = seen.port
    evidence: dict[str, object] = {"port": port.number, "owner": port.owner}
    if not port.listening:
        return GateResult("G1", Verdict.FAIL, f"nothing listens on port {port.number}", evidence)
    if not port.owned:
        return GateResult(
            "G1", Verdict.FAIL, f"port {port.number} is held by {port.owner}", evidence
        )
    for rank in seen.job.ranks if seen.job else ():
        if not rank.owned:
            words = f"port {port.number} on {rank.node} is not ours"
            return GateResult("G1", Verdict.FAIL, words, evidence)
    return GateResult("G1", Verdict.PASS, f"port {port.number} is ours", evidence)


def judge_g2(seen: Observation) -> GateResult:
    """`/health` answered 200 within its own time limit."""
    answer = seen.health
    if answer is None:
        return GateResult("G2", Verdict.FAIL, "/health was not asked: the port is not ours", {})
    evidence: dict[str, object] = {"status": answer.status, "seconds": answer.seconds}
    for rank in seen.job.ranks if seen.job else ():
        if rank.health != 200:
            words = f"/health on {rank.node}: status {rank.health or 'unknown'}"
            return GateResult("G2", Verdict.FAIL, words, evidence)
    if answer.status == 200:
        return GateResult("G2", Verdict.PASS, f"/health 200 in {answer.seconds:.1f} s", evidence)
    why = f"status {answer.status}" if answer.status else answer.error
    return GateResult("G2", Verdict.FAIL, f"/health: {why}", evidence)


def judge_g3(seen: Observation, release: str, spec: Mapping[str, object]) -> GateResult:
    """`/model_info` and `/server_info` name this start of this release.

    `spec` holds what `/server_info` must say (SGLang's field names); a field the server does
    not report is unknown, and unknown does not pass.
    """
    if seen.launch is None or seen.model_info is None or seen.server_info is None:
        return GateResult("G3", Verdict.FAIL, "identity was not asked: the port is not ours", {})
    want = seen.launch.weight_version
    said = seen.model_info.values.get("weight_version")
    server = seen.server_info.values
    evidence: dict[str, object] = {
        "weight_version": said,
        "version": server.get("version"),
        "simulated": server.get("ddops_simulated", False),
    }
    if not want.startswith(short(release) + "-"):
        return GateResult("G3", Verdict.FAIL, f"launched {want}, want {short(release)}", evidence)
    if said != want:
        return GateResult(
            "G3", Verdict.FAIL, f"the server says it is {said!r}, this start is {want!r}", evidence
        )
    wrong = {k: (server.get(k), v) for k, v in spec.items() if server.get(k) != v}
    if wrong:
        evidence["unlike"] = {k: list(v) for k, v in wrong.items()}
        words = ", ".join(f"{k} is {a!r}, want {b!r}" for k, (a, b) in sorted(wrong.items()))
        return GateResult("G3", Verdict.FAIL, f"not this release: {words}", evidence)
    return GateResult("G3", Verdict.PASS, f"identity {want}", evidence)


def _absent(seen: Observation) -> Verdict:
    return Verdict.UNKNOWN if seen.engine is State.UNKNOWN else Verdict.FAIL
