"""The unit: what systemd says of it, when it is ready, what it kills, when it gives up."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.harness import SERVICE
from tests.lab.looking import until
from tests.systemd.harness import (
    ENGINE_DIR,
    UNIT,
    BootedHost,
    BootedProject,
    text_of,
)

#: A process with no tag, no parent of ours and no ear for TERM; `$1` is the port it listens on.
STRAY = (
    "import os, signal, socket, sys, time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "for fd in (0, 1, 2): os.close(fd)\n"
    "time.sleep(300)\n"
)
PORT = 31999


@pytest.fixture
def unhurried(serving: BootedHost) -> Iterator[BootedHost]:
    """A host that serves, whose unit restarts at once: the tests wait for nothing else."""
    serving.drop_in("RestartSec=200ms")
    yield serving
    serving.fault()
    serving.drop_in("")


def stray(host: BootedHost, *, inside: bool) -> int:
    """A stray process, in the unit's control group or another; the machine's number of it."""
    before = set(host.processes())
    group = host.unit("ControlGroup")["ControlGroup"] if inside else "/init.scope"
    script = 'echo $$ > "/sys/fs/cgroup$1/cgroup.procs"; exec env -i python3 -c "$2" "$3"'
    host.project.sh(host.name, "sudo", "sh", "-c", script, "sh", group, STRAY, str(PORT))

    def found() -> list[int]:
        new = set(host.processes()) - before
        return [p for p in new if "create_server" in text_of(f"/proc/{p}/cmdline")]

    until(lambda: len(found()) == 1, what="the stray process")
    return found()[0]


def alive(pid: int) -> bool:
    return text_of(f"/proc/{pid}/cmdline") != ""


def test_systemd_finds_no_fault_with_the_unit(lab: BootedProject, serving: BootedHost) -> None:
    done = lab.ssh(serving.name, f"systemd-analyze verify {UNIT}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert lab.sh(serving.name, "systemctl", "is-enabled", UNIT) == "enabled"
    shown = serving.unit(
        "Type", "NotifyAccess", "KillMode", "User", "Restart", "StartLimitBurst",
        "StartLimitIntervalUSec", "TimeoutStartUSec", "TimeoutStopUSec", "NoNewPrivileges", "UMask",
    )  # fmt: skip
    assert shown == {
        "Type": "notify", "NotifyAccess": "main", "KillMode": "mixed", "User": "ops",
        "Restart": "on-failure", "StartLimitBurst": "4", "StartLimitIntervalUSec": "1h",
        "TimeoutStartUSec": "10min", "TimeoutStopUSec": "50s", "NoNewPrivileges": "yes",
        "UMask": "0077",
    }  # fmt: skip
    owners = {Path(f"/proc/{pid}").stat().st_uid for pid in serving.pids()}
    assert owners == {1000}  # no root among them


def test_the_gates_see_the_unit(lab: BootedProject, serving: BootedHost) -> None:
    launch = serving.launch()
    assert launch is not None
    main = int(serving.unit("MainPID")["MainPID"])
    assert main == launch["guard_pid"]
    assert launch["cgroup"] == f"/system.slice/{UNIT}"
    invocation = serving.unit("InvocationID")["InvocationID"]
    assert launch["nonce"] == invocation[:12]
    rows = lab.ok("status", serving.name, "--json").json
    assert isinstance(rows, list)
    assert (rows[0]["state"], rows[0]["health"]) == ("up", "ok")
    assert (rows[0]["pid"], rows[0]["nonce"]) == (launch["inside"], launch["nonce"])
    assert serving.serves() == serving.committed


def test_a_start_returns_when_the_engine_is_ready_and_what_follows_it_waits(
    lab: BootedProject, serving: BootedHost
) -> None:
    """READY=1 comes after port, health and identity; a unit ordered behind it finds it serving."""
    ask = (
        "import http.client\n"
        f"c = http.client.HTTPConnection('127.0.0.1', {serving.port}, timeout=2)\n"
        "c.request('GET', '/model_info'); print(c.getresponse().read().decode())"
    )
    script = serving.root / "home/ops/ask.py"
    script.write_text(ask)
    follower = serving.root / "etc/systemd/system/follower.service"
    follower.write_text(
        f"[Unit]\nAfter={UNIT}\nRequires={UNIT}\n[Service]\nType=oneshot\n"
        "ExecStart=sh -c 'python3 /home/ops/ask.py > /run/follower'\n"
    )
    lab.sh(serving.name, "sudo", "systemctl", "daemon-reload")
    lab.sh(serving.name, "sudo", "systemctl", "stop", UNIT)
    serving.fault(load_s=4)
    try:
        began = time.monotonic()
        lab.sh(serving.name, "sudo", "systemctl", "start", "follower.service")
        assert time.monotonic() - began > 4
        said = json.loads(lab.sh(serving.name, "cat", "/run/follower"))
    finally:
        serving.fault()
        follower.unlink()
        lab.sh(serving.name, "sudo", "systemctl", "daemon-reload")
    launch = serving.launch()
    assert launch is not None
    assert said["weight_version"] == launch["weight_version"]
    assert serving.unit("StatusText")["StatusText"].startswith("ready after")


def test_while_it_loads_it_is_not_started_and_says_so(
    lab: BootedProject, serving: BootedHost
) -> None:
    lab.sh(serving.name, "sudo", "systemctl", "stop", UNIT)
    serving.drop_in("TimeoutStartSec=2")
    serving.fault(load_s=6)
    try:
        lab.sh(serving.name, "sudo", "systemctl", "start", "--no-block", UNIT)
        until(lambda: "loading" in serving.unit("StatusText")["StatusText"], what="a status")
        assert serving.unit("ActiveState")["ActiveState"] == "activating"
        # Progress in the log extends the time that systemd waits: two seconds would not do.
        until(lambda: serving.unit("ActiveState")["ActiveState"] == "active", what="the start")
        assert serving.unit("NRestarts")["NRestarts"] == "0"
    finally:
        serving.fault()
        serving.drop_in("")


def test_a_stop_takes_a_reparented_child_that_nobody_knows(
    lab: BootedProject, serving: BootedHost
) -> None:
    lost = stray(serving, inside=True)
    assert lost not in serving.pids()  # it carries no tag
    answer = serving.svctl("stop", SERVICE)
    assert (answer["state"], answer["left"]) == ("inactive", [])
    assert not alive(lost)


def test_a_killed_wrapper_takes_its_group_along_and_starts_again(
    lab: BootedProject, unhurried: BootedHost
) -> None:
    first = unhurried.launch()
    assert first is not None
    lost = stray(unhurried, inside=True)
    guard = unhurried.outer(int(str(first["guard_pid"])))
    assert guard is not None
    os.kill(guard, signal.SIGKILL)
    until(lambda: unhurried.serves() and unhurried.launch() != first, what="a restart")
    assert not alive(lost)
    assert not alive(int(str(first["pid"])))


def test_a_port_belongs_to_the_group_of_whoever_listens(
    lab: BootedProject, serving: BootedHost
) -> None:
    """Tag and parent are gone; the control group stays. Outside of it the port is a stranger's."""

    def owned() -> object:
        look = f"{ENGINE_DIR}/.ddops/hostside/observe.py"
        words = ["sudo", "python3", look, serving.inside.dir, str(PORT)]
        return json.loads(lab.sh(serving.name, *words))["port"]["owned"]

    try:
        stranger = stray(serving, inside=False)
        assert owned() is False
        os.kill(stranger, signal.SIGKILL)
        until(lambda: not alive(stranger), what="its end")
        ours = stray(serving, inside=True)
        assert owned() is True
        os.kill(ours, signal.SIGKILL)
    finally:
        for pid in serving.processes():
            if "create_server" in text_of(f"/proc/{pid}/cmdline"):
                os.kill(pid, signal.SIGKILL)


