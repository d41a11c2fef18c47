#!/usr/bin/env python3
"""A server that streams tokens on time and writes down what it really did; the truth of load_*.py.

    load_mock.py PORT TRUTH_FILE --gap-ms 10 --ttft-ms 50 --tokens 200 --each 1

One thread, epoll, prebuilt chunks, no spinning: it sleeps until the next chunk is due. Speaks
SGLang's /generate and the OpenAI routes, streaming only, with counts. For each answer it keeps, in
ns of CLOCK_REALTIME: when the request's last segment reached the kernel (`came`, by the kernel's
stamp), when this program had read it (`arrived`), when the first chunk was due (`start`), and its
look at the clock right before each chunk was handed to the kernel (`at`) and right after the first
one (`by`). `POST /truth` writes them to TRUTH_FILE and begins anew.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ddops.hostside.load.stamps import ANCILLARY, Warm, ask_for_stamps, stamp_of

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"data: [DONE]\n\n"
KINDS = {"/generate": "native", "/v1/completions": "text", "/v1/chat/completions": "chat"}


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def events(kind: str, tokens: int, each: int) -> list[bytes]:
    """All chunks of an answer, made once."""
    counts = [*range(each, tokens, each), tokens]
    return [framed(b"data: " + json.dumps(event(kind, c, each, c == tokens)).encode() + b"\n\n")
            for c in counts]  # fmt: skip


def event(kind: str, count: int, each: int, last: bool) -> dict[str, object]:
    words = " word" * each
    usage = {"prompt_tokens": 8, "completion_tokens": count, "total_tokens": 8 + count}
    if kind == "native":
        reason = {"type": "length", "length": count} if last else None
        meta = {"id": "m", "finish_reason": reason, "prompt_tokens": 8, "completion_tokens": count,
                "cached_tokens": 0, "weight_version": "mock", "num_retractions": 0}  # fmt: skip
        return {"text": words, "output_ids": [7] * each, "meta_info": meta}
    finish = "length" if last else None
    choice: dict[str, object] = {"index": 0, "finish_reason": finish, "logprobs": None}
    if kind == "chat":
        choice["delta"] = {"role": "assistant", "content": words}
        name = "chat.completion.chunk"
    else:
        choice["text"] = words
        name = "text_completion"
    return {"id": "m", "object": name, "created": 1, "model": "mock", "choices": [choice],
            "usage": usage}  # fmt: skip


class Answer:
    __slots__ = ("arrived", "asked", "at", "by", "came", "chunks", "place", "start")

    def __init__(self, came: int, arrived: int, start: int, chunks: list[bytes]) -> None:
        self.came = came
        self.arrived = arrived
        self.start = start
        self.chunks = chunks
        self.place = 0
        self.asked = ""
        self.by = 0
        self.at: list[int] = []


class Mock:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.gap = int(args.gap_ms * args.each * 1e6)
        self.ttft = int(args.ttft_ms * 1e6)
        self.made = {k: events(k, args.tokens, args.each) for k in ("native", "text", "chat")}
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", args.port))
        self.listener.listen(4096)
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)
        self.clients: dict[int, tuple[socket.socket, bytearray]] = {}
        self.due: list[tuple[int, int, int]] = []
        self.answers: dict[int, Answer] = {}
        self.rows: list[dict[str, object]] = []
        self.running = self.most = self.number = 0

    def run(self) -> None:
        while True:
            now = time.time_ns()
            wait = -1.0 if not self.due else max(0.0, (self.due[0][0] - now) / 1e9)
            # epoll counts in milliseconds and rounds up: a chunk may be a millisecond late, and
            # is written down as late as it was.
            for fd, mask in self.epoll.poll(wait):
                if fd == self.listener.fileno():
                    self.accept()
                elif mask & (select.EPOLLHUP | select.EPOLLERR):
                    self.drop(fd)
                else:
                    self.read(fd)
            self.write()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except BlockingIOError:
                return
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(client)
            self.clients[client.fileno()] = (client, bytearray())
            self.epoll.register(client.fileno(), select.EPOLLIN)

    def drop(self, fd: int) -> None:
        client, _ = self.clients.pop(fd)
        self.epoll.unregister(fd)
        client.close()
        if self.answers.pop(fd, None) is not None:
            self.running -= 1

    def read(self, fd: int) -> None:
        client, buffer = self.clients[fd]
        try:
            data, ancillary, _, _ = client.recvmsg(1 << 16, ANCILLARY)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(fd)
            return
        buffer += data
        came = stamp_of(ancillary)
        for method, path, body in requests(buffer):
            self.ask(fd, client, method, path, body, came)

    def ask(
        self, fd: int, client: socket.socket, method: str, path: str, body: bytes, came: int
    ) -> None:
        now = time.time_ns()
        if path in KINDS and method == "POST":
            self.number += 1
            stagger = (self.number * 37 % 100) * 100_000  # up to 10 ms, so that waves spread
            answer = Answer(came, now, now + self.ttft + stagger, self.made[KINDS[path]])
            answer.asked = prompt_of(body)
            client.send(HEAD)
            self.answers[fd] = answer
            heapq.heappush(self.due, (answer.start, fd, id(answer)))
            self.running += 1
            self.most = max(self.most, self.running)
            return
        client.send(self.other(path))

    def other(self, path: str) -> bytes:
        if path == "/truth":
            self.flush()
        value: dict[str, object] = {"weight_version": "mock", "version": "0", "object": "list",
                                    "data": [{"id": "mock", "object": "model"}]}  # fmt: skip
        body = json.dumps(value).encode()
        kind = b"application/json"
        if path == "/metrics":
            body, kind = b"sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n", b"text/plain"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
        return head % (kind, len(body)) + body

    def flush(self) -> None:
        partial = Path(self.args.truth + ".partial")
        text = json.dumps({"most": self.most, "answers": self.rows})
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.args.truth)
        self.rows, self.most = [], 0

    def write(self) -> None:
        now = time.time_ns()
        while self.due and self.due[0][0] <= now:
            _, fd, mark = heapq.heappop(self.due)
            answer = self.answers.get(fd)
            if answer is None or id(answer) != mark:
                continue  # the client went away
            self.send(fd, answer)
            now = time.time_ns()

    def send(self, fd: int, answer: Answer) -> None:
        client = self.clients[fd][0]
        last = answer.place + 1 == len(answer.chunks)
        answer.at.append(time.time_ns())
        try:
            client.send(answer.chunks[answer.place])
            answer.by = answer.by or time.time_ns()
            if last:
                client.send(framed(END) + b"0\r\n\r\n")
        except OSError:
            self.drop(fd)
            return
        answer.place += 1
        if last:
            self.running -= 1
            del self.answers[fd]
            self.rows.append({"asked": answer.asked, "came": answer.came,
                              "arrived": answer.arrived, "by": answer.by,
                              "start": answer.start, "at": answer.at})  # fmt: skip
            return
        heapq.heappush(self.due, (answer.start + answer.place * self.gap, fd, id(answer)))


def prompt_of(body: bytes) -> str:
    """The text that was asked, by which a reader of the truth finds its request again."""
    value = json.loads(body)
    messages = value.get("messages")
    return str(messages[-1]["content"] if messages else value.get("text", value.get("prompt")))


def requests(buffer: bytearray) -> Iterator[tuple[str, str, bytes]]:
    """Whole requests at the front of a buffer, taken out of it."""
    while True:
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        first, *lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
        fields = {n.strip().lower(): v.strip() for n, _, v in (x.partition(":") for x in lines)}
        length = int(fields.get("content-length", "0"))
        if len(buffer) < end + 4 + length:
            return
        body = bytes(buffer[end + 4 : end + 4 + length])
        del buffer[: end + 4 + length]
        method, path, *_ = first.split(" ")
        yield method, path.partition("?")[0], body


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("truth")
    parser.add_argument("--gap-ms", type=float, default=10.0)
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--core", type=int)
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    warm = Warm()
    if not warm.works:
        print("the kernel gives no receive timestamps: " + warm.why, file=sys.stderr)
        return 69
    Mock(args).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
