"""Paths on a host, spelled in one place."""

from __future__ import annotations

from ddops.layout import HostLayout


def test_everything_of_a_host_lies_below_its_engine_folder() -> None:
    layout = HostLayout("/opt/ddops")
    service = layout.service("k26")
    digest = "ab" * 32
    paths = [layout.state, layout.hostside, layout.lib, layout.lock, layout.journal, layout.models,
             layout.supervisor_conf, layout.socket, layout.inputs(digest), layout.env(digest),
             service.current, service.committed, service.op_id, service.log, service.run,
             service.launch_record, service.program, service.release(digest)]  # fmt: skip
    assert all(p.startswith("/opt/ddops/") for p in paths)
    assert len(set(paths)) == len(paths)
    assert layout.env(digest) == f"/opt/ddops/env/{digest[:12]}"
    assert service.release(digest).endswith(f"/releases/{digest}")


def test_a_socket_whose_path_would_be_too_long_lies_elsewhere() -> None:
    short, long = HostLayout("/opt/ddops"), HostLayout("/data/" + "x" * 80)
    assert short.socket.startswith("/opt/ddops/")
    assert long.socket.startswith("/tmp/ddops-")
    assert len(long.socket) < 107
    assert long.socket == HostLayout("/data/" + "x" * 80).socket
    assert long.socket != HostLayout("/data/" + "y" * 80).socket


def test_the_limit_counts_bytes_not_letters() -> None:
    assert HostLayout("/data/" + "ä" * 40).socket.startswith("/tmp/ddops-")
