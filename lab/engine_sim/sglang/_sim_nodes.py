"""Ranks of one engine wait for each other, as upstream's do at `--dist-init-addr`.

Rank 0 listens there until all have come; a follower tries until it is let in. From then on a rank
that goes takes the others along: a collective never ends without it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from sglang._sim_args import ServerArgs

TRY_S, LIMIT_S = 0.1, 120.0


def join(args: ServerArgs, stopping: threading.Event, lost: Callable[[], None]) -> None:
    """Return when all ranks are there, or when this process is stopping."""
    nodes, rank = int(args["nnodes"] or 1), int(args["node_rank"] or 0)
    if nodes < 2:
        return
    host, _, port = str(args["dist_init_addr"]).rpartition(":")
    address = (host, int(port))
    peers = _gather(address, nodes - 1, stopping) if rank == 0 else _reach(address, stopping)
    for peer in peers:
        threading.Thread(target=_watch, args=(peer, stopping, lost), daemon=True).start()


def _gather(
    address: tuple[str, int], followers: int, stopping: threading.Event
) -> list[socket.socket]:
    peers: list[socket.socket] = []
    with socket.create_server(address) as server:
        server.settimeout(TRY_S)
        while len(peers) < followers and not stopping.is_set():
            try:
                peers.append(server.accept()[0])
            except TimeoutError:
                continue
    for peer in peers:
        peer.sendall(b"go")
    return peers


def _reach(address: tuple[str, int], stopping: threading.Event) -> list[socket.socket]:
    end = time.monotonic() + LIMIT_S
    while not stopping.is_set() and time.monotonic() < end:
        try:
            peer = socket.create_connection(address, 1.0)
            peer.settimeout(LIMIT_S)
            if peer.recv(2) == b"go":
                return [peer]
        except OSError:
            stopping.wait(TRY_S)
    return []


def _watch(peer: socket.socket, stopping: threading.Event, lost: Callable[[], None]) -> None:
    peer.settimeout(None)
    try:
        gone = not peer.recv(1)
    except OSError:
        gone = True
    if gone and not stopping.is_set():
        lost()
