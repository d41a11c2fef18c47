"""Carries bytes and packets for a systemd lab: SSH from the machine's loopback into the lab's
network, and packets that shall take longer."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from collections import deque
from contextlib import suppress

_CHUNK = 1 << 16
_CONNECT_S = 20.0
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
#: Packets under way in one direction; more are lost, as in a full queue.
_QUEUE = 10_000


async def serve_tcp(listener: socket.socket, target: tuple[str, int]) -> None:
    """Accept on `listener`, for ever, and join each connection with one to `target`.

    The listener was made in the machine's network namespace, the other end lies in the lab's. A
    host that cannot be reached gets its caller a reset: to him it is as if nobody listened.
    """
    jobs: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    while True:
        near, _ = await loop.sock_accept(listener)
        job = asyncio.create_task(_join(near, target))
        jobs.add(job)
        job.add_done_callback(jobs.discard)


async def _join(near: socket.socket, target: tuple[str, int]) -> None:
    loop = asyncio.get_running_loop()
    with near, socket.socket() as far:
        for side in (near, far):
            side.setblocking(False)
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.wait_for(loop.sock_connect(far, target), _CONNECT_S)
        except (OSError, TimeoutError):
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        await asyncio.gather(_pump(near, far), _pump(far, near))


async def _pump(source: socket.socket, target: socket.socket) -> None:
    """One direction until its end; an end by error ends the other direction too."""
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(source, _CHUNK):
            await loop.sock_sendall(target, data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for side in (source, target):
            with suppress(OSError):  # not connected any more
                side.shutdown(socket.SHUT_RDWR)


class Delay:
    """Joins two TAP devices and holds each packet back for `ms` / 2 on its way.

    Kernels have netem for this, and some are built without it. Closing it removes the devices.
    """

    def __init__(self, near: str, far: str, ms: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._fds = (_tap(near), _tap(far))
        self.ms = ms
        for source, target in (self._fds, self._fds[::-1]):
            self._loop.add_reader(source, self._read, source, target, deque())

    def _read(self, source: int, target: int, queue: deque[tuple[float, bytes]]) -> None:
        with suppress(BlockingIOError):
            while True:
                packet = os.read(source, _CHUNK)
                if len(queue) < _QUEUE:
                    queue.append((self._loop.time() + self.ms / 2000, packet))
                    if len(queue) == 1:
                        self._loop.call_at(queue[0][0], self._write, target, queue)

    def _write(self, target: int, queue: deque[tuple[float, bytes]]) -> None:
        if target not in self._fds:
            return  # closed while a packet was under way
        while queue and queue[0][0] <= self._loop.time():
            with suppress(OSError):  # closed, down, or its queue is full: the packet is lost
                os.write(target, queue[0][1])
            queue.popleft()
        if queue:
            self._loop.call_at(queue[0][0], self._write, target, queue)

    def close(self) -> None:
        for fd in self._fds:
            self._loop.remove_reader(fd)
            os.close(fd)
        self._fds = (-1, -1)


def _tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return fd
