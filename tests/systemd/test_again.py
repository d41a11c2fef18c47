"""The contract, provision and deploy suites once more, on a host that boots and logs in no root.

Left out is what speaks of this machine's own ports and processes, or of the process supervisor.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from ddops.transport import ConnectPolicy, SshTarget, Transport
from tests.contract import test_files, test_transport
from tests.contract.conftest import Host
from tests.lab.test_deploy import (
    test_a_service_that_stays_ill_is_started_anew,
    test_an_engine_that_crashes_is_restarted_as_another_start,
    test_another_profile_is_another_release_and_commits_only_when_gated,
    test_first_deploy_is_live_and_its_story_is_told,
    test_one_late_answer_is_no_reason_to_restart,
    test_the_second_deploy_changes_nothing,
    test_the_supervisor_outlives_the_controller,
)
from tests.systemd.harness import BootedProject

__all__ = [
    "test_a_service_that_stays_ill_is_started_anew",
    "test_an_engine_that_crashes_is_restarted_as_another_start",
    "test_another_profile_is_another_release_and_commits_only_when_gated",
    "test_first_deploy_is_live_and_its_story_is_told",
    "test_one_late_answer_is_no_reason_to_restart",
    "test_the_second_deploy_changes_nothing",
    "test_the_supervisor_outlives_the_controller",
]


@pytest.fixture(scope="module")
def booted_transport(booted: BootedProject) -> Iterator[Transport]:
    from ddops.transport.ssh import SshTransport

    target = SshTarget("contract", "lab3", booted.lab.ssh_config)
    with SshTransport(target, ConnectPolicy()) as transport:
        yield transport


@pytest.fixture
def host(booted: BootedProject, booted_transport: Transport) -> Iterator[Host]:
    """The contract's host: a folder of the test's own on `lab3`."""
    directory = booted.sh("lab3", "mktemp", "-d")
    yield Host(booted_transport, directory, "ssh")
    booted.sh("lab3", "rm", "-rf", directory)


def _on_a_host(module: ModuleType) -> dict[str, object]:
    """The module's tests that ask for nothing but a host and made-up data."""
    out = {}
    for name, value in vars(module).items():
        if name.startswith("test_") and callable(value):
            wants = set(inspect.signature(value).parameters)
            if "host" in wants:
                out[name] = value
    return out


tree = test_files.tree
CONTRACT = {**_on_a_host(test_transport), **_on_a_host(test_files)}
globals().update(CONTRACT)


def test_the_contract_was_found() -> None:
    assert len(CONTRACT) >= 15
