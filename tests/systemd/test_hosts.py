"""Hosts that boot: each one itself, all of them shut in, and reached through strict SSH."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ddops.hostside import joined
from ddops.lab.booted import WHEELHOUSE
from tests.systemd.conftest import HOSTS, Make
from tests.systemd.harness import WHEEL, BootedProject

NAMES = tuple(f"lab{i}" for i in range(1, HOSTS + 1))


def test_every_host_runs_a_systemd_of_its_own(booted: BootedProject) -> None:
    for name in NAMES:
        booted.host(name).wait_up()
        assert booted.sh(name, "cat", "/proc/1/comm") == "systemd"
        assert booted.sh(name, "systemctl", "--failed", "--plain", "--no-legend") == ""


@pytest.mark.parametrize(
    "command",
    ["hostname", "cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id",
     "ip -4 -br addr show host0", "cat /etc/ssh/ssh_host_ed25519_key.pub"],
)  # fmt: skip
def test_no_two_hosts_are_alike(booted: BootedProject, command: str) -> None:
    answers = {booted.sh(name, *command.split()) for name in NAMES}
    assert len(answers) == HOSTS
    assert all(len(a) >= 4 for a in answers)


def test_hosts_see_each_other_and_nothing_else(booted: BootedProject) -> None:
    booted.sh("lab1", "ping", "-q", "-c", "1", "-W", "2", "10.77.0.12")
    assert booted.sh("lab1", "ip", "route", "show", "default") == ""
    assert "Network is unreachable" in booted.ssh("lab1", "ping -c 1 192.0.2.1 2>&1").stdout


def test_a_stranger_with_the_address_is_refused(booted: BootedProject) -> None:
    """The host key is pinned: another host that answers there is not let near a login."""
    text = booted.lab.ssh_config.read_text()
    ports = {h.name: h.ssh_port for h in booted.state.hosts}
    addresses = {h.name: h.address for h in booted.state.hosts}
    swapped = booted.root / "swapped"
    block = f"HostName {addresses['lab1']}\n  Port {ports['lab1']}\n"
    other = f"HostName {addresses['lab2']}\n  Port {ports['lab2']}\n  HostKeyAlias lab1-key\n"
    known = booted.root / "known"
    key = (booted.lab.host("lab1") / "hostkey.pub").read_text().split()[:2]
    known.write_text(f"lab1-key {' '.join(key)}\n")
    swapped.write_text(text.replace(block, other).replace(str(booted.lab.known_hosts), str(known)))
    inventory = booted.write(
        "inventory/hosts.toml", f'[hosts.posing]\nssh = "lab1"\nssh_config = "{swapped}"\n'
    )
    try:
        done = booted.run("probe", "posing")
    finally:
        inventory.unlink()
    assert done.rc == 3, done
    assert "host key" in done.err


def test_the_login_is_no_root_and_may_become_root(booted: BootedProject) -> None:
    assert booted.ssh("lab1", "id -un").stdout == "ops\n"
    assert booted.ssh("lab1", "sudo -n id -un").stdout == "root\n"
    assert booted.ssh("lab1", "cat /etc/shadow").returncode != 0


def test_the_wheelhouse_is_there_and_read_only(booted: BootedProject) -> None:
    assert booted.sh("lab2", "ls", WHEELHOUSE) == WHEEL
    refused = booted.ssh("lab2", f"sudo touch {WHEELHOUSE}/x")
    assert "Read-only file system" in refused.stderr
    assert f'wheelhouse = "{WHEELHOUSE}"' in (booted.lab.inventory / "hosts.toml").read_text()


def test_an_environment_is_built_from_the_wheelhouse_alone(booted: BootedProject) -> None:
    """What provision runs on a host, with a lock of one wheel. No network is there."""
    folder = booted.sh("lab2", "mktemp", "-d")
    wheels = booted.state.spec.wheelhouse
    assert wheels is not None
    digest = hashlib.sha256((Path(wheels) / WHEEL).read_bytes()).hexdigest()
    lock = f"labnote==1.0 --hash=sha256:{digest}\n"
    booted.sh("lab2", "sh", "-c", 'printf %s "$1" > "$2"', "sh", lock, f"{folder}/engine.lock")
    spec: dict[str, object] = {
        "dir": f"{folder}/env", "digest": "d", "torch": None, "lock": f"{folder}/engine.lock",
        "dists": [], "trees": [], "find_links": WHEELHOUSE, "index": None,
        "torch_build": None,
    }  # fmt: skip
    words = ["python3", "-c", joined("env_whole", "build_env"), json.dumps(spec)]
    assert json.loads(booted.sh("lab2", *words))["built"] is True
    ask = "import labnote; print(labnote.said)"
    assert booted.sh("lab2", f"{folder}/env/bin/python", "-c", ask) == "from the wheelhouse"


def test_up_again_changes_nothing_and_another_shape_is_refused(booted: BootedProject) -> None:
    before = booted.holders()
    wheels = booted.state.spec.wheelhouse
    assert wheels is not None
    again = booted.ok("lab", "up", "--systemd", "--hosts", str(HOSTS), "--wheelhouse", wheels)
    assert "up already" in again.err
    assert booted.holders() == before
    other = booted.run("lab", "up", "--systemd", "--hosts", "1")
    assert other.rc == 4, other
    assert "another shape" in other.err


def test_what_cannot_be_is_a_usage_error(make_project: Make) -> None:
    project = make_project("odd")
    for words in (["--gpu", "b300"], ["--engine", "sglang-cpu"], ["--hosts", "0"]):
        done = project.run("lab", "up", "--systemd", *words)
        assert done.rc == 2, done
        assert "next:" in done.err
    assert project.run("lab", "up", "--wheelhouse", str(project.root)).rc == 2
    assert project.run("lab", "up", "--systemd", "--wheelhouse", "/no/such/folder").rc == 2


def test_more_hosts_than_the_kernel_can_watch_are_refused_before_anything_is_made(
    make_project: Make,
) -> None:
    project = make_project("many")
    done = project.run("lab", "up", "--systemd", "--hosts", "64")
    if done.rc == 0:  # a kernel that gives enough
        project.ok("lab", "down")
        pytest.skip("this kernel has inotify instances for 64 hosts")
    assert done.rc == 4, done
    assert "fs.inotify.max_user_instances=" in done.err
    assert not project.lab.dir.exists()
