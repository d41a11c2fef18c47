"""The lab as data, and the one rule by which its processes are known."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddops.errors import DdopsError, UsageError
from ddops.lab import LabHost, LabPaths, LabSpec, LabState
from ddops.lab import host as lab_host
from ddops.lab.host import free_ports, place
from ddops.lab.processes import end_all, lab_processes, with_descendants

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
DEAF = [
    sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True);"
    "time.sleep(60)",
]  # fmt: skip


def test_names_of_hosts() -> None:
    assert LabSpec(2).names() == ["lab1", "lab2"]
    assert LabSpec(3, "b300", "sim").names() == ["b300", "b300-2", "b300-3"]


@pytest.mark.parametrize(("hosts", "systemd"), [(0, False), (-1, False), (257, False), (65, True)])
def test_a_lab_has_some_hosts(hosts: int, systemd: bool) -> None:
    with pytest.raises(UsageError, match=f"1 to {64 if systemd else 256} hosts"):
        LabSpec(hosts, engine="sim", systemd=systemd)


def test_hosts_of_a_large_lab_have_addresses_of_their_own() -> None:
    found = [place(f"lab{n}", n) for n in (1, 249, 250, 256)]
    assert [h.address for h in found] == ["127.0.1.2", "127.0.1.250", "127.0.2.1", "127.0.2.7"]


def test_a_recorded_host_runs_no_real_engine() -> None:
    with pytest.raises(UsageError, match="no GPU behind it"):
        LabSpec(1, "pcie", "sglang-cpu")


def test_state_is_read_back_as_written() -> None:
    host = LabHost("lab1", "127.0.1.2", 2222, 30000)
    state = LabState(LabSpec(1, "cpu", "sim"), (host,), True, ("/run/sshd",))
    assert LabState.load(state.dump()) == state


@pytest.mark.parametrize("text", ["", "{", "{}", '{"spec": {"hosts": 1}}'])
def test_a_half_written_state_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        LabState.load(text)


def test_paths_lie_below_one_folder(tmp_path: Path) -> None:
    paths = LabPaths(tmp_path / "lab")
    for path in (paths.state, paths.inventory, paths.ssh_config, paths.known_hosts, paths.key,
                 paths.engine_dir("lab1")):  # fmt: skip
        assert paths.dir in path.parents


def test_places_are_apart() -> None:
    found: list[LabHost] = []
    for i in range(1, 9):
        found.append(place(f"lab{i}", i, {p for h in found for p in (h.ssh_port, h.service_port)}))
    ports = [p for h in found for p in (h.ssh_port, h.service_port)]
    assert len(set(ports)) == len(ports)
    assert all(h.address.startswith("127.") for h in found)
    assert max(ports) < 32768  # clients are given higher ones
    assert free_ports(range(20000, 30000))[0] >= 30000


def test_a_hosts_sshd_keeps_the_port_of_its_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another lab comes up while the service is not: it must not take that number."""
    one = place("lab1", 1)
    assert (one.ssh_port % 2, one.service_port) == (0, one.ssh_port + 1)
    # All that another lab may choose from: this host's pair, and one other.
    other = next(p for p in range(30000, 31998, 2) if p != one.ssh_port and _nobody(p))
    choice = iter([one.ssh_port, one.ssh_port, other])
    monkeypatch.setattr(secrets, "randbelow", lambda _: (next(choice) - lab_host._PORTS.start) // 2)
    with socket.create_server((one.address, one.ssh_port)):
        assert free_ports() == (other, other + 1)
    assert next(choice, None) is None, "it was offered the pair that is held"


def test_a_pair_whose_second_port_is_held_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports()
    with socket.create_server(("127.0.0.3", second)):
        monkeypatch.setattr(secrets, "randbelow", lambda _: (first - lab_host._PORTS.start) // 2)
        with pytest.raises(DdopsError, match="no two free ports"):
            free_ports()


def _nobody(port: int) -> bool:
    return lab_host._free(port) and lab_host._free(port + 1)


@pytest.fixture
def tagged(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        DEAF, env={**os.environ, "DDOPS_LAB": str(tmp_path)}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_process_is_the_labs_by_its_tag_alone(
    tmp_path: Path, tagged: subprocess.Popen[bytes]
) -> None:
    other = subprocess.Popen(SLEEP, env={**os.environ, "DDOPS_LAB": f"{tmp_path}-2"})
    try:
        assert lab_processes(tmp_path) == [tagged.pid]
    finally:
        other.kill()
        other.wait()


def test_what_ignores_term_is_killed(tmp_path: Path, tagged: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    left = end_all(lambda: lab_processes(tmp_path) if tagged.poll() is None else [], grace_s=0.3)
    assert left == []
    assert tagged.wait() == -signal.SIGKILL
    assert 0.2 < time.monotonic() - began < 5


def test_what_cannot_be_ended_is_named() -> None:
    told: list[float] = []
    assert end_all(lambda: [2**22 + 1], grace_s=0.1, sleep=told.append) == [2**22 + 1]
    assert told


def test_descendants_are_found_without_a_tag() -> None:
    child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time;"
    child += "time.sleep(60)']); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    try:
        assert set(with_descendants([parent.pid])) == {parent.pid, grandchild}
    finally:
        os.kill(grandchild, signal.SIGKILL)
        parent.communicate()
