"""The hosts of the contract suite: in memory, this machine, and a real sshd on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddops.transport import ConnectPolicy, LocalTransport, SshTarget, Transport
from tests.contract.fakehost import fake_host
from tests.contract.sshd import Sshd, host_block, keygen, missing_tools, write_config


@dataclass
class Host:
    """A transport, and a directory on its host that belongs to the test."""

    transport: Transport
    directory: str
    kind: str


@pytest.fixture(scope="session")
def client_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := missing_tools():
        pytest.skip(why)
    return keygen(tmp_path_factory.mktemp("client") / "id_client")


@pytest.fixture(scope="session")
def shared_sshd(tmp_path_factory: pytest.TempPathFactory, client_key: Path) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd"), client_key)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def ssh_transport(shared_sshd: Sshd) -> Iterator[Transport]:
    from ddops.transport.ssh import SshTransport

    known = shared_sshd.directory / "known_hosts"
    known.write_text(shared_sshd.known_hosts_line() + "\n")
    config = write_config(
        shared_sshd.directory / "config",
        known,
        shared_sshd.client_key,
        host_block("contract", shared_sshd.port),
    )
    with SshTransport(SshTarget("contract", "contract", config), ConnectPolicy()) as transport:
        yield transport


@pytest.fixture(params=["fake", "local", "ssh"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    kind = request.param
    transport: Transport
    if kind == "fake":
        transport = fake_host()
        transport.files.make_dirs(str(tmp_path))
    elif kind == "local":
        transport = LocalTransport("contract")
    else:
        transport = request.getfixturevalue("ssh_transport")
    yield Host(transport, str(tmp_path), kind)
    if kind != "ssh":
        transport.close()
