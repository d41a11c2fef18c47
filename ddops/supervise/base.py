"""What runs a service promises: a supervisor on its host, or an engine that places it on a node.

One protocol. Its simplest members keep a process running on the host itself; a member that has a
scheduler behind it is told what to run, and says where it runs. None of them schedules here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ddops.command import Cmd
from ddops.engines import LaunchSpec
from ddops.gates import Observation
from ddops.inventory.model import Host, Service
from ddops.model import State
from ddops.transport import Transport

Lookup = Callable[[str], Path]


@dataclass(frozen=True, slots=True)
class Order:
    """One release of one service, as it is handed to whoever runs it.

    `unit` is the release's systemd unit. Secrets are references here; values travel by file.
    """

    service: Service
    host: Host
    port: int
    digest: str
    launch: LaunchSpec
    unit: str


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What is said of a service by whoever runs it; `word` is its own name for it."""

    state: State
    word: str
    why: str = ""
    left: tuple[int, ...] = ()


class Renders(Protocol):
    """Knows what it would be handed."""

    def render(self, order: Order, lookup: Lookup) -> Mapping[str, str]:
        """The files that are handed over, text by name. Reads templates; asks nobody."""
        ...


class Orchestrator(Renders, Protocol):
    """Runs one service of one host. Calls are idempotent."""

    def stage(self, order: Order, lookup: Lookup) -> Mapping[str, object]:
        """Lay down what goes beside a staged release, and have it looked at: nothing is started.

        Raises RefusedError where it would not be taken. Returns what speaks for it.
        """
        ...

    def submit(self, service: str) -> ServiceState:
        """Start what `current` names. Returns at once; readiness is for the gates."""
        ...

    def status(self, service: str) -> ServiceState: ...

    def observe(self, service: str, port: int, *, http: bool = True) -> Observation:
        """Look once, where the engine runs. Raises when nothing could be seen."""
        ...

    def inside(self, service: str) -> Transport:
        """Runs commands where the engine runs: beside it, over its loopback."""
        ...

    def logs(self, service: str, limit: int) -> Mapping[str, Cmd]:
        """By file name, what prints the last `limit` bytes of what a person reads after a fault."""
        ...

    def cancel(self, service: str) -> ServiceState:
        """Stop it and everything it started; `left` names what could not be ended."""
        ...

    def forget(self, service: str) -> ServiceState:
        """Stop it, and leave nothing behind that would start it again."""
        ...

    def compare(self, order: Order, lookup: Lookup) -> Mapping[str, object]:
        """What is installed beside what the release wants: `installed`, `diff`, and more."""
        ...

    def endpoint(self, service: Service, port: int, seen: Observation | None) -> str:
        """Where it answers, as `host:port`; by what was seen, where it is not always the same."""
        ...


def read_state(
    answer: Mapping[str, object], up: Collection[object], down: Collection[object]
) -> ServiceState:
    """A supervisor's answer; `up` and `down` are its own words, any other one is unknown."""
    word = answer.get("state")
    left = answer.get("left")
    state = State.UP if word in up else State.DOWN if word in down else State.UNKNOWN
    return ServiceState(
        state,
        str(word or "absent"),
        str(answer.get("why") or ""),
        tuple(int(p) for p in left) if isinstance(left, list) else (),
    )
