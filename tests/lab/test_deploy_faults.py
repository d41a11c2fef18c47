"""Every way in which the engine of a deploy can be wrong: on a first deploy, and over one that
serves. What fails is never served, leaves nothing behind and says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from ddops.ledger import Outcome
from tests.lab.harness import Project, Snapshot, snapshot, together

HOSTS = ("lab1", "lab2", "lab3", "lab4")


@dataclass(frozen=True)
class Fault:
    """A script of the stand-in, and what the message must hold."""

    name: str
    sim: str
    says: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    #: State of the ledger in which the failure shows: what was reached before it.
    reached: str = "started"


SHORT = {"DDOPS_LOAD_BUDGET_S": "3"}
FAULTS = (
    Fault("oom", "die_loading=oom", ("G0", "ended while loading", "CUDA out of memory"),
          reached="switched"),
    Fault("arch", "die_loading=arch", ("G0", "no kernel image is available"), reached="switched"),
    Fault("flag", "die_loading=flag", ("G0", "server arguments is not supported"),
          reached="switched"),
    Fault("never_ready", "never_ready", ("G2", "not ready after"), SHORT, "switched"),
    Fault("hang_health", "hang=health", ("G2", "not ready after"), SHORT, "switched"),
    Fault("health_503", "status_503=health", ("G2", "not ready after"), SHORT, "switched"),
    Fault("die_after", "die_after_s=1", ("G0",), {"DDOPS_READY_QUIET_S": "3"}, "switched"),
    Fault("identity_all", "wrong_identity=all", ("G3", "the server says it is")),
    Fault("identity_info", "wrong_identity=info", ("G3", "the server says it is")),
    Fault("identity_meta", "wrong_identity=meta", ("G4 exactness", "was answered by")),
    Fault("stale", "stale_identity", ("G3", "the server says it is")),
    Fault("garbage", "garbage", ("G4 exactness", "2 of 2 golden prompts differ")),
    Fault("mask_bug", "mask_bug", ("G4 exactness", "golden prompts differ", "from token 3")),
    Fault("hang_generate", "hang=generate", ("G4 exactness", "timed out"),
          {"DDOPS_GATE_TIMEOUT_S": "2"}),
    Fault("generate_503", "status_503=generate", ("G4 exactness", "HTTP 503")),
    Fault("early_eos", "early_eos=3", ("G4 exactness", "from token 2")),
    Fault("leak", "leak_child,garbage", ("G4 exactness",)),
)  # fmt: skip
BY_NAME = {f.name: f for f in FAULTS}
OVER_ANOTHER = ("oom", "never_ready", "die_after", "identity_info", "identity_meta", "mask_bug",
                "hang_generate", "leak")  # fmt: skip


def _batches(names: tuple[str, ...]) -> Iterator[list[tuple[str, Fault]]]:
    for start in range(0, len(names), len(HOSTS)):
        part = names[start : start + len(HOSTS)]
        yield [(host, BY_NAME[n]) for host, n in zip(HOSTS, part, strict=False)]


def _deploy_all(lab: Project, names: tuple[str, ...]) -> dict[str, Snapshot]:
    """One command a fault, four side by side on a host each."""
    out = {}
    for batch in _batches(names):
        before = {h: lab.host(h).serves() for h, _ in batch}
        for _, fault in batch:
            lab.profile(f"bad-{fault.name}".replace("_", "-"), fault.sim)
        running = [
            lab.spawn(
                "deploy", host, "--profile", f"bad-{fault.name}".replace("_", "-"), env=fault.env
            )
            for host, fault in batch
        ]
        for (host, fault), done in zip(batch, together(running), strict=True):
            out[fault.name] = snapshot(done, lab.host(host), before[host])
    return out


@pytest.fixture(scope="module")
def first(lab: Project) -> dict[str, Snapshot]:
    """Each fault on a host that has never served."""
    for host in HOSTS:
        lab.host(host).forget()
    return _deploy_all(lab, tuple(BY_NAME))


@pytest.fixture(scope="module")
def over(lab: Project, first: dict[str, Snapshot]) -> dict[str, Snapshot]:
    """Each fault over a release that serves."""
    lab.ok("deploy", *HOSTS)
    return _deploy_all(lab, OVER_ANOTHER)


@pytest.mark.parametrize("name", BY_NAME)
def test_first_deploy_fails_clean(first: dict[str, Snapshot], name: str) -> None:
    seen, fault = first[name], BY_NAME[name]
    assert seen.done.rc == 1, seen.done
    for words in fault.says:
        assert words in seen.words, seen.done
    assert (seen.current, seen.committed, seen.serves) == (None, None, None)
    assert seen.pids == ()
    assert not seen.locked
    assert seen.states["rolling_back"] == Outcome.FAIL.value
    assert seen.states["restored"] == Outcome.OK.value
    assert seen.states[fault.reached] == Outcome.OK.value
    assert "committed" not in seen.states


def test_a_load_that_died_shows_the_end_of_its_log(first: dict[str, Snapshot]) -> None:
    for name in ("oom", "arch", "flag"):
        assert "last lines of the log" in first[name].words
        assert "(sim)" in first[name].words


def test_no_failed_gate_is_recorded_as_passed(lab: Project, first: dict[str, Snapshot]) -> None:
    host = first["garbage"].host
    with lab.ledger() as ledger:
        profile = [
            (g.name, g.verdict.value)
            for d in ledger.deployments(host=host.name, limit=1000)
            for g in ledger.deployment_gates(d.op_id)
            if ledger.transitions(d.op_id)[-1].state == "restored"
        ]
    assert ("G4 exactness", "FAIL") in profile
    assert ("G4 exactness", "PASS") not in profile


@pytest.mark.parametrize("name", OVER_ANOTHER)
def test_the_old_release_serves_again(over: dict[str, Snapshot], name: str) -> None:
    seen, fault = over[name], BY_NAME[name]
    assert seen.done.rc == 5, seen.done
    for words in fault.says:
        assert words in seen.words, seen.done
    assert "serves again" in seen.words
    assert seen.before is not None
    assert seen.current == seen.committed == seen.serves == seen.before
    assert not seen.locked
    assert seen.states["rolling_back"] == Outcome.FAIL.value
    assert seen.states["restored"] == Outcome.OK.value
    # One engine, that of the launch record: the stand-in is a single process.
    assert seen.pids == (seen.engine,)


def test_the_way_back_is_gated(lab: Project, over: dict[str, Snapshot]) -> None:
    host = over["mask_bug"].host
    with lab.ledger() as ledger:
        newest = next(
            d
            for d in ledger.deployments(host=host.name, limit=1000)
            if any("from token 3" in g.message for g in ledger.deployment_gates(d.op_id))
            and d.previous is not None
        )
        gates = ledger.deployment_gates(newest.op_id)
    exactness = [g for g in gates if g.name == "G4 exactness"]
    assert [g.verdict.value for g in exactness] == ["FAIL", "PASS"]
    assert exactness[0].launch != exactness[1].launch


def test_when_the_way_back_fails_too(lab: Project, over: dict[str, Snapshot]) -> None:
    host = lab.host("lab4")
    before = host.serves()
    assert before is not None
    host.fault(garbage=True)  # of the machine, not of the release: the old one has it too
    try:
        done = lab.run("deploy", "lab4", "--profile", "bad-early-eos")
    finally:
        host.fault()
    assert done.rc == 6, done
    assert "so did the way back" in done.err
    assert host.states()["stuck"] == "fail"
    assert "restored" not in host.states()
    assert not host.locked
    assert host.committed == before  # what passed its gates last; what serves is not sure
    again = lab.run("deploy", "lab4")
    assert again.rc == 0, again
    assert host.serves() == host.committed == before
