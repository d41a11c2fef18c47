"""One lab of four stand-in hosts for the whole tier; tests that need another make their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.sshd import missing_tools
from tests.lab.harness import HostView, Project

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.lab)


@pytest.fixture(scope="session")
def need_sshd() -> None:
    if why := missing_tools():
        pytest.skip(why)


@pytest.fixture(scope="session")
def make_project(
    tmp_path_factory: pytest.TempPathFactory, need_sshd: None
) -> Iterator[Callable[[str], Project]]:
    """Makes projects, and takes down whatever lab is left in one."""
    made: list[Project] = []

    def make(name: str) -> Project:
        project = Project(tmp_path_factory.mktemp(name)).make()
        made.append(project)
        return project

    yield make
    for project in made:
        if project.lab.dir.exists():
            project.run("lab", "down")


@pytest.fixture(scope="session")
def lab(make_project: Callable[[str], Project]) -> Project:
    """`lab1` to `lab4`, provisioned."""
    project = make_project("l")
    project.ok("lab", "up", "--engine", "sim", "--hosts", "4")
    project.ok("provision", "lab")
    return project


@pytest.fixture
def clean_host(lab: Project) -> Iterator[HostView]:
    """A provisioned host that has never served."""
    host = lab.host("lab1")
    host.forget()
    yield host
    host.fault()


@pytest.fixture
def serving(lab: Project) -> Iterator[HostView]:
    """A host on which the lab's own profile is live and committed."""
    host = lab.host("lab1")
    host.fault()
    lab.ok("deploy", "lab1")
    yield host
    host.fault()


@pytest.fixture(scope="session")
def is_root() -> bool:
    return os.geteuid() == 0
