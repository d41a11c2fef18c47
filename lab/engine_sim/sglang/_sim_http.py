"""A small HTTP/1.1 server: a thread for each connection, keep-alive, chunked streams.

Own code rather than `http.server`, whose imports alone take longer than this whole engine
takes to listen.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Union

from sglang._sim_log import access, log

MAX_HEAD = 1 << 16
MAX_BODY = 1 << 26
REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 411: "Length Required", 413: "Content Too Large",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class DropConnection(Exception):
    """Raised inside an answer: close the connection where it stands."""


class BadRequest(Exception):
    """What was read is no request; `status` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(REASONS[status])
        self.status = status


@dataclass(frozen=True)
class Request:
    """One parsed request. `gone` says whether the client has closed its end."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    peer: str
    gone: Callable[[], bool]


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """An answer in server-sent events, each as the bytes that go out."""

    events: Generator[bytes, None, None]
    kind: str = "text/event-stream; charset=utf-8"


Answer = Union[Reply, Stream]  # noqa: UP007 - evaluated, and hosts may have 3.9
Handler = Callable[[Request], Answer]


class Server:
    """Listens, and answers with what the handler gives."""

    def __init__(self, host: str, port: int, handler: Handler, quiet: tuple[str, ...]) -> None:
        """Binds and listens. OSError when the address is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, port))
        self._socket.listen(1024)
        self._handler = handler
        self._quiet = quiet
        self._closed = False

    def start(self) -> None:
        """Accepts in the background."""
        threading.Thread(target=self._accept, daemon=True, name="accept").start()

    def close(self) -> None:
        """Takes no new connection; those at work go on."""
        self._closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        finally:
            self._socket.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, address = self._socket.accept()
            except OSError as error:
                if not self._closed:
                    log(f"accept failed: {error}")
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = f"{address[0]}:{address[1]}"
            threading.Thread(target=self._serve, args=(client, peer), daemon=True).start()

    def _serve(self, client: socket.socket, peer: str) -> None:
        reader = Reader(client)
        try:
            while self._one(client, reader, peer):
                pass
        except (OSError, DropConnection):
            return  # the client went away, or was to be dropped; either way it is closed below
        finally:
            client.close()

    def _one(self, client: socket.socket, reader: Reader, peer: str) -> bool:
        """Serves one request; whether the connection stays open."""
        try:
            request, keep = read_request(reader, peer)
        except BadRequest as error:
            client.sendall(render(Reply(error.status), keep=False))
            return False
        if request is None:
            return False
        try:
            answer = self._handler(request)
        except (OSError, DropConnection):
            raise
        except Exception as error:
            # A bug here must look like a bug: upstream's 500, and the reason in the log.
            log(f"Exception in ASGI application (sim): {type(error).__name__}: {error}")
            answer = Reply(500, b"Internal Server Error", "text/plain; charset=utf-8")
        status = answer.status if isinstance(answer, Reply) else 200
        if not (self._quiet and request.path.startswith(self._quiet)):
            line = f'{peer} - "{request.method} {request.path} HTTP/1.1" {status}'
            access(f"{line} {REASONS.get(status, '')}")
        if isinstance(answer, Stream):
            send_stream(client, answer, keep=keep)
        else:
            client.sendall(render(answer, keep=keep, head=request.method == "HEAD"))
        return keep


class Reader:
    """Buffered reads of one connection; what lies beyond a request stays for the next."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self._buffer = b""

    def until(self, mark: bytes, limit: int) -> bytes:
        """Up to and without the mark; empty when the client closed between requests."""
        while mark not in self._buffer:
            if len(self._buffer) > limit:
                raise BadRequest(413)
            more = self.client.recv(1 << 16)
            if not more:
                return b""
            self._buffer += more
        head, _, self._buffer = self._buffer.partition(mark)
        return head

    def exactly(self, count: int) -> bytes:
        parts = [self._buffer[:count]]
        self._buffer = self._buffer[count:]
        missing = count - len(parts[0])
        while missing > 0:
            more = self.client.recv(min(missing, 1 << 20))
            if not more:
                raise ConnectionResetError("closed inside a body")
            parts.append(more)
            missing -= len(more)
        return b"".join(parts)

    def gone(self) -> bool:
        """Whether the client closed; a pipelined request counts as presence."""
        try:
            return self.client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def read_request(reader: Reader, peer: str) -> tuple[Request | None, bool]:
    """The next request and whether to keep the connection; None when there is none."""
    head = reader.until(b"\r\n\r\n", MAX_HEAD).lstrip(b"\r\n")
    if not head:
        return None, False
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400)
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = read_chunks(reader)
    else:
        size = headers.get("content-length", "0")
        if not size.isdigit():
            raise BadRequest(400)
        if int(size) > MAX_BODY:
            raise BadRequest(413)
        if headers.get("expect", "").lower() == "100-continue":
            reader.client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = reader.exactly(int(size))
    wish = headers.get("connection", "").lower()
    keep = wish != "close" and (words[2] == "HTTP/1.1" or wish == "keep-alive")
    path = words[1].partition("?")[0]
    return Request(words[0], path, headers, body, peer, reader.gone), keep


def read_chunks(reader: Reader) -> bytes:
    """A chunked body; trailers are read and dropped."""
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            count = int(reader.until(b"\r\n", 64).split(b";")[0], 16)
        except ValueError:
            raise BadRequest(400) from None
        if count == 0:
            while reader.until(b"\r\n", MAX_HEAD):
                pass
            return b"".join(parts)
        size += count
        if size > MAX_BODY:
            raise BadRequest(413)
        parts.append(reader.exactly(count))
        reader.exactly(2)


def render(reply: Reply, *, keep: bool, head: bool = False) -> bytes:
    """The bytes of a whole answer."""
    lines = [f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Unknown')}"]
    lines += [f"content-length: {len(reply.body)}", "server: ddops-sim"]
    if reply.body:
        lines.append(f"content-type: {reply.kind}")
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if not keep:
        lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if head else reply.body)


def send_stream(client: socket.socket, stream: Stream, *, keep: bool) -> None:
    """Sends events as they come, each in one packet. DropConnection from inside ends it raw."""
    lines = ["HTTP/1.1 200 OK", f"content-type: {stream.kind}", "server: ddops-sim"]
    lines += ["cache-control: no-cache", "transfer-encoding: chunked"]
    if not keep:
        lines.append("connection: close")
    client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    try:
        for event in stream.events:
            client.sendall(b"%x\r\n%s\r\n" % (len(event), event))
    finally:
        stream.events.close()  # frees the request's place at once when the client went away
    client.sendall(b"0\r\n\r\n")
