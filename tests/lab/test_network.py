"""Hosts that do not answer, answer as somebody else, or freeze: unknown is never down."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.harness import Project
from tests.lab.looking import until
from tests.lab.scenarios import QUICK, Scenarios, listeners, loading
from tests.lab.test_lab import sshds

Make = Callable[[str], Project]


@pytest.fixture(scope="module")
def pair(make_project: Make) -> Iterator[Project]:
    """Two provisioned hosts of their own: these tests break the way to them."""
    project = make_project("n")
    project.ok("lab", "up", "--engine", "sim", "--hosts", "2")
    project.ok("provision", "lab")
    yield project
    project.ok("lab", "down")


def test_a_dead_host_beside_a_good_one(pair: Project) -> None:
    pair.ok("deploy", "lab1", "lab2")
    for pid in listeners(pair, "lab2")[:1]:
        os.kill(pid, signal.SIGKILL)
    try:
        pair.profile("beside", "commit=3")
        before = pair.host("lab1").serves()
        whole = pair.run("deploy", "lab1", "lab2", "--profile", "beside", env=QUICK)
        assert whole.rc == 5, whole
        assert "taking 1 of 2 hosts back" in whole.err
        assert pair.host("lab1").serves() == before, "a fleet is not left half and half"
        done = pair.run("deploy", "lab1", "lab2", "--profile", "beside", "--keep", env=QUICK)
        assert done.rc == 9, done
        assert "1 of 2 hosts failed: lab2" in done.err
        assert "lab1" in done.out
        assert pair.host("lab1").serves() == pair.host("lab1").committed
        status = pair.run("status", env=QUICK)
        assert status.rc == 9, status
        assert "unknown" in status.out
        assert "down" not in status.out
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
    # What stays is the sshd of the lab's backup place, which is no host.
    until(lambda: len(sshds(pair)) == 1, what="the end of the hosts' sshd")
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


def test_a_short_loss_while_loading_ends_nothing(pair: Project) -> None:
    """A load goes on without us: a broken connection is made anew, and the deploy goes on."""
    host = pair.host("lab2")
    pair.ok("deploy", "lab2")
    pair.profile("blip", "load_s=4")
    run = pair.spawn("deploy", "lab2", "--profile", "blip", env=QUICK)
    loading(host, host.committed)
    for pid in listeners(pair, "lab2")[1:]:
        os.kill(pid, signal.SIGKILL)
    done = run.end()
    assert done.rc == 0, done
    assert host.serves() == host.committed == host.current


def test_a_frozen_host_is_unknown_and_a_rerun_recovers(scenarios: Scenarios) -> None:
    """Begun with the session: every call runs into its deadline."""
    during, after = scenarios.frozen().during, scenarios.frozen().after
    assert during.done.rc == 3, during.done
    assert "unknown" in during.words
    assert during.states["rolling_back"] == "unknown"
    assert not {"restored", "stuck"} & set(during.states)
    assert during.locked
    assert after.done.rc == 0, after.done
    assert after.serves == after.current == after.committed != during.before
    assert not after.locked
