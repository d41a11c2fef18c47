"""Two replicas on machines of their own, and their router as a unit that systemd keeps.

To see it fail: leave `vars.address` out of a lab host, or `--worker-urls` out of router_start.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.guards.source import ROOT
from tests.lab.looking import until
from tests.systemd.harness import ENGINE_DIR, BootedHost, BootedProject, text_of

UNIT = "ddops-tiny.router.service"
PORT, KEY = 30080, "sk-of-the-pair"
SETTINGS = f"""
[router]
host = "lab1"
port = {PORT}
policy = "round_robin"
drain_s = 30
"""
_POST = (
    "import http.client, json, sys\n"
    "c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=20)\n"
    "b = {'model': 'tiny', 'prompt': 'one', 'max_tokens': 2}\n"
    "h = {'Content-Type': 'application/json', 'Authorization': 'Bearer ' + sys.argv[2]}\n"
    "c.request('POST', '/v1/completions', json.dumps(b), h); print(c.getresponse().status)\n"
)


@dataclass(frozen=True)
class Pair:
    """`lab1` with a replica and the router, `lab2` with a replica."""

    project: BootedProject

    @property
    def first(self) -> BootedHost:
        return self.project.host("lab1")

    @property
    def folder(self) -> str:
        return f"{ENGINE_DIR}/.ddops/services/tiny.router"

    def seen(self, allowed: tuple[int, ...] = (0,)) -> Mapping[str, Any]:
        """The router's entry of `ddops status`."""
        done = self.project.run("status", "tiny", "--json")
        assert done.rc in allowed, done
        assert isinstance(done.json, list)
        (entry,) = [r for r in done.json if "router_of" in r]
        found: Mapping[str, Any] = entry
        return found

    def health(self, allowed: tuple[int, ...] = (0,)) -> dict[str, str]:
        return {r["replica"]: r["health"] for r in self.seen(allowed)["replicas"]}

    def releases(self) -> set[tuple[str, str]]:
        """By replica: the release that it names itself."""
        return {(r["replica"], r["release"]) for r in self.seen()["replicas"]}

    def whole(self) -> bool:
        """The router is up, and serves both."""
        seen = self.seen((0, 3, 9))
        health = {r["replica"]: r["health"] for r in seen["replicas"]}
        return (seen["state"], health) == ("up", {"lab1": "ok", "lab2": "ok"})

    def post(self, key: str) -> str:
        """HTTP status of a request through the router."""
        return self.project.sh("lab1", "python3", "-c", _POST, str(PORT), key)

    def main_pid(self) -> int:
        """The router itself, by the machine's number."""
        record = self.first.root / self.folder.lstrip("/") / "run" / "launch.json"
        pid = self.first.outer(int(json.loads(record.read_text())["pid"]))
        assert pid is not None
        return pid

    def unit(self, *names: str) -> dict[str, str]:
        words = ["systemctl", "show", f"--property={','.join(names)}", UNIT]
        lines = self.project.sh("lab1", *words).splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def pair(
    make_project: Callable[[str], BootedProject], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Deployed; the hosts have no way to a package registry, so the wheels are carried to them."""
    wheels = tmp_path_factory.mktemp("router-wheels")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-input",
         "--require-hashes", "-r", str(ROOT / "requirements/router.lock"), "-d", str(wheels)],
        check=True, timeout=300,
    )  # fmt: skip
    wheels.chmod(0o755)
    project = make_project("pair")
    project.up("--hosts", "2", "--wheelhouse", str(wheels))
    project.write("secrets/pair-key", KEY)
    (project.root / "secrets/pair-key").chmod(0o600)
    project.service(
        served_model_name='"tiny"', listen='"0.0.0.0"', api_key='"file:secrets/pair-key"'
    )
    path = project.root / "inventory/services/tiny.toml"
    path.write_text(path.read_text() + SETTINGS)
    project.ok("provision", "lab")
    project.ok("deploy", "tiny")
    yield Pair(project)
    project.ok("lab", "down")


def test_replicas_are_served_at_their_own_addresses(pair: Pair) -> None:
    seen = pair.seen()
    hosts = {"lab1": "10.77.0.11", "lab2": "10.77.0.12"}
    ports = {h.name: h.service_port for h in pair.project.state.hosts}
    assert {r["replica"]: r["url"] for r in seen["replicas"]} == {
        n: f"http://{a}:{ports[n]}" for n, a in hosts.items()
    }
    assert pair.whole()
    assert (pair.post(KEY), pair.post("another")) == ("200", "401")


def test_its_unit_is_what_it_says_and_shows_no_key(pair: Pair) -> None:
    done = pair.project.ssh("lab1", f"systemd-analyze verify {UNIT}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert pair.unit("Type", "User", "KillMode", "ActiveState", "UnitFileState", "NRestarts") == {
        "Type": "exec", "User": "ops", "KillMode": "mixed", "ActiveState": "active",
        "UnitFileState": "enabled", "NRestarts": "0",
    }  # fmt: skip
    control = (pair.first.root / pair.folder.lstrip("/") / "run/control.key").read_text()
    for pid in pair.first.processes():
        line = text_of(f"/proc/{pid}/cmdline")
        assert KEY not in line
        assert control not in line


def test_a_router_that_is_killed_comes_back_with_both(pair: Pair) -> None:
    before = pair.main_pid()
    os.kill(before, signal.SIGKILL)
    until(pair.whole, 60, "the router is back with both")
    assert pair.main_pid() != before
    assert pair.post(KEY) == "200"


def test_a_reboot_of_its_host_brings_replica_and_router_back(pair: Pair) -> None:
    boot = pair.first.boot_id()
    pair.project.ok("lab", "fault", "lab1", "reboot")
    until(lambda: pair.first.boot_id() not in ("", boot), what="another boot")
    pair.first.wait_up()
    until(pair.whole, 60, "the router is back with both")
    assert pair.unit("NRestarts") == {"NRestarts": "0"}
    assert pair.post(KEY) == "200"
    assert "unchanged" in pair.project.ok("deploy", "tiny").out


def test_a_replica_behind_a_pulled_cable_is_never_ok_and_the_other_one_stays(pair: Pair) -> None:
    pair.project.profile("next", "commit=2")
    pid = (pair.first.launch() or {})["pid"]
    pair.project.ok("lab", "fault", "lab2", "netdown")
    try:
        health = pair.health((3, 9))
        done = pair.project.run("deploy", "lab1", "--profile", "next")
        later = pair.health((3, 9))
    finally:
        pair.project.ok("lab", "heal", "lab2")
    assert health == {"lab1": "ok", "lab2": "unknown"}
    assert later["lab1"] == "ok"
    assert later["lab2"] in ("unknown", "unhealthy")
    assert done.rc == 4, done
    assert "last healthy replica" in done.err
    assert (pair.first.launch() or {})["pid"] == pid, "it was not touched"
    until(pair.whole, 60, "both are served again")


def test_an_update_of_both_is_served_all_the_time(pair: Pair) -> None:
    pair.project.profile("third", "commit=3")
    before = pair.releases()
    run = pair.project.spawn("deploy", "tiny", "--profile", "third")
    answers: list[str] = []
    while run.process.poll() is None:
        answers.append(pair.post(KEY))
    done = run.end()
    assert done.rc == 0, done
    assert set(answers) == {"200"}
    after = pair.releases()
    assert len(after) == 2
    assert not before & after
    assert pair.whole()
