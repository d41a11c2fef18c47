"""Hosts of one engine: they wait for each other, and none waits for one that has gone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddops.deploy.party import Party, PartyStop, Phase
from ddops.deploy.stop import Stop
from ddops.errors import DdopsError, ExitCode, GateFailed, Interrupted, RefusedError

HOSTS = ("a", "b", "c")


def side_by_side(work: Callable[[str], object]) -> dict[str, object]:
    """What each host's thread comes to; an error is an outcome."""

    def one(host: str) -> object:
        try:
            return work(host)
        except DdopsError as error:
            return error

    with ThreadPoolExecutor(len(HOSTS)) as pool:
        made = {host: pool.submit(one, host) for host in HOSTS}
        return {host: future.result(30) for host, future in made.items()}


def test_all_go_on_when_all_are_there() -> None:
    phase = Phase(len(HOSTS))
    seen: list[str] = []

    def work(host: str) -> object:
        seen.append(host)
        phase.meet(host, "staged")
        assert len(seen) == len(HOSTS)
        return sorted(map(str, phase.meet(host, "look", host)))

    assert side_by_side(work) == {host: list(HOSTS) for host in HOSTS}


def test_who_fails_is_told_to_those_who_wait_with_its_exit_code() -> None:
    phase = Phase(len(HOSTS))

    def work(host: str) -> object:
        if host == "b":
            error = RefusedError("b: not provisioned")
            phase.fail("b", error)
            raise error
        return phase.meet(host, "staged")

    found = side_by_side(work)
    assert isinstance(found["b"], RefusedError)
    for host in "ac":
        error = found[host]
        assert isinstance(error, GateFailed)
        assert f"{host}: b is of the same engine" in error.what
        assert error.why == "b: not provisioned"
        assert error.exit_code == ExitCode.REFUSED


def test_the_first_failure_is_the_one_that_is_told() -> None:
    phase = Phase(2)
    phase.fail("a", DdopsError("the cause"))
    phase.fail("b", DdopsError("what came of it"))
    phase.check("a")  # its own is its own
    with pytest.raises(GateFailed) as told:
        phase.check("b")
    assert told.value.why == "the cause"


def test_a_host_that_met_is_not_held_up_by_one_that_failed_later() -> None:
    phase = Phase(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(phase.meet, "a", "gated")
        phase.meet("b", "gated")
        phase.fail("b", DdopsError("afterwards"))
        assert len(waiting.result(30)) == 2


def test_hosts_must_agree() -> None:
    party = Party(HOSTS)
    found = side_by_side(lambda host: party.agree(host, "release", "x" if host == "c" else "y"))
    assert all("would not have the same release" in str(e) for e in found.values())
    other = Party(HOSTS)
    assert set(side_by_side(lambda h: other.agree(h, "release", "y")).values()) == {None}


def test_a_load_hears_of_another_host_and_of_the_user() -> None:
    phase, wish = Phase(2), Stop()
    stop = PartyStop(wish, phase, "a")
    stop.check("while loading")
    phase.fail("b", DdopsError("oom"))
    with pytest.raises(GateFailed, match="b is of the same engine"):
        stop.check("while loading")
    other = PartyStop(wish, Phase(2), "a")
    stop.ask()
    assert other.asked
    with pytest.raises(Interrupted):
        other.check("while loading")
