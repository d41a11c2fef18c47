"""Four replicas behind SGLang's own router: updated one by one, and no request is lost."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ddops.layout import ServiceLayout
from tests.lab.harness import Done, HostView, Project
from tests.lab.looking import seen_in_proc, unheld_ports, until
from tests.lab.steady import steady
from tests.lab.test_deploy_kills import hit

NAMES = ("lab1", "lab2", "lab3", "lab4")
#: Requests of 2 s and 4 a second: behind four replicas each has two at work at any time. The
#: engines are told to wait for none of them when they stop: only draining saves a request.
TOKENS, STEP_MS, RATE = 40, 50, 4.0


class Fleet:
    """The project with its router, as the test's own eyes see it."""

    def __init__(self, project: Project, port: int, metrics: int) -> None:
        self.project, self.port, self.metrics = project, port, metrics

    def write(self, *, routed: bool = True) -> None:
        self.project.service(hosts=json.dumps(NAMES), served_model_name='"tiny"', profile='"one"')
        if routed:
            path = self.project.root / "inventory/services/tiny.toml"
            path.write_text(
                f'{path.read_text()}\n[router]\nhost = "lab1"\nport = {self.port}\n'
                f'metrics_port = {self.metrics}\npolicy = "round_robin"\ndrain_s = 30\n'
            )

    def host(self, name: str) -> HostView:
        return self.project.host(name)

    def call(self, method: str, path: str, body: object = None) -> Any:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            client.request(method, path, None if body is None else json.dumps(body),
                           {"Content-Type": "application/json",
                            "Authorization": f"Bearer {self.key()}"})  # fmt: skip
            return json.loads(client.getresponse().read() or b"null")
        finally:
            client.close()

    def key(self) -> str:
        return Path(self.folder.run, "control.key").read_text()

    def members(self) -> dict[str, bool]:
        """By URL: what the router itself says it serves, and whether it is healthy."""
        return {w["url"]: w["is_healthy"] for w in self.call("GET", "/workers")["workers"]}

    def take_out(self, *urls: str) -> None:
        """By the router's own interface, as somebody else might."""
        for worker in self.call("GET", "/workers")["workers"]:
            if worker["url"] in urls:
                self.call("DELETE", f"/workers/{worker['id']}")
        until(lambda: not {*urls} & {*self.members()}, what="the router let them go")

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.host(name).port}"

    @property
    def urls(self) -> set[str]:
        return {self.url(n) for n in NAMES}

    @property
    def folder(self) -> ServiceLayout:
        return self.host("lab1").layout.service("tiny.router")

    def kept(self) -> set[str]:
        return set(json.loads(Path(self.folder.run, "replicas.json").read_text()))

    def router(self) -> Mapping[str, Any]:
        """The router's entry of `ddops status`."""
        rows = self.project.ok("status", "tiny", "--json").json
        assert isinstance(rows, list)
        (entry,) = [r for r in rows if "router_of" in r]
        found: Mapping[str, Any] = entry
        return found

    def watched(self) -> Mapping[str, Any]:
        """The router's entry of a document of `ddops status --watch` in which it was asked."""
        running = self.project.spawn("status", "tiny", "--watch", "--json")
        assert running.process.stdout is not None
        text = ""
        try:
            for line in running.process.stdout:
                text += line
                if line != "}\n":
                    continue
                found: Mapping[str, Any] = json.loads(text)["data"][-1]
                if found["age_s"] is not None:
                    return found
                assert found["state"] == "unknown", "nobody has asked it yet"
                text = ""
            raise AssertionError("no document names a router that was asked")
        finally:
            running.kill()

    def health(self) -> dict[str, str]:
        return {r["replica"]: r["health"] for r in self.router()["replicas"]}

    def story(self, name: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """The newest deployment of the replica itself: verdict and evidence of each state."""
        with self.project.ledger() as ledger:
            newest = next(d for d in ledger.deployments(host=name) if d.service == "tiny")
            rows = ledger.transitions(newest.op_id)
        return {t.state: (t.verdict.value, t.evidence) for t in rows}

    def evidence(self, name: str, state: str) -> Mapping[str, Any]:
        return self.story(name)[state][1]


@pytest.fixture(scope="module")
def fleet(make_project: Callable[[str], Project]) -> Iterator[Fleet]:
    """Four replicas and their router, deployed."""
    project = make_project("rt")
    project.ok("lab", "up", "--engine", "sim", "--hosts", "4")
    for name in ("one", "two", "three"):
        project.profile(name, f"step_ms={STEP_MS},commit=1,drain_s=0")
    project.profile("wrong", "garbage")
    made = Fleet(project, *unheld_ports(2))
    made.write()
    done = project.run("deploy", "tiny")
    assert done.rc == 4, "nothing is provisioned yet"
    project.ok("provision", "lab")
    project.ok("deploy", "tiny")
    yield made
    project.ok("lab", "down")


def rows(done: Done) -> dict[tuple[str, str], Mapping[str, Any]]:
    assert isinstance(done.json, list)
    return {(r["host"], r["service"]): r for r in done.json}


def test_replicas_come_first_and_then_a_router_that_knows_all_of_them(fleet: Fleet) -> None:
    assert fleet.members() == dict.fromkeys(fleet.urls, True)
    assert fleet.kept() == fleet.urls
    seen = fleet.router()
    assert (seen["state"], seen["service"], seen["url"]) == (
        "up", "tiny.router", f"http://127.0.0.1:{fleet.port}",
    )  # fmt: skip
    for replica in seen["replicas"]:
        launch = fleet.host(replica["replica"]).launch() or {}
        assert replica["health"] == "ok"
        assert f"{replica['release']}-{replica['nonce']}" == launch["weight_version"]
        assert (replica["in_file"], replica["note"]) == (True, "")
    assert fleet.watched()["replicas"] == seen["replicas"], "--watch says the same"
    assert fleet.evidence("lab1", "drained")["why"] == "its router on lab1 is not up"
    again = rows(fleet.project.ok("deploy", "tiny", "--json"))
    assert len(again) == 5
    assert not any(r["changed"] for r in again.values())
    assert "no drift, " in fleet.project.ok("drift", "tiny").out
    planned = fleet.project.ok("deploy", "tiny", "--dry-run").out
    assert "router of tiny on lab1, policy round_robin" in planned
    assert all(f"replica    {n} {fleet.url(n)}" in planned for n in NAMES)


def test_check_judges_the_router_of_a_host_beside_its_chain(fleet: Fleet) -> None:
    found = fleet.project.ok("check", "lab1", "--json").json
    assert isinstance(found, dict)
    said = {r["check"]: (r["verdict"], r["seen"]) for r in found["lab1"] if "ROUTER" in r["check"]}
    assert said == {
        "ROUTER": ("INFO", "the router of tiny runs here beside an engine: both are judged"),
        "ROUTER-ENV": ("PASS", "sglang-router 0.3.2 can be imported"),
        "ROUTER-PORT": ("PASS", f"the router itself listens on 127.0.0.1:{fleet.port}"),
    }
    assert "ROUTER" not in fleet.project.ok("check", "lab2", "--all").out


def test_it_listens_on_loopback_alone(fleet: Fleet) -> None:
    listening = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        host, port = words[1].split(":")
        if words[3] == "0A" and int(port, 16) in (fleet.port, fleet.metrics):
            listening.add((host, int(port, 16)))
    assert listening == {("0100007F", fleet.port), ("0100007F", fleet.metrics)}


def test_its_list_is_changed_by_who_holds_its_key_alone(fleet: Fleet) -> None:
    for path in ("/workers", f"/workers/{'0' * 8}-0000-0000-0000-{'0' * 12}"):
        for head in ({}, {"Authorization": "Bearer guessed"}):
            client = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=10)
            client.request("DELETE" if "0000" in path else "GET", path, headers=head)
            assert client.getresponse().status == 401
            client.close()
    assert stat.S_IMODE(Path(fleet.folder.run, "control.key").stat().st_mode) == 0o600
    assert seen_in_proc(fleet.key()) == []
    assert fleet.key() not in Path(fleet.folder.log, "engine.log").read_text()


