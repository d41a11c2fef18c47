"""One lab of four hosts that boot, for the whole tier. Where it cannot be, each test is a skip."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddops.lab.needs import why_not
from tests.lab.harness import SETTINGS
from tests.systemd.harness import BootedHost, BootedProject, make_wheel

HERE = Path(__file__).parent
HOSTS = 4
Make = Callable[[str], BootedProject]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.systemd)


@pytest.fixture(scope="session", autouse=True)
def able() -> None:
    """Where the lab cannot be, each test of the tier is a skip that says why."""
    why, next_ = why_not()
    if why:
        pytest.skip(f"a systemd lab {why}; next: {next_}")


@pytest.fixture(scope="session")
def make_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes projects, and takes down whatever lab is left in one.

    They share the account's own cache: the root filesystem is built once on a machine.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    made: list[BootedProject] = []

    def make(name: str) -> BootedProject:
        project = BootedProject(tmp_path_factory.mktemp(name), SETTINGS, {"XDG_CACHE_HOME": cache})
        project.make()
        made.append(project)
        return project

    yield make
    for project in made:
        if project.lab.dir.exists():
            project.run("lab", "down")


@pytest.fixture(scope="session")
def booted(make_project: Make, tmp_path_factory: pytest.TempPathFactory) -> BootedProject:
    """`lab1` to `lab4`, as they come up, with a folder of wheels."""
    wheels = tmp_path_factory.mktemp("wheels")
    make_wheel(wheels)
    project = make_project("s")
    refused = project.run("lab", "up", "--systemd", "--wheelhouse", str(wheels))
    assert refused.rc == 4, refused  # a folder of root's alone
    assert "chmod o+rx" in refused.err
    wheels.chmod(0o755)
    project.up("--hosts", str(HOSTS), "--wheelhouse", str(wheels))
    return project


@pytest.fixture(scope="session")
def lab(booted: BootedProject) -> BootedProject:
    """The same, provisioned."""
    booted.ok("provision", "lab")
    return booted


@pytest.fixture
def clean_host(lab: BootedProject) -> Iterator[BootedHost]:
    """A provisioned host that has never served."""
    host = lab.host("lab1")
    host.forget()
    yield host
    host.fault()


@pytest.fixture
def serving(lab: BootedProject) -> Iterator[BootedHost]:
    """A host on which the lab's own profile is live and committed."""
    host = lab.host("lab1")
    host.fault()
    lab.ok("deploy", "lab1")
    yield host
    host.fault()
