"""One Slurm of two nodes for the whole tier. Where it cannot be, each test is a skip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddops.lab.slurm import why_not
from tests.slurm.harness import SlurmProject, Submitting

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session", autouse=True)
def able() -> None:
    """Where the lab cannot be, each test of the tier is a skip that says why."""
    why, next_ = why_not()
    if why:
        pytest.skip(f"a Slurm lab {why}; next: {next_}")


@pytest.fixture(scope="session")
def lab(able: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmProject]:
    """The host `slurm`, provisioned, and the nodes `g1` and `g2`."""
    project = SlurmProject(tmp_path_factory.mktemp("q"))
    project.make()
    project.ok("lab", "up", "--slurm", "--hosts", "2")
    try:
        project.ok("provision", "lab", "--yes")
        yield project
    finally:
        project.run("lab", "down")


@pytest.fixture
def idle(lab: SlurmProject) -> Iterator[Submitting]:
    """A host that has never served, and two nodes that nobody uses."""
    host = lab.submitting
    host.reset()
    yield host
    host.fault()


@pytest.fixture
def serving(idle: Submitting) -> Submitting:
    """The lab's own profile is live and committed, as a job."""
    idle.project.ok("deploy", "tiny")
    return idle