def test_an_update_of_four_replicas_loses_no_request(fleet: Fleet) -> None:
    before = {fleet.host(n).serves() for n in NAMES}
    with steady(fleet.port, RATE, TOKENS) as client:
        until(lambda: client.sent, what="a first answer")
        done = fleet.project.ok("deploy", "tiny", "--profile", "two", "--json")
    assert client.failed == [], f"{len(client.failed)} of {len(client.sent)}: {client.failed[:5]}"
    assert min(s.seconds for s in client.sent) > 1.0, "requests were too short to be met by a stop"
    assert {s.streamed for s in client.sent} == {True, False}
    after = {fleet.host(n).serves() for n in NAMES}
    assert len(after) == len(before) == 1
    assert after != before
    for name in NAMES:
        drained = fleet.evidence(name, "drained")
        assert drained["in_flight"] >= 1, "nothing was at work when it was taken out"
        assert (drained["left"], drained["others"], drained["was_served"]) == (0, 3, True)
        assert drained["waited_s"] >= 1.0
        assert fleet.evidence(name, "gated")["router"]["replica"] == fleet.url(name)
    new = {str((fleet.host(n).launch() or {})["weight_version"]) for n in NAMES}
    assert new <= set(client.versions()), "each new start has answered the client"
    assert [r["changed"] for r in rows(done).values()] == [True] * 4 + [False], "one router"
    assert fleet.members() == dict.fromkeys(fleet.urls, True)


