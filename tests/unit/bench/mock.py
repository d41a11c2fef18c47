"""A small server that answers as told and knows the truth: what ran, how many at once, when."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.unit.bench.support import DONE, END, HEAD, chunk, native

Answer = Callable[[int, dict[str, Any]], Iterator[tuple[float, bytes]]]


def tokens(count: int, gap_s: float = 0.0, first_s: float = 0.0) -> Answer:
    """`count` tokens, one an event."""

    def answer(_n: int, _body: dict[str, Any]) -> Iterator[tuple[float, bytes]]:
        for i in range(1, count + 1):
            more = {"finish_reason": {"type": "length"}} if i == count else {}
            yield (first_s if i == 1 else gap_s), native(i, **more)

    return answer


@dataclass
class Mock:
    """Answers POSTs with `answer`; `keep` False closes after each answer."""

    answer: Answer
    keep: bool = True
    accept_delay_s: float = 0.0
    status: int = 200
    version: str = "v"
    metrics: str = "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n"
    port: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    connections: int = 0
    running: int = 0
    most: int = 0
    close_idle_after: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.accept_delay_s:
                time.sleep(self.accept_delay_s)
            with self.lock:
                self.connections += 1
            threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer, served = b"", 0
        with client:
            try:
                while True:
                    while b"\r\n\r\n" not in buffer:
                        more = client.recv(1 << 16)
                        if not more:
                            return
                        buffer += more
                    head, _, buffer = buffer.partition(b"\r\n\r\n")
                    length = int(
                        head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0
                    )
                    while len(buffer) < length:
                        buffer += client.recv(1 << 16)
                    body, buffer = buffer[:length], buffer[length:]
                    if head.startswith((b"GET", b"POST /flush_cache")):
                        self._get(client, head.split()[1].decode())
                    else:
                        self._post(client, json.loads(body))
                        served += 1
                    if not self.keep or served == self.close_idle_after != 0:
                        return
            except OSError:
                return

    def _get(self, client: socket.socket, path: str) -> None:
        value: object = (
            {"weight_version": self.version} if path == "/model_info" else {"version": "x"}
        )
        data = self.metrics.encode() if path == "/metrics" else json.dumps(value).encode()
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))

    def _post(self, client: socket.socket, body: dict[str, Any]) -> None:
        with self.lock:
            n = len(self.seen)
            self.seen.append(body)
            self.arrived.append(time.monotonic_ns())
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            if self.status != 200:
                client.sendall(b"HTTP/1.1 %d x\r\nContent-Length: 2\r\n\r\nno" % self.status)
                return
            client.sendall(HEAD)
            for pause, data in self.answer(n, body):
                if pause:
                    time.sleep(pause)
                client.sendall(chunk(data))
            with self.lock:
                self.running -= 1
            client.sendall(chunk(DONE) + END)
        finally:
            if self.status != 200:
                with self.lock:
                    self.running -= 1


@contextmanager
def serving(mock: Mock) -> Iterator[Mock]:
    """The mock on a free port of loopback."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        mock.port = listener.getsockname()[1]
        threading.Thread(target=mock.serve, args=(listener,), daemon=True).start()
        yield mock
