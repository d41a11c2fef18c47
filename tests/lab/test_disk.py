"""A disk that is full: refused before, clean in the middle, never half a release that serves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project

Make = Callable[[str], Project]


@pytest.fixture(scope="module")
def small(make_project: Make) -> Iterator[HostView]:
    """A host whose engine folder is a tmpfs with room for a lab and with few inodes."""
    if os.geteuid() != 0:
        pytest.skip("a size-limited tmpfs needs root to be mounted")
    project = make_project("d")
    project.ok("lab", "up", "--engine", "sim")
    folder = Path(project.host("lab1").layout.engine_dir)
    options = "size=600m,nr_inodes=2000,mode=0700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "ddops-test", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        project.ok("lab", "down")
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        project.ok("provision", "lab")
        project.ok("deploy", "lab")
        yield project.host("lab1")
    finally:
        host = project.host("lab1")
        host.svctl("stop", "tiny")
        host.svctl("shutdown")
        subprocess.run(["umount", str(folder)], check=True)
        project.ok("lab", "down")


@pytest.fixture
def no_inodes(small: HostView) -> Iterator[Callable[[int], None]]:
    """Takes all inodes but a few: nothing new can be made, though bytes are free."""
    waste = Path(small.layout.engine_dir) / "waste"

    def fill(left: int) -> None:
        waste.mkdir()
        free = os.statvfs(waste).f_ffree
        for number in range(free - left):
            (waste / str(number)).touch()

    yield fill
    subprocess.run(["rm", "-rf", str(waste)], check=True)


@pytest.mark.parametrize("left", [0, 3, 6, 8])
def test_full_while_staging(small: HostView, no_inodes: Callable[[int], None], left: int) -> None:
    project, old, pids = small.project, small.serves(), small.pids()
    project.profile(f"full{left}", "commit=3")
    no_inodes(left)
    done = project.run("deploy", "lab1", "--profile", f"full{left}")
    assert done.rc in (1, 4), done
    assert "No space left" in done.err, done
    assert small.current == small.committed == small.serves() == old
    assert small.pids() == pids
    assert not small.locked
    releases = Path(small.service.releases)
    for release in releases.iterdir():
        assert (release / "launch.json").exists(), "half a release under its own name"
    assert list(releases.rglob("*.partial*")) == []


def test_too_little_space_is_refused_by_name(small: HostView) -> None:
    project, pids = small.project, small.pids()
    project.profile("space", "commit=3")
    waste = Path(small.layout.engine_dir) / "waste"
    waste.write_bytes(b"\0" * (400 << 20))
    try:
        done = project.run("deploy", "lab1", "--profile", "space")
    finally:
        waste.unlink()
    assert done.rc == 4, done
    assert "HOST-DISK" in done.err
    assert small.pids() == pids
    assert small.states()["compat_ok"] == "fail"
    assert not small.locked


def test_with_space_again_it_goes_through(small: HostView) -> None:
    small.project.profile("full6", "commit=3")
    small.project.ok("deploy", "lab1", "--profile", "full6")
    assert small.serves() == small.committed