def test_the_same_update_without_draining_does_lose_requests(fleet: Fleet) -> None:
    """The control: were this to lose none, the test above would say nothing."""
    fleet.write(routed=False)
    try:
        with steady(fleet.port, RATE, TOKENS) as client:
            until(lambda: client.sent, what="a first answer")
            fleet.project.ok("deploy", "lab2", "--profile", "three")
    finally:
        fleet.write()
    assert fleet.evidence("lab2", "drained")["why"] == "no router stands before this service"
    assert client.failed, f"{len(client.sent)} requests, and not one failed"
    until(lambda: all(fleet.members().values()), what="the router finds it well again")


def test_a_replica_that_fails_goes_back_behind_the_router_and_the_others_stay(
    fleet: Fleet,
) -> None:
    before = {n: fleet.host(n).serves() for n in NAMES}
    done = fleet.project.run("deploy", "tiny", "--profile", "wrong")
    assert done.rc == 5, done
    assert done.err.count("not tried: the roll-out had failed") == 3, done
    assert {n: fleet.host(n).serves() for n in NAMES} == before
    (tried,) = [n for n in NAMES if "restored" in fleet.story(n)]
    assert fleet.members()[fleet.url(tried)] is True
    assert set(fleet.health().values()) == {"ok"}


@pytest.mark.parametrize("state", ["drained", "started"])
def test_a_killed_update_shows_who_is_left_out_and_goes_on(fleet: Fleet, state: str) -> None:
    profile = {"drained": "one", "started": "two"}[state]
    killed = hit(fleet.project, state, "kill", "deploy", "lab3", "--profile", profile)
    assert killed.rc == -signal.SIGKILL
    (out,) = [r for r in fleet.router()["replicas"] if r["health"] == "left out"]
    assert (out["replica"], out["in_file"]) == ("lab3", False)
    assert out["note"].endswith("drained, or never put in: ddops deploy puts it back")
    assert fleet.url("lab3") not in fleet.kept()
    drift = fleet.project.run("drift", "lab3")
    assert drift.rc == 8
    assert "behind router" in drift.out
    assert "left out" in drift.out
    fleet.project.ok("deploy", "lab3", "--profile", profile)
    assert set(fleet.health().values()) == {"ok"}
    assert fleet.kept() == fleet.urls


def test_the_last_healthy_replica_is_never_taken_away(fleet: Fleet) -> None:
    fleet.take_out(*(fleet.url(n) for n in NAMES[1:]))
    pid = (fleet.host("lab1").launch() or {})["pid"]
    done = fleet.project.run("deploy", "lab1", "--profile", "three")
    assert done.rc == 4, done
    assert "last healthy replica" in done.err
    assert (fleet.host("lab1").launch() or {})["pid"] == pid, "it was not touched"
    assert fleet.members() == {fleet.url("lab1"): True}