def test_a_crash_loop_ends_and_a_deploy_begins_anew(
    lab: BootedProject, unhurried: BootedHost
) -> None:
    """Four starts, then systemd gives up; the next deploy is not held to that count."""
    host = unhurried
    lab.sh(host.name, "sudo", "systemctl", "reset-failed", UNIT, check=False)
    host.fault(die_loading="oom")
    launch = host.launch()
    assert launch is not None
    os.kill(int(str(launch["pid"])), signal.SIGKILL)
    until(lambda: host.unit("ActiveState")["ActiveState"] == "failed", what="the end of trying")
    said = lab.sh(host.name, "sudo", "journalctl", "-u", UNIT, "-o", "cat", "-n", "60")
    assert "Start request repeated too quickly" in said
    time.sleep(1)
    assert host.unit("ActiveState")["ActiveState"] == "failed"
    assert host.pids() == []
    host.fault()
    lab.ok("deploy", host.name)
    assert host.serves() == host.committed


def test_no_secret_shows_in_the_unit_or_in_a_process_list(
    lab: BootedProject, serving: BootedHost
) -> None:
    canary = "canary-8841-plover"
    lab.service(api_key='"env:LAB_KEY"')
    try:
        lab.ok("deploy", serving.name, env={"LAB_KEY": canary})
        assert serving.get("/model_info") is None
        assert serving.get("/model_info", key=canary) is not None
        # It became ready all the same: the wrapper reads the key where the engine does.
        assert serving.unit("ActiveState")["ActiveState"] == "active"
        everything = lab.sh(serving.name, "systemctl", "show", UNIT)
        assert canary not in everything + lab.sh(serving.name, "systemctl", "cat", UNIT)
        assert canary not in lab.sh(serving.name, "ps", "-efww")
        journal = lab.sh(serving.name, "sudo", "journalctl", "-u", UNIT)
        assert canary not in journal
        held = Path(serving.service.current) / "secret-args.yaml"
        assert canary in held.read_text()
        assert held.stat().st_mode & 0o777 == 0o600
    finally:
        (lab.root / "inventory/services/tiny.toml").unlink()


