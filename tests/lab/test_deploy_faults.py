"""Every way in which the engine of a deploy can be wrong: on a first deploy, and over one that
serves. What fails is never served, leaves nothing behind and says why.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddops.ledger import Outcome
from tests.lab.harness import Snapshot
from tests.lab.scenarios import BY_NAME, OVER_ANOTHER, Scenarios


@pytest.fixture(scope="module")
def first(scenarios: Scenarios) -> Mapping[str, Snapshot]:
    """Each fault on a host that has never served."""
    return scenarios.faults().first


@pytest.fixture(scope="module")
def over(scenarios: Scenarios) -> Mapping[str, Snapshot]:
    """Each fault over a release that serves."""
    return scenarios.faults().over


@pytest.mark.parametrize("name", BY_NAME)
def test_first_deploy_fails_clean(first: Mapping[str, Snapshot], name: str) -> None:
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


def test_a_load_that_died_shows_the_end_of_its_log(first: Mapping[str, Snapshot]) -> None:
    for name in ("oom", "arch", "flag"):
        assert "last lines of the log" in first[name].words
        assert "(sim)" in first[name].words


def test_no_failed_gate_is_recorded_as_passed(first: Mapping[str, Snapshot]) -> None:
    host = first["garbage"].host
    with host.project.ledger() as ledger:
        stories = [
            [(g.name, g.verdict.value) for g in ledger.deployment_gates(d.op_id)]
            for d in ledger.deployments(host=host.name, limit=1000)
            if any("2 of 2 golden" in g.message for g in ledger.deployment_gates(d.op_id))
            and d.previous is None
        ]
    assert stories
    for gates in stories:
        assert ("G4 exactness", "FAIL") in gates
        assert ("G4 exactness", "PASS") not in gates


@pytest.mark.parametrize("name", OVER_ANOTHER)
def test_the_old_release_serves_again(over: Mapping[str, Snapshot], name: str) -> None:
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


def test_the_way_back_is_gated(over: Mapping[str, Snapshot]) -> None:
    host = over["mask_bug"].host
    with host.project.ledger() as ledger:
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


def test_when_the_way_back_fails_too(scenarios: Scenarios) -> None:
    stuck, again = scenarios.faults().stuck, scenarios.faults().again
    assert stuck.before is not None
    assert stuck.done.rc == 6, stuck.done
    assert "so did the way back" in stuck.words
    assert stuck.states["stuck"] == "fail"
    assert "restored" not in stuck.states
    assert not stuck.locked
    assert stuck.committed == stuck.before  # what passed its gates last; what serves is not sure
    assert again.done.rc == 0, again.done
    assert again.serves == again.committed == stuck.before
