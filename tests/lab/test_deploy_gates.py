"""The later gates: how near an answer must be, speed against the ledger, the soak."""

from __future__ import annotations

import os
import signal

from ddops.command import Redactor
from ddops.ledger import Gate, Identity, Ledger, NewRun, Status
from ddops.model import GateResult, Verdict
from tests.lab.harness import HostView, Project
from tests.lab.looking import until

SMOKE = """\
kind = "smoke"
levels = [1]
output_tokens = 16
waves = 3
least_requests = 3
sample_s = 0.2
timeout_s = 20
[limits]
send_delay_ms = 500
noise = 1.0
short = 0.2
bound_ms = 200
"""


def gates(host: HostView) -> dict[str, Gate]:
    with host.project.ledger() as ledger:
        newest = ledger.deployments(host=host.name, limit=1)[0]
        return {g.name: g for g in ledger.deployment_gates(newest.op_id)}


def test_how_near_an_answer_must_be_is_the_services_to_say(lab: Project, serving: HostView) -> None:
    """The mask bug leaves the reference from token 3 on; the stand-in's scores call it no tie."""
    lab.profile("mask", "mask_bug")
    try:
        lab.service(gates='["prefix>=3"]')
        lab.ok("deploy", serving.name, "--profile", "mask")
        assert gates(serving)["G4 prefix>=3"].message == "2 prompts, 6 tokens equal"
        lab.ok("deploy", serving.name)
        lab.service(gates='["margin<=0.05"]')
        done = lab.run("deploy", serving.name, "--profile", "mask")
    finally:
        lab.service()
    assert done.rc == 5, done
    assert "G4 margin<=0.05" in done.err
    assert "from token 3" in done.err


def steady(lab: Project, times: int) -> None:
    """As many more starts that were as fast as the one that is on record: machines are not."""
    with Ledger.open(lab.root / ".ddops/ledger.db", redactor=Redactor()) as ledger:
        (row,) = ledger.query("SELECT id FROM run ORDER BY seq DESC LIMIT 1")
        run = ledger.run(str(row["id"]))
        assert run.valid, run
        tps = run.figures["output_tps"]
        assert tps is not None
        for n in range(times):
            op, nonce = f"steady{n}", f"steady{n}"
            ledger.add_deployment(
                op, service="tiny", release=str(run.release), host="lab1", by="ann"
            )  # fmt: skip
            ledger.add_launch(nonce, deployment=op, host="lab1", release=str(run.release))
            gate = ledger.add_gate(
                GateResult("exactness", Verdict.PASS, ""), deployment=op, launch=nonce
            )
            ledger.add_run(
                NewRun(
                    cell=run.cell, launch=nonce, gates=(gate,), status=Status.VALID,
                    identity=Identity.PROVEN, device_class=run.device_class, device=run.device,
                    started=run.started, ended=run.ended, requests=1,
                    output_tps=float(tps) * (0.99 + 0.02 * n),
                )
            )  # fmt: skip


def test_a_slow_start_fails_against_three_earlier_ones(lab: Project, serving: HostView) -> None:
    """A profile of its own: the tests that share the lab have no baseline, so no G5."""
    lab.write("suites/tiny/smoke.toml", SMOKE)
    lab.profile("paced", "commit=2")

    def next_release(number: int) -> None:
        lab.service(profile='"paced"', served_model_name=f'"m{number}"')

    try:
        serving.fault(step_ms=40, prefill_ms=8)
        next_release(0)
        lab.ok("deploy", serving.name)
        skip = gates(serving)["G5"]
        lab.ok("bench", "smoke", serving.name)
        steady(lab, 2)
        serving.fault(step_ms=8, prefill_ms=8)  # faster is no regression
        next_release(1)
        lab.ok("deploy", serving.name)
        passed, before = gates(serving)["G5"], serving.serves()
        serving.fault(step_ms=200, prefill_ms=8)
        next_release(2)
        done = lab.run("deploy", serving.name)
    finally:
        serving.fault()
        lab.service()
    assert (skip.verdict.value, "0 of 3 starts" in skip.message) == ("SKIP", True), skip
    assert passed.verdict.value == "PASS", passed
    assert passed.evidence["launches"] == 3
    assert passed.evidence["device_class"] == "sim"
    assert done.rc == 5, done
    assert "G5 FAIL" in done.err
    assert "tok/s, below" in done.err
    assert serving.serves() == serving.committed == before


def test_a_soak_sees_a_start_that_dies_late_and_lets_a_good_one_pass(
    lab: Project, serving: HostView
) -> None:
    before, last = serving.serves(), serving.deployments()[0].op_id
    lab.service(soak_s="3")
    try:
        run = lab.spawn("deploy", serving.name, "--profile", lab.profile("soaks", "commit=3"))
        until(lambda: serving.deployments()[0].op_id != last and "G5" in gates(serving),
              what="the soak")  # fmt: skip
        (pid,) = serving.pids()
        os.kill(pid, signal.SIGKILL)  # the supervisor starts it anew: health alone says nothing
        done = run.end()
        assert done.rc == 5, done
        assert serving.serves() == serving.committed == before
        story = gates(serving)
        assert story["G6"].verdict.value == "FAIL", story
        lab.ok("deploy", serving.name, "--profile", "soaks")
    finally:
        lab.service()
    soak = gates(serving)["G6"]
    assert soak.verdict.value == "PASS"
    assert soak.evidence["looks"] >= 3  # type: ignore[operator]
    assert serving.serves() == serving.committed != before