def test_without_root_a_deploy_is_refused_while_the_old_service_runs(
    lab: BootedProject, serving: BootedHost
) -> None:
    rule = serving.root / "etc/sudoers.d/ops"
    text, before = rule.read_text(), serving.launch()
    lab.profile("no-root", "commit=2")
    rule.write_text("")
    try:
        done = lab.run("deploy", serving.name, "--profile", "no-root")
    finally:
        rule.write_text(text)
        rule.chmod(0o440)
    assert done.rc == 4, done
    assert "sudo" in done.err
    assert serving.launch() == before
    assert serving.serves() == serving.committed
    assert not serving.locked


def test_a_unit_that_systemd_does_not_take_is_refused_while_the_old_service_runs(
    lab: BootedProject, serving: BootedHost
) -> None:
    shipped = (Path(__file__).parents[2] / "templates/unit.service.j2").read_text()
    broken = re.sub("^ExecStart=.*$", "ExecStart=/no/such/program", shipped, flags=re.MULTILINE)
    before = serving.launch()
    mine = lab.write("templates/unit.service.j2", broken)
    try:
        done = lab.run("deploy", serving.name)
    finally:
        mine.unlink()
    assert done.rc == 4, done
    assert "/no/such/program" in done.err
    assert serving.launch() == before
    assert serving.serves() == serving.committed


def test_drift_sees_the_unit_that_is_installed_and_what_is_put_over_it(
    lab: BootedProject, serving: BootedHost
) -> None:
    def odd() -> dict[str, str]:
        done = lab.run("drift", serving.name, "--json")
        assert isinstance(done.json, list), done
        return {r["what"]: r["observed"] for r in done.json if r["verdict"] != "same"}

    assert odd() == {}
    path = serving.root / "etc/systemd/system" / UNIT
    text = path.read_text()
    try:
        serving.drop_in("Nice=5")
        found = odd()
        assert set(found) == {"unit drop-ins"}
        assert found["unit drop-ins"].endswith("test.conf")
        serving.drop_in("")
        path.write_text(text.replace("Restart=", "Restart=no\n#"))
        found = odd()
        assert set(found) == {"unit", "unit loaded"}
        assert "+Restart=no" in found["unit"]
        path.write_text(text)
        lab.sh(serving.name, "sudo", "systemctl", "daemon-reload")
        lab.sh(serving.name, "sudo", "systemctl", "disable", UNIT)
        assert odd() == {"unit at boot": "disabled"}
    finally:
        serving.drop_in("")
        path.write_text(text)
        lab.sh(serving.name, "sudo", "systemctl", "daemon-reload")
        lab.sh(serving.name, "sudo", "systemctl", "enable", UNIT)
    assert odd() == {}


def test_forget_leaves_no_unit(lab: BootedProject, clean_host: BootedHost) -> None:
    lab.ok("deploy", clean_host.name)
    clean_host.svctl("forget", SERVICE)
    assert clean_host.unit("LoadState", "ActiveState") == {
        "LoadState": "not-found", "ActiveState": "inactive",
    }  # fmt: skip
    found = lab.sh(clean_host.name, "find", "/etc/systemd/system", "-name", "*ddops*")
    assert found == ""
