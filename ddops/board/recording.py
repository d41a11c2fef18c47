"""Recordings: what a poller heard, a JSON object a line, gzipped where the name ends in .gz.

The first line is the head: schema, when it began, and the hosts. Every other line is what was
heard, with its seconds since the beginning. All of it is redacted before it comes here.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ddops.board.fleet import Heard, Kind
from ddops.board.model import HostSpec, ServiceSpec
from ddops.board.routers import RouterSpec
from ddops.config.files import MISSHAPEN, parse_json, reason
from ddops.errors import DdopsError, UsageError

SCHEMA = "ddops.recording/1"
#: One line more than this is no recording of ours.
LONGEST = 16 << 20


@dataclass(frozen=True, slots=True)
class Recording:
    """Hosts, when it began, and what was heard, in order. `cut` says that its end is missing."""

    began: float
    hosts: tuple[HostSpec, ...]
    heard: tuple[Heard, ...]
    cut: bool = False
    routers: tuple[RouterSpec, ...] = ()

    @property
    def seconds(self) -> float:
        return self.heard[-1].at - self.began if self.heard else 0.0


class Recorder:
    """Writes one, from any thread. The file is new, mode 0600, and whole up to the last line."""

    def __init__(
        self, path: Path, hosts: Sequence[HostSpec], began: float,
        routers: Sequence[RouterSpec] = (),
    ) -> None:  # fmt: skip
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise UsageError(
                f"cannot record to {path}",
                why=error.strerror or str(error),
                next="name a file that is not there yet",
            ) from error
        raw = os.fdopen(descriptor, "wb")
        self._file = gzip.GzipFile(fileobj=raw, mode="wb") if path.suffix == ".gz" else raw
        self._raw = raw
        self._began = began
        self._lock = threading.Lock()
        head = {"schema": SCHEMA, "at": began, "hosts": [asdict(h) for h in hosts]}
        self._put({**head, "routers": [asdict(r) for r in routers]})

    def __call__(self, heard: Heard) -> None:
        t = round(heard.at - self._began, 3)
        with self._lock:
            if not self._raw.closed:
                self._put({"t": t, "host": heard.host, heard.kind.value: heard.payload})

    def close(self) -> None:
        with self._lock:
            self._file.close()
            self._raw.close()

    def _put(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")


def read_recording(path: Path) -> Recording:
    """Read one whole. A last line that was cut off is left out; anything else is an error."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            lines = _lines(gzip.GzipFile(fileobj=raw) if zipped else raw)
            return _recording(list(lines))
    except (*MISSHAPEN, zlib.error) as error:
        raise UsageError(
            f"{path} is no recording of a fleet",
            why=reason(error),
            next="make one: ddops board --record FILE",
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=reason(error), next=f"ls -l {path}") from error


def _lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    try:
        while line := file.readline(LONGEST):
            if len(line) >= LONGEST:
                raise ValueError("a line is too long")
            yield line
    except EOFError:
        yield b"{"  # a gzip stream that was cut off: as a line that was


def _recording(lines: list[bytes]) -> Recording:
    if not lines:
        raise ValueError("it is empty")
    head = parse_json(lines[0])
    if head["schema"] != SCHEMA:
        raise ValueError(f"schema {head['schema']!r}, want {SCHEMA!r}")
    began, heard, cut = float(head["at"]), list[Heard](), False
    for number, line in enumerate(lines[1:], 2):
        try:
            row = parse_json(line)
        except ValueError as error:
            if number == len(lines):
                cut = True
                break
            raise ValueError(f"line {number}: {error}") from error
        kind = next((k for k in Kind if k.value in row), None)
        if kind is None or not isinstance(row[kind.value], dict):
            raise ValueError(f"line {number} holds nothing that was heard")
        heard.append(Heard(began + float(row["t"]), str(row["host"]), kind, row[kind.value]))
    hosts = tuple(_spec(h) for h in head["hosts"])
    # Recordings made before routers were watched have none.
    routers = tuple(_router(r) for r in head.get("routers", ()))
    return Recording(began, hosts, tuple(heard), cut, routers)


def _spec(raw: dict[str, Any]) -> HostSpec:
    services = tuple(ServiceSpec(**s) for s in raw["services"])
    return HostSpec(**{**raw, "groups": tuple(raw["groups"]), "services": services})


def _router(raw: dict[str, Any]) -> RouterSpec:
    pairs = tuple((str(host), str(url)) for host, url in raw["replicas"])
    return RouterSpec(**{**raw, "replicas": pairs})


class Replay:
    """A recording against a clock of its own, which stops where the recording ends."""

    def __init__(self, recording: Recording) -> None:
        if not recording.heard:
            raise DdopsError("the recording holds no look", next="record for a few seconds more")
        self.recording = recording
        self._next = 0

    @property
    def ended(self) -> bool:
        return self._next >= len(self.recording.heard)

    def now(self, elapsed_s: float) -> float:
        """The recording's own time after so many seconds."""
        return self.recording.began + min(elapsed_s, self.recording.seconds)

    def due(self, elapsed_s: float) -> Iterator[Heard]:
        """What was heard up to then and was not given out yet."""
        until = self.now(elapsed_s)
        while not self.ended and self.recording.heard[self._next].at <= until:
            self._next += 1
            yield self.recording.heard[self._next - 1]
