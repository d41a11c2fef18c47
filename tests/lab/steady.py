"""A client that sends at a constant rate, whatever comes back: four streams, then a whole answer.

Five is no multiple of three or four: a router that goes round its replicas gives each of them both.
A request counts as served when all its tokens came and, of a stream, its last word too. Nothing is
tried twice.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sent:
    """One request. `version` is the start that answered; `why` is empty where it was served."""

    at: float
    seconds: float
    streamed: bool
    version: str = ""
    why: str = ""


@dataclass
class Steady:
    """`rate` requests a second of `tokens` tokens each, until `stop`."""

    port: int
    rate: float
    tokens: int
    sent: list[Sent] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def run(self) -> None:
        began, n = time.monotonic(), 0
        while not self._stop.wait(max(0.0, began + n / self.rate - time.monotonic())):
            one = threading.Thread(target=self._one, args=(n,), daemon=True)
            one.start()
            self._threads.append(one)
            n += 1

    def stop(self) -> None:
        """No more requests; those under way come to their end."""
        self._stop.set()
        for one in self._threads:
            one.join(60)

    @property
    def failed(self) -> list[Sent]:
        return [s for s in self.sent if s.why]

    def versions(self) -> Counter[str]:
        return Counter(s.version for s in self.sent if not s.why)

    def _one(self, n: int) -> None:
        at, streamed = time.monotonic(), n % 5 < 4
        try:
            version, why = self._ask(streamed), ""
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as error:
            version, why = "", f"{type(error).__name__}: {error}"
        self.sent.append(Sent(at, time.monotonic() - at, streamed, version, why))

    def _ask(self, streamed: bool) -> str:
        """Which start answered; an error says what was wrong with the answer."""
        sampling = {"max_new_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
        body = {"text": os.urandom(8).hex(), "sampling_params": sampling, "stream": streamed}
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            head = {"Content-Type": "application/json"}
            client.request("POST", "/generate", json.dumps(body), head)
            answer = client.getresponse()
            text = answer.read().decode()
        finally:
            client.close()
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}: {text[:200]}")
        if streamed:
            *_, last, end = [x.removeprefix("data: ") for x in text.split("\n\n") if x]
            if end != "[DONE]":
                raise ValueError("the stream has no end")
            text = last
        meta = json.loads(text)["meta_info"]
        if meta["completion_tokens"] != self.tokens:
            raise ValueError(f"{meta['completion_tokens']} of {self.tokens} tokens")
        return str(meta["weight_version"])


@contextmanager
def steady(port: int, rate: float, tokens: int) -> Iterator[Steady]:
    """Traffic for the length of a block."""
    made = Steady(port, rate, tokens)
    sender = threading.Thread(target=made.run, daemon=True)
    sender.start()
    try:
        yield made
    finally:
        made.stop()
        sender.join(60)
