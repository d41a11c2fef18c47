"""Faults and their end: what is asked for happens, and `heal` undoes it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.lab.looking import until
from tests.systemd.harness import BootedProject

HOST, OTHER, ADDRESS = "lab4", "lab3", "10.77.0.14"
SIZE = 400_000


@pytest.fixture
def project(booted: BootedProject) -> Iterator[BootedProject]:
    yield booted
    booted.ok("lab", "heal", HOST)


def fault(project: BootedProject, *words: str) -> None:
    project.ok("lab", "fault", HOST, *words)


def ping(project: BootedProject, count: int, interval: float = 0.02) -> tuple[int, float]:
    """Answers, and the least round trip in ms, from another host."""
    project.ssh(OTHER, f"ping -q -c 1 -w 5 {ADDRESS}")  # they know each other's address
    words = f"ping -q -c {count} -i {interval} -W 2 {ADDRESS}"
    said = project.ssh(OTHER, words).stdout
    got = re.search(r"(\d+) received", said)
    least = re.search(r"= ([\d.]+)/", said)
    assert got is not None, said
    return int(got[1]), float(least[1]) if least else float("inf")


def answers(project: BootedProject, seconds: int = 3) -> bool:
    words = ["timeout", str(seconds), "true"]
    return project.ssh(HOST, *words).returncode == 0


def faults(project: BootedProject) -> object:
    return project.seen()[HOST]["faults"]


def test_loss(project: BootedProject) -> None:
    assert ping(project, 50)[0] == 50
    fault(project, "netloss", "30%")
    assert faults(project) == ["netloss 30%"]
    # 0.7 * 0.7 = 49 % of the round trips are left; far outside is not chance (1 in 10^7).
    assert 60 <= ping(project, 200)[0] <= 140
    project.ok("lab", "heal", HOST)
    assert ping(project, 50)[0] == 50


def test_delay(project: BootedProject) -> None:
    assert ping(project, 5)[1] < 50
    fault(project, "netdelay", "120ms")
    received, least = ping(project, 5)
    assert received == 5
    assert 120 <= least < 300
    fault(project, "netdelay", "60")  # replaces the first
    assert 60 <= ping(project, 5)[1] < 120
    project.ok("lab", "heal", HOST)
    assert ping(project, 5)[1] < 50


def test_a_delayed_line_carries_data_whole(project: BootedProject) -> None:
    fault(project, "netdelay", "40ms")
    copied = project.ssh(HOST, "seq 400000")
    assert copied.stdout == "".join(f"{n}\n" for n in range(1, 400_001))


def pull(project: BootedProject) -> None:
    assert len(project.ssh(HOST, f"head -c {SIZE} /dev/zero").stdout) == SIZE


def push(project: BootedProject) -> None:
    words = ["ssh", "-F", str(project.lab.ssh_config), HOST, "wc -c"]
    done = subprocess.run(
        words, env=project.env(), input=b"\0" * SIZE, capture_output=True, check=True, timeout=60
    )
    assert int(done.stdout) == SIZE


@pytest.mark.parametrize("carry", [pull, push])
def test_rate(project: BootedProject, carry: Callable[[BootedProject], None]) -> None:
    fault(project, "netrate", "800kbit")
    began = time.monotonic()
    carry(project)
    slow = time.monotonic() - began
    # 3.2 Mbit at 0.8 Mbit/s: 4 s, less what one bucket lets through at once.
    assert slow > 3.5
    project.ok("lab", "heal", HOST)
    began = time.monotonic()
    carry(project)
    assert time.monotonic() - began < slow


def test_down_and_up(project: BootedProject) -> None:
    assert answers(project)
    fault(project, "netdown")
    done = project.run("probe", HOST, env={"DDOPS_CONNECT_TIMEOUT_S": "3"})
    assert done.rc == 3, done
    project.ok("lab", "heal", HOST)
    until(lambda: answers(project), what="an answer")


def test_frozen(project: BootedProject) -> None:
    fault(project, "freeze")
    assert project.seen()[HOST]["state"] == "frozen"
    done = project.run("probe", HOST, env={"DDOPS_CONNECT_TIMEOUT_S": "2"})
    assert done.rc == 3, done
    project.ok("lab", "heal", HOST)
    assert answers(project)
    assert project.seen()[HOST]["state"] == "on"


def test_a_full_disk_is_full_to_the_last_byte_and_the_hosts_own(project: BootedProject) -> None:
    fault(project, "diskfull")
    refused = project.ssh(HOST, "echo x > /home/ops/x")
    assert "No space left on device" in refused.stderr
    assert project.ssh(OTHER, "echo x > /home/ops/x").returncode == 0
    project.ok("lab", "heal", HOST)
    project.sh(HOST, "sh", "-c", "echo x > /home/ops/x")


def test_reboot_is_a_power_cut_and_keeps_the_disk(project: BootedProject) -> None:
    host = project.host(HOST)
    host.wait_up()
    first = host.boot_id()
    project.sh(HOST, "sh", "-c", "echo kept > /home/ops/kept; echo gone > /run/user/1000/gone")
    machine_id = project.sh(HOST, "cat", "/etc/machine-id")
    fault(project, "netdelay", "50")
    fault(project, "reboot")
    until(lambda: host.boot_id() not in ("", first), what="another boot")
    host.wait_up()
    assert project.sh(HOST, "cat", "/home/ops/kept") == "kept"
    assert project.ssh(HOST, "cat /run/user/1000/gone").returncode != 0
    assert project.sh(HOST, "cat", "/etc/machine-id") == machine_id
    # A cable does not mend because a machine reboots.
    assert faults(project) == ["netdelay 50ms"]
    assert ping(project, 3)[1] >= 50


def test_a_host_that_reboots_itself_comes_back(project: BootedProject) -> None:
    host = project.host(HOST)
    boots = int(str(project.seen()[HOST]["boots"]))
    first = host.boot_id()
    assert first
    project.ssh(HOST, "sudo systemctl reboot")
    until(lambda: host.boot_id() not in ("", first), limit_s=60, what="another boot")
    host.wait_up()
    assert project.seen()[HOST]["boots"] == boots + 1


def test_a_host_that_is_switched_off_stays_off_until_healed(project: BootedProject) -> None:
    project.host(HOST).wait_up()  # while it boots, systemd has another job for its targets
    done = project.ssh(HOST, "sudo systemctl poweroff")
    assert done.returncode in (0, 255), done  # 255: the connection went with the host
    until(lambda: project.seen()[HOST]["state"] == "off", limit_s=60, what="the power off")
    refused = project.run("lab", "fault", HOST, "freeze")
    assert refused.rc == 1, refused
    assert "is off" in refused.err
    assert "ddops lab heal" in refused.err
    assert project.run("probe", HOST, env={"DDOPS_CONNECT_TIMEOUT_S": "2"}).rc == 3
    project.ok("lab", "heal", HOST)
    until(lambda: answers(project), what="an answer")


def test_status_names_the_faults(project: BootedProject) -> None:
    fault(project, "netloss", "5")
    rows = project.ok("lab", "status", "--json").json
    assert isinstance(rows, list)
    row = next(r for r in rows if r["name"] == HOST)
    assert (row["state"], row["faults"]) == ("on", "netloss 5%")
    project.ok("lab", "heal", HOST)
    assert "netloss" not in project.ok("lab", "status").out


def test_words_that_mean_nothing_are_told(project: BootedProject) -> None:
    for words in (["netloss"], ["netloss", "120%"], ["freeze", "3"], ["netrate", "fast"]):
        done = project.run("lab", "fault", HOST, *words)
        assert done.rc == 2, done
        assert f"ddops lab fault HOST {words[0]}" in done.err
    absent = project.run("lab", "fault", "lab77", "freeze")
    assert absent.rc == 2, absent
    assert "lab1, lab2, lab3, lab4" in absent.err
    assert project.run("lab", "fault", HOST, "earthquake").rc == 2
    assert faults(project) == []
