"""However a lab of booted hosts ends, nothing of it is left: no process, mount, namespace, link."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddops.lab.rootfs import packages_in
from tests.lab.looking import until
from tests.systemd.harness import (
    BootedProject,
    Machine,
    machine,
    namespaces,
    still_there,
    ticks,
    within,
)

Make = Callable[[str], BootedProject]
NOTHING: dict[str, list[object]] = {"processes": [], "namespaces": []}


@pytest.fixture
def project(make_project: Make) -> Iterator[BootedProject]:
    made = make_project("e")
    yield made
    made.run("lab", "down")


@dataclass
class Up:
    """A lab that is up, and what it put where."""

    project: BootedProject
    before: Machine
    processes: set[tuple[int, str]]
    spaces: set[str]


@pytest.fixture
def up(project: BootedProject) -> Up:
    before = machine(project)
    project.up("--hosts", "2")
    processes, spaces = within(project)
    # The comparison can see something: two whole systems, in namespaces of theirs.
    assert len(processes) >= 2 * 5
    assert len(spaces) >= 3 * 6 - 1
    assert machine(project).groups > before.groups
    assert still_there(processes, spaces) != NOTHING
    return Up(project, before, processes, spaces)


def test_while_it_is_up_the_machine_has_no_mount_and_no_link_of_it(up: Up) -> None:
    now = machine(up.project)
    assert now.mounts == up.before.mounts
    assert now.interfaces == up.before.interfaces
    assert now.files == up.before.files


def test_down_leaves_nothing(up: Up) -> None:
    assert "lab is down" in up.project.ok("lab", "down").err
    assert still_there(up.processes, up.spaces) == NOTHING
    assert machine(up.project) == up.before
    assert not up.project.lab.dir.exists()
    assert "no lab was up" in up.project.ok("lab", "down").err


def test_down_ends_what_is_frozen_full_and_cut_off(up: Up) -> None:
    for words in (("netdelay", "20"), ("netloss", "10"), ("netrate", "1mbit"), ("diskfull",),
                  ("netdown",), ("freeze",)):  # fmt: skip
        up.project.ok("lab", "fault", "lab1", *words)
    up.project.ok("lab", "down")
    assert still_there(up.processes, up.spaces) == NOTHING
    assert machine(up.project) == up.before


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_a_crash_takes_everything_with_it(up: Up, which: str) -> None:
    os.kill(up.project.holders()[which], signal.SIGKILL)
    until(lambda: still_there(up.processes, up.spaces) == NOTHING, what="the end of it all")
    now = machine(up.project)
    assert now.mounts == up.before.mounts
    assert now.interfaces == up.before.interfaces
    # Control groups are no namespace: empty ones wait for the next command.
    assert up.project.run("lab", "status").rc == 1
    again = up.project.ok("lab", "down")
    assert "lab is down" in again.err
    assert machine(up.project) == up.before


def test_after_a_crash_up_just_works(up: Up) -> None:
    os.kill(up.project.holders()["inner"], signal.SIGKILL)
    until(lambda: not up.project.holders(), what="the end of the holder")
    up.project.up("--hosts", "2")
    assert up.project.sh("lab2", "hostname") == "lab2"
    up.project.ok("lab", "down")
    assert machine(up.project) == up.before


def test_a_lab_whose_folder_was_deleted_ends_by_itself(up: Up) -> None:
    shutil.rmtree(up.project.lab.dir)
    until(lambda: still_there(up.processes, up.spaces) == NOTHING, what="the end of it all")
    until(lambda: machine(up.project) == up.before, what="the end of its control groups")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_up_that_is_cut_short_leaves_nothing(
    project: BootedProject, how: signal.Signals
) -> None:
    """Ctrl-C cleans; a kill cannot, but the lab sees that its maker is gone, and goes."""
    before = machine(project)
    run = project.spawn("lab", "up", "--systemd", "--hosts", "2")
    until(lambda: "inner" in project.holders(), limit_s=120, what="the holder")
    pids = list(project.holders().values())
    spaces = set().union(*(namespaces(p) for p in pids)) - namespaces(os.getpid())
    left = {(p, ticks(p)) for p in pids}
    if how is signal.SIGINT:
        run.interrupt()
        assert run.end().rc == 130
        assert not project.lab.dir.exists()
    else:
        run.kill()
    until(lambda: still_there(left, spaces) == NOTHING, what="the end of it all")
    if how is signal.SIGKILL:
        project.ok("lab", "down")
    assert machine(project) == before


def test_a_build_that_is_killed_leaves_no_half_root_filesystem(
    make_project: Make, tmp_path: Path
) -> None:
    """A recipe of its own, so that the account's cache is not touched; killed before it is done."""
    project = make_project("b")
    project.more_env = {"XDG_CACHE_HOME": str(tmp_path)}
    before = machine(project)
    run = project.spawn("lab", "up", "--systemd")
    folder = tmp_path / "ddops" / "rootfs"
    until(lambda: list(folder.glob("*.partial/*")), limit_s=60, what="the build")
    run.interrupt()
    done = run.end()
    assert done.rc == 130, done
    assert [p.name for p in folder.iterdir() if p.name != ".lock"] == []
    assert machine(project) == before
    assert not project.lab.dir.exists()


def test_packages_are_read_with_their_comments() -> None:
    assert packages_in("# why\nsystemd\n\n  sudo # to be root\n") == ["systemd", "sudo"]
