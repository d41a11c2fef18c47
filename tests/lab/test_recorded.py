"""Recorded GPU hosts: every verb really runs on them, and says that they are simulated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.harness import Project

Make = Callable[[str], Project]


@pytest.mark.parametrize("kind", ["b300", "pcie"])
def test_a_recorded_host_is_checked_provisioned_deployed(make_project: Make, kind: str) -> None:
    project = make_project("g")
    dry = project.run("deploy", kind, "--dry-run")
    assert dry.rc == 0, dry
    assert "UNKNOWN" in dry.out
    assert not (project.root / ".ddops" / "ledger.db").exists()
    project.ok("lab", "up", "--gpu", kind)
    try:
        check = project.ok("check", kind)
        assert "simulated" in check.out
        project.ok("provision", kind)
        project.ok("deploy", kind)
        status = project.ok("status", kind)
        assert "sim" in status.out
        assert "[lab]" in status.out
        with project.ledger() as ledger:
            facts = ledger.facts_latest(kind)
            deployment = ledger.deployments(host=kind, limit=1)[0]
            states = {t.state: t.verdict.value for t in ledger.transitions(deployment.op_id)}
        assert facts is not None
        assert facts.simulated
        assert (states["vram_free"], states["committed"]) == ("skip", "ok")
        assert "unchanged" in project.ok("deploy", kind).out
    finally:
        project.ok("lab", "down")
    after = project.run("deploy", kind, "--dry-run")  # the shipped example again
    assert after.rc == 0, after
    assert "[lab]" not in after.out
