"""`ddops lab up` and `down`: real hosts of their own, and nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddops.layout import HostLayout
from tests.lab.harness import Project
from tests.lab.looking import files_below, parent, tagged, until

Make = Callable[[str], Project]


def machine(project: Project) -> dict[str, object]:
    """What a lab could leave behind on the machine."""
    lab = str(project.lab.dir)
    return {
        "processes": tagged(f"DDOPS_LAB={lab}") + sshds(project),
        "mounts": [m for m in Path("/proc/mounts").read_text().splitlines() if "ddops" in m],
        "namespaces": [str(Path(f"/proc/self/ns/{n}").readlink()) for n in ("mnt", "net", "pid")],
        "sockets": sorted(str(p) for p in Path("/tmp").glob("ddops-*") if _ours(p, project)),
        "run": Path("/run/sshd").exists(),
        "account": files_below(project.root / "account"),
        "temp": files_below(project.root / "tmp"),
    }


def _ours(path: Path, project: Project) -> bool:
    hosts = (f"lab{i}" for i in range(1, 5))
    return str(path) in {
        str(Path(HostLayout(str(project.lab.engine_dir(h))).socket).parent) for h in hosts
    }


def sshds(project: Project) -> list[int]:
    """Listeners of this lab: an sshd keeps no environment, but its command line.

    A connection is a child of its listener and shows the same line until it names itself, also
    for a moment after a look at the port has ended. One whose listener is gone counts: nothing
    would end it.
    """
    want, parents = f"-f {project.lab.dir}/hosts/".encode(), {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                if want in line and b"sshd" in line:
                    parents[int(name)] = parent(int(name))
            except OSError:
                continue
    return sorted(pid for pid, above in parents.items() if above not in parents)


@pytest.fixture
def project(make_project: Make) -> Iterator[Project]:
    made = make_project("u")
    yield made
    made.run("lab", "down")


def test_down_leaves_nothing_behind(project: Project) -> None:
    before = machine(project)
    project.ok("lab", "up", "--engine", "sim", "--hosts", "2")
    during = machine(project)
    until(lambda: len(sshds(project)) == 3, what="two hosts and the backup place")
    assert during["processes"] != before["processes"]  # the comparison can see something
    project.ok("provision", "lab1")
    project.ok("deploy", "lab1")
    assert project.host("lab1").pids()
    done = project.ok("lab", "down")
    assert "lab is down" in done.err
    after = machine(project)
    # The caches of the account are kept on purpose: they make the next lab quick.
    for place in ("processes", "mounts", "namespaces", "sockets", "run", "temp"):
        assert after[place] == before[place], place
    assert not project.lab.dir.exists()
    assert "no lab was up" in project.ok("lab", "down").err


def test_up_again_changes_nothing_and_another_shape_is_refused(project: Project) -> None:
    project.ok("lab", "up", "--engine", "sim")
    pids, files = sshds(project), _files(project)
    assert "up already" in project.ok("lab", "up", "--engine", "sim").err
    other = project.run("lab", "up", "--engine", "sim", "--hosts", "2")
    assert other.rc == 4, other
    assert "another shape" in other.err
    assert "ddops lab down" in other.err
    assert sshds(project) == pids
    assert _files(project) == files


def _files(project: Project) -> dict[str, str]:
    """All of the lab but what sshd itself logs of a look at its port."""
    return {p: v for p, v in files_below(project.lab.dir).items() if not p.endswith("sshd.log")}


@pytest.mark.parametrize("text", ['[hosts.lab2]\nssh = "mine"\n', '[aliases]\nlab1 = "b300"\n'])
def test_a_name_of_the_projects_own_is_refused(project: Project, text: str) -> None:
    project.write("inventory/hosts.toml", text)
    done = project.run("lab", "up", "--engine", "sim", "--hosts", "2")
    assert done.rc == 4, done
    assert "own inventory defines" in done.err
    assert not project.lab.dir.exists()
    assert not sshds(project)


def test_a_lab_killed_while_coming_up_is_cleaned_by_the_next(project: Project) -> None:
    run = project.spawn("lab", "up", "--engine", "sim", "--hosts", "4")
    # Its pid file: the sshd that is seen first only puts the one that stays into the background.
    until(lambda: list(project.lab.dir.glob("hosts/*/sshd.pid")), what="the first sshd")
    run.kill()
    stray = sshds(project)
    assert stray
    assert not (project.lab.state.exists() and project.state.ready)
    done = project.ok("lab", "up", "--engine", "sim", "--hosts", "1")
    assert "cleaning it" in done.err
    until(lambda: len(sshds(project)) == 2, what="the host and the backup place alone")
    assert not set(stray) & set(sshds(project))
    assert project.ssh("lab1", "echo", "here").stdout == "here\n"


def test_a_dead_lab_is_cleaned_by_the_next_up(project: Project) -> None:
    project.ok("lab", "up", "--engine", "sim")
    project.ok("provision", "lab")
    dead = sshds(project)
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not sshds(project), what="the end of sshd")
    stray = tagged(f"DDOPS_LAB={project.lab.dir}")
    assert stray  # its supervisor is still there, and belongs to the dead lab
    done = project.ok("lab", "up", "--engine", "sim")
    assert "cleaning it" in done.err
    assert not set(stray) & set(tagged(f"DDOPS_LAB={project.lab.dir}"))
    until(lambda: len(sshds(project)) == 2, what="the host and the backup place alone")


def test_control_c_while_coming_up_leaves_nothing(project: Project) -> None:
    before = machine(project)
    run = project.spawn("lab", "up", "--engine", "sim", "--hosts", "4")
    until(lambda: sshds(project), what="the first sshd")
    run.interrupt()
    done = run.end(30)
    assert done.rc == 130, done
    after = machine(project)
    assert after["processes"] == before["processes"] == []
    assert after["temp"] == before["temp"]
    assert not project.lab.dir.exists()


def test_a_second_command_on_a_lab_is_told(project: Project) -> None:
    import fcntl

    lock = project.lab.dir.with_suffix(".flock")
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = project.run("lab", "up", "--engine", "sim")
    assert done.rc == 7, done
    assert "another `ddops lab` command" in done.err


def test_a_login_lands_in_the_hosts_own_home_with_nothing_of_the_account(lab: Project) -> None:
    canary = lab.root / "account" / ".bashrc"
    canary.write_text("export CANARY=from-the-account\necho leaked\n")
    host = lab.host("lab2")
    seen = lab.ssh("lab2", "pwd; env; id -u")
    lines = seen.stdout.splitlines()
    assert lines[0] == str(host.dir / "home")
    names = {line.partition("=")[0] for line in lines[1:-1]}
    assert f"HOME={host.dir / 'home'}" in lines
    assert not names & {"CANARY", "SSH_CLIENT", "SSH_CONNECTION", "MAIL", "XDG_SESSION_ID"}
    assert {n for n in names if n.startswith("DDOPS_")} == {"DDOPS_LAB", "DDOPS_LAB_HOST"}
    assert "leaked" not in seen.stdout
    real = Path(f"~{os.environ.get('USER', 'root')}").expanduser()
    assert f"PWD={real}" not in lines


def test_sftp_begins_in_the_hosts_home(lab: Project, tmp_path: Path) -> None:
    import subprocess

    host = lab.host("lab2")
    (tmp_path / "up.txt").write_text("sent")
    batch = f"put {tmp_path}/up.txt got.txt\npwd\nget got.txt {tmp_path}/back.txt\nrm got.txt\n"
    done = subprocess.run(
        ["sftp", "-q", "-b", "-", "-F", str(lab.lab.ssh_config), "lab2"],
        input=batch, capture_output=True, text=True, timeout=30, check=False, env=lab.env(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(host.dir / "home") in done.stdout
    assert (tmp_path / "back.txt").read_text() == "sent"


def test_hosts_are_apart(lab: Project) -> None:
    state = lab.state
    assert len({h.ssh_port for h in state.hosts} | {h.service_port for h in state.hosts}) == 6
    keys = {(lab.lab.host(h.name) / "hostkey.pub").read_text().split()[1] for h in state.hosts}
    assert len(keys) == 3
    lab.ssh("lab2", "echo mine > note")
    assert lab.ssh("lab3", "cat note").returncode != 0
    assert (lab.host("lab2").dir / "home" / "note").read_text() == "mine\n"
    homes = {lab.ssh(h.name, "pwd").stdout for h in state.hosts[1:3]}
    assert len(homes) == 2


def test_every_file_with_a_secret_of_the_lab_is_private(lab: Project) -> None:
    for path in (lab.lab.key, lab.lab.host("lab1") / "hostkey", lab.lab.dir):
        assert path.stat().st_mode & 0o077 == 0, path
    for host in lab.state.hosts:
        assert host.address.startswith("127.")


def test_a_deep_folder_still_gets_a_supervisor(make_project: Make) -> None:
    """A Unix socket's path has 107 bytes; a longer one goes to a private folder in /tmp."""
    project = make_project("deep-" + "x" * 60)
    project.ok("lab", "up", "--engine", "sim")
    try:
        project.ok("provision", "lab")
        socket = Path(HostLayout(str(project.lab.engine_dir("lab1"))).socket)
        assert socket.parent.parent == Path("/tmp")
        assert socket.exists()
        assert socket.parent.stat().st_mode & 0o077 == 0
    finally:
        project.ok("lab", "down")
    assert not socket.parent.exists()
