"""One engine on two hosts: rendered with their ranks, and deployed together or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.harness import Done, HostView, Project
from tests.lab.looking import unheld_ports, until


@pytest.fixture(scope="module")
def two(make_project: Callable[[str], Project]) -> Iterator[Project]:
    """`lab1` and `lab2`, provisioned, for a service that is one engine on both."""
    project = make_project("nn")
    project.ok("lab", "up", "--engine", "sim", "--hosts", "2")
    project.service(nnodes="2", hosts='["lab1", "lab2"]', dist_port=str(unheld_ports(1)[0]))
    project.ok("provision", "lab")
    yield project
    project.ok("lab", "down")


@pytest.fixture
def hosts(two: Project) -> list[HostView]:
    return [two.host("lab1"), two.host("lab2")]


def argv(host: HostView) -> list[str]:
    text = (Path(host.service.current) / "launch.json").read_text()
    return list(map(str, json.loads(text)["argv"]))


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def states(done: Done) -> list[bool]:
    assert isinstance(done.json, list)
    return [row["changed"] for row in done.json]


def test_every_rank_is_started_and_rank_0_is_gated(two: Project, hosts: list[HostView]) -> None:
    assert states(two.ok("deploy", "tiny", "--json")) == [True, True]
    lines = [argv(h) for h in hosts]
    assert [after(x, "--node-rank") for x in lines] == ["0", "1"]
    assert {after(x, "--nnodes") for x in lines} == {"2"}
    (address,) = {after(x, "--dist-init-addr") for x in lines}
    assert address.startswith("127.0.")
    first, second = hosts
    assert first.current == second.current, "one release, one digest, on both"
    assert first.committed == second.committed == first.serves()
    assert second.get("/model_info") is None, "a follower answers health and nothing else"
    with two.ledger() as ledger:
        gates = [
            {
                g.name: g.verdict.value
                for g in ledger.deployment_gates(ledger.deployments(host=h.name, limit=1)[0].op_id)
            }
            for h in hosts
        ]
    assert gates[0]["G4 exactness"] == "PASS"
    assert (gates[1]["G0"], gates[1]["G2"], gates[1]["G3"]) == ("PASS", "PASS", "SKIP")
    status = two.ok("status", "tiny", "--json").json
    assert isinstance(status, list)
    assert [(r["state"], r["health"]) for r in status] == [("up", "ok"), ("up", "ok")]
    assert states(two.ok("deploy", "tiny", "--json")) == [False, False]
    two.ok("drift", "tiny")


def test_one_host_of_an_engine_is_not_deployed_alone(two: Project) -> None:
    done = two.run("deploy", "lab2")
    assert done.rc == 2, done
    assert "one engine on 2 hosts, and 1 are meant: lab2" in done.err
    waves = two.run("deploy", "tiny", "--canary")
    assert waves.rc == 2, waves


@pytest.mark.parametrize(
    ("sim", "says"), [("garbage", "G4 exactness"), ("die_loading=oom", "out of memory")]
)
def test_what_fails_on_one_host_goes_back_on_all(
    two: Project, hosts: list[HostView], sim: str, says: str
) -> None:
    two.ok("deploy", "tiny")
    before = hosts[0].serves()
    assert before is not None
    done = two.run("deploy", "tiny", "--profile", two.profile(f"bad-{sim[:4]}", sim))
    assert done.rc == 5, done
    assert says in done.err
    for host in hosts:
        assert host.current == host.committed == before
        assert host.states()["restored"] == "ok"
        assert len(host.pids()) == 1
        assert not host.locked
    assert hosts[0].serves() == before


def test_a_host_that_is_refused_stops_no_other(two: Project, hosts: list[HostView]) -> None:
    two.ok("deploy", "tiny")
    pids = [h.pids() for h in hosts]
    models = Path(hosts[1].layout.models) / "tiny-qwen3"
    aside = models.with_name("aside")
    models.rename(aside)
    try:
        done = two.run("deploy", "tiny", "--profile", two.profile("refused", "commit=3"))
    finally:
        aside.rename(models)
    assert done.rc == 4, done
    assert "lab2 is of the same engine, and failed" in done.err
    assert [h.pids() for h in hosts] == pids
    assert not any("stopped" in h.states() for h in hosts)


def test_a_rank_that_is_gone_is_no_engine_and_a_deploy_brings_all_back(
    two: Project, hosts: list[HostView]
) -> None:
    two.ok("deploy", "tiny")
    hosts[1].svctl("stop", "tiny")
    until(lambda: hosts[0].serves() is None, what="the end of rank 0: a collective needs all")
    assert states(two.ok("deploy", "tiny", "--json")) == [True, True]
    assert hosts[0].serves() == hosts[1].committed


def test_a_rollback_takes_all_hosts_back(two: Project, hosts: list[HostView]) -> None:
    two.ok("deploy", "tiny")
    before = hosts[0].serves()
    two.ok("deploy", "tiny", "--profile", two.profile("next", "commit=3"))
    assert hosts[0].serves() == hosts[1].current != before
    alone = two.run("rollback", "lab1")
    assert alone.rc == 2, alone
    two.ok("rollback", "tiny")
    assert hosts[0].serves() == hosts[1].current == hosts[1].committed == before