def test_a_replica_that_hangs_is_not_ok_and_is_no_other_that_could_serve(fleet: Fleet) -> None:
    """For the router itself it is healthy until two of its looks have failed: 22 s."""
    fleet.project.ok("deploy", "tiny", "--profile", "two")
    others = [int(str((fleet.host(n).launch() or {})["pid"])) for n in NAMES[1:]]
    mine = (fleet.host("lab1").launch() or {})["pid"]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        believed = fleet.members()
        health = fleet.health()
        done = fleet.project.run("deploy", "lab1", "--profile", "three")
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)
    assert believed == dict.fromkeys(fleet.urls, True), "the router has seen nothing yet"
    assert health["lab1"] == "ok"
    assert not {health[n] for n in NAMES[1:]} & {"ok"}
    assert done.rc == 4, done
    assert "last healthy replica" in done.err
    assert (fleet.host("lab1").launch() or {})["pid"] == mine, "it was not touched"
    until(lambda: set(fleet.health().values()) == {"ok"}, 60, "they answer again")


def test_a_router_with_no_replica_is_down_and_a_deploy_gives_it_its_own_again(
    fleet: Fleet,
) -> None:
    fleet.take_out(*fleet.urls)
    seen = fleet.router()
    assert (seen["state"], seen["why"]) == ("DOWN", "up with no healthy replica, 0 known")
    assert {r["note"] for r in seen["replicas"]} == {
        "in the router's file, and taken out by somebody else than ddops"
    }
    assert "DOWN" in fleet.project.ok("status", "tiny").out
    stranger = f"http://localhost:{fleet.host('lab4').port}"
    fleet.call("POST", "/workers", {"url": stranger})
    until(lambda: fleet.members() == {stranger: True}, what="the stranger is served")
    assert fleet.health()[stranger] == "not in the inventory"
    drift = fleet.project.run("drift", "lab1")
    assert drift.rc == 8
    assert stranger in drift.out
    done = fleet.project.ok("deploy", "tiny", "--profile", "two")
    assert "taken out of the router" in done.err
    assert fleet.members() == dict.fromkeys(fleet.urls, True)


def test_a_router_that_dies_comes_back_with_its_replicas(fleet: Fleet) -> None:
    launch = json.loads(Path(fleet.folder.launch_record).read_text())
    os.kill(launch["pid"], signal.SIGKILL)

    def back() -> bool:
        try:
            return fleet.members() == dict.fromkeys(fleet.urls, True)
        except OSError:
            return False

    until(back, 60, "the router is back with all replicas")
    assert json.loads(Path(fleet.folder.launch_record).read_text())["pid"] != launch["pid"]
    assert fleet.router()["state"] == "up"


def test_a_router_that_hangs_is_unknown_and_nothing_behind_it_is_healthy(fleet: Fleet) -> None:
    pid = json.loads(Path(fleet.folder.launch_record).read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        seen, table = fleet.router(), fleet.project.ok("status", "tiny").out
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (seen["state"], {r["health"] for r in seen["replicas"]}) == ("unknown", {"?"})
    _, _, behind = table.partition("tiny.router on ")
    assert behind.splitlines()[0].partition(" is ")[2].startswith("UNKNOWN: ")
    lines = [x.split() for x in behind.splitlines()[1:] if x.startswith(NAMES)]
    assert len(lines) == len(NAMES)
    assert all(x[1] == "?" and "ok" not in x for x in lines)
    until(lambda: fleet.router()["state"] == "up", 30, "it goes on")


def test_another_policy_starts_another_router(fleet: Fleet) -> None:
    path = fleet.project.root / "inventory/services/tiny.toml"
    path.write_text(path.read_text().replace('"round_robin"', '"power_of_two"'))
    drift = fleet.project.run("drift", "lab1")
    assert drift.rc == 8
    assert "router release" in drift.out
    done = rows(fleet.project.ok("deploy", "tiny", "--profile", "two", "--json"))
    assert {s for (_, s), r in done.items() if r["changed"]} == {"tiny.router"}
    assert fleet.members() == dict.fromkeys(fleet.urls, True)
    with fleet.project.ledger() as ledger:
        newest = ledger.deployments(host="lab1", limit=1)[0]
        states = [t.state for t in ledger.transitions(newest.op_id)]
    assert newest.service == "tiny.router"
    assert states[-1] == "committed"
