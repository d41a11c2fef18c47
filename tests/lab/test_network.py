"""Hosts that do not answer, answer as somebody else, or freeze: unknown is never down."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project, until
from tests.lab.test_lab import sshds

Make = Callable[[str], Project]
QUICK = {"DDOPS_CONNECT_TIMEOUT_S": "2"}


@pytest.fixture(scope="module")
def pair(make_project: Make) -> Iterator[Project]:
    """Two provisioned hosts of their own: these tests break the way to them."""
    project = make_project("n")
    project.ok("lab", "up", "--engine", "sim", "--hosts", "2")
    project.ok("provision", "lab")
    yield project
    project.ok("lab", "down")


def listeners(project: Project, host: str) -> list[int]:
    """The host's sshd and its sessions."""
    pid = int((project.lab.host(host) / "sshd.pid").read_text())
    return [pid, *_children(pid)]


def _children(pid: int) -> list[int]:
    done = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(p) for p in done.stdout.split()]


def test_a_dead_host_beside_a_good_one(pair: Project) -> None:
    pair.ok("deploy", "lab1", "lab2")
    for pid in listeners(pair, "lab2")[:1]:
        os.kill(pid, signal.SIGKILL)
    try:
        pair.profile("beside", "commit=3")
        done = pair.run("deploy", "lab1", "lab2", "--profile", "beside", env=QUICK)
        assert done.rc == 9, done
        assert "1 of 2 hosts failed: lab2" in done.err
        assert "lab1" in done.out
        assert pair.host("lab1").serves() == pair.host("lab1").committed
        status = pair.run("status", env=QUICK)
        assert status.rc == 9, status
        assert "unknown" in status.out
        assert "down" not in status.out
        alone = pair.run("deploy", "lab2", env=QUICK)
        assert alone.rc == 3, alone
        assert pair.run("check", "lab2", env=QUICK).rc == 3
        dry = pair.run("deploy", "lab2", "--dry-run", env=QUICK)
        assert dry.rc == 0, dry
        assert "UNKNOWN" in dry.out
    finally:
        _start_again(pair, "lab2")
    assert pair.host("lab2").serves()  # nobody touched it
    pair.ok("deploy", "lab1", "lab2", "--profile", "beside")


def _start_again(project: Project, host: str) -> None:
    folder = project.lab.host(host)
    subprocess.run(
        ["/usr/sbin/sshd", "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log")],
        check=True, env={"PATH": "/usr/sbin:/usr/bin:/bin", "DDOPS_LAB": str(project.lab.dir)},
    )  # fmt: skip
    until(lambda: project.ssh(host, "true").returncode == 0, what="sshd")


def test_all_hosts_dead_is_unreachable(pair: Project) -> None:
    for host in ("lab1", "lab2"):
        os.kill(listeners(pair, host)[0], signal.SIGKILL)
    until(lambda: not sshds(pair), what="the end of sshd")
    try:
        done = pair.run("deploy", "lab", env=QUICK)
        assert done.rc == 3, done
        assert "2 of 2 hosts failed" in done.err
    finally:
        for host in ("lab1", "lab2"):
            _start_again(pair, host)


def test_another_host_key_is_refused_with_both_fingerprints(pair: Project, tmp_path: Path) -> None:
    known = pair.lab.known_hosts
    right = known.read_text()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "k")], check=True
    )
    other = (tmp_path / "k.pub").read_text().split()[1]
    lines = right.splitlines()
    known.write_text(" ".join([*lines[0].split()[:2], other]) + "\n" + "\n".join(lines[1:]) + "\n")
    try:
        done = pair.run("deploy", "lab1")
    finally:
        known.write_text(right)
    assert done.rc == 3, done

    def fingerprint(path: Path) -> str:
        words = ["ssh-keygen", "-lf", str(path)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[1]

    assert fingerprint(tmp_path / "k.pub") in done.err
    assert fingerprint(pair.lab.host("lab1") / "hostkey.pub") in done.err


@pytest.fixture
def frozen(pair: Project) -> Iterator[Callable[[str], list[int]]]:
    stopped: list[int] = []

    def freeze(host: str) -> list[int]:
        pids = listeners(pair, host)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        stopped.extend(pids)
        return pids

    yield freeze
    for pid in stopped:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGCONT)


def _loading(pair: Project, host: HostView, old: str | None) -> None:
    until(lambda: host.states().get("switched") == "ok", what="the switch")
    until(lambda: host.pids() and host.current != old, what="the load")


def test_a_short_loss_while_loading_ends_nothing(
    pair: Project, frozen: Callable[[str], list[int]]
) -> None:
    """A load goes on without us: a broken connection is made anew, and the deploy goes on."""
    host = pair.host("lab2")
    pair.ok("deploy", "lab2")
    pair.profile("blip", "load_s=5")
    run = pair.spawn("deploy", "lab2", "--profile", "blip", env=QUICK)
    _loading(pair, host, host.committed)
    for pid in listeners(pair, "lab2")[1:]:
        os.kill(pid, signal.SIGKILL)
    done = run.end()
    assert done.rc == 0, done
    assert host.serves() == host.committed == host.current


def test_a_frozen_host_is_unknown_and_a_rerun_recovers(
    pair: Project, frozen: Callable[[str], list[int]]
) -> None:
    host = pair.host("lab1")
    pair.ok("deploy", "lab1")
    pair.profile("freeze", "load_s=4")
    env = {**QUICK, "DDOPS_LOAD_BUDGET_S": "5"}
    run = pair.spawn("deploy", "lab1", "--profile", "freeze", env=env)
    _loading(pair, host, host.committed)
    pids = frozen("lab1")
    done = run.end()
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGCONT)
    assert done.rc == 3, done
    assert "unknown" in done.err
    states = host.states()
    assert states["rolling_back"] == "unknown"
    assert "restored" not in states
    assert "stuck" not in states
    assert host.locked
    again = pair.run("deploy", "lab1", "--profile", "freeze")
    assert again.rc == 0, again
    assert host.serves() == host.current == host.committed
    assert not host.locked
