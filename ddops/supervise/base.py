"""What a supervisor promises."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from ddops.model import State


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What the supervisor says of a service; `word` is its own name for it."""

    state: State
    word: str
    why: str = ""
    left: tuple[int, ...] = ()


class Supervisor(Protocol):
    """Starts and stops one service on one host. Calls are idempotent."""

    def start(self, service: str) -> ServiceState:
        """Start what `current` names. Returns at once; readiness is for the gates."""
        ...

    def stop(self, service: str) -> ServiceState:
        """Stop it and everything it started; `left` names what could not be ended."""
        ...

    def status(self, service: str) -> ServiceState: ...


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
