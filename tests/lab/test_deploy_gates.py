"""The later gates: how near an answer must be, speed against the ledger, the soak."""

from __future__ import annotations

import os
import signal

from ddops.ledger import Gate
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
PACE = {"step_ms": 8, "prefill_ms": 8}


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


def test_a_slow_start_fails_against_three_earlier_ones(lab: Project, serving: HostView) -> None:
    """A profile of its own: the tests that share the lab have no baseline, so no G5."""
    lab.write("suites/tiny/smoke.toml", SMOKE)
    lab.profile("paced", "commit=2")
    serving.fault(**PACE)
    try:
        for n in range(3):  # three releases of one configuration
            lab.service(profile='"paced"', served_model_name=f'"m{n}"')
            lab.ok("deploy", serving.name)
            skip = gates(serving)["G5"]
            assert (skip.verdict.value, f"{n} of 3 starts" in skip.message) == ("SKIP", True), skip
            lab.ok("bench", "smoke", serving.name)
        lab.service(profile='"paced"', served_model_name='"m3"')
        lab.ok("deploy", serving.name)
        passed, before = gates(serving)["G5"], serving.serves()
        lab.service(profile='"paced"', served_model_name='"m4"')
        serving.fault(step_ms=80, prefill_ms=8)
        done = lab.run("deploy", serving.name)
    finally:
        lab.service()
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
    before = serving.serves()
    lab.service(soak_s="3")
    try:
        run = lab.spawn("deploy", serving.name, "--profile", lab.profile("soaks", "commit=3"))
        until(lambda: "G5" in gates(serving), what="the soak")
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
