"""Where the board's news come from: live hosts, or a recording played at its own pace."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ddops.board.fleet import Heard, Kind
from ddops.board.model import HostSpec
from ddops.board.poller import Poller
from ddops.board.recording import Recorder, Replay
from ddops.board.routers import RouterSpec


class Source(Protocol):
    """What the board needs of either. `drain` never waits."""

    @property
    def hosts(self) -> Sequence[HostSpec]: ...

    @property
    def routers(self) -> Sequence[RouterSpec]: ...

    @property
    def label(self) -> str:
        """What stands in the head of the board; empty for a live one."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def now(self) -> float: ...

    def drain(self) -> Iterator[Heard]: ...

    def look_now(self, host: str) -> None: ...


class Live:
    """Hosts that are asked. `make` gets where to tell, and answers the poller."""

    label = ""

    def __init__(
        self,
        hosts: Sequence[HostSpec],
        make: Callable[[Callable[[Heard], None]], Poller],
        recorder: Recorder | None = None,
        routers: Sequence[RouterSpec] = (),
    ) -> None:
        self.hosts = hosts
        self.routers = routers
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._poller = make(self._heard.put)
        self._recorder = recorder

    def start(self) -> None:
        self._poller.start()

    def stop(self) -> None:
        self._poller.stop()
        if self._recorder is not None:
            self._recorder.close()

    def now(self) -> float:
        return time.time()

    def drain(self) -> Iterator[Heard]:
        while True:
            try:
                heard = self._heard.get_nowait()
            except queue.Empty:
                return
            if self._recorder is not None:
                self._recorder(heard)
            yield heard

    def look_now(self, host: str) -> None:
        self._poller.look_now(host)


class Replayed:
    """A recording. It begins where every host was heard of once, and stands still at its end."""

    def __init__(self, replay: Replay, label: str) -> None:
        self.hosts = replay.recording.hosts
        self.routers = replay.recording.routers
        self._replay = replay
        self._label = label
        self._began = time.monotonic()
        self._offset = _all_heard(replay)

    @property
    def label(self) -> str:
        return f"{self._label}, ended" if self._replay.ended else self._label

    def start(self) -> None:
        self._began = time.monotonic()

    def stop(self) -> None:
        """Nothing is running."""

    def now(self) -> float:
        return self._replay.now(self._elapsed())

    def drain(self) -> Iterator[Heard]:
        return self._replay.due(self._elapsed())

    def look_now(self, host: str) -> None:
        """A recording is not asked."""

    def _elapsed(self) -> float:
        return self._offset + time.monotonic() - self._began


def _all_heard(replay: Replay) -> float:
    """Seconds into the recording until each host, and the ledger, was heard of."""
    first: dict[str, float] = {}
    for heard in replay.recording.heard:
        if heard.kind is not Kind.DRIFT:
            first.setdefault(heard.host, heard.at)
    return max(first.values(), default=replay.recording.began) - replay.recording.began
