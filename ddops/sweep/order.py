"""Which server starts a sweep still needs, and in what order. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """One server start of one arm, and the levels that still lack a run on a start of its own."""

    arm: str
    round: int
    levels: tuple[int, ...]


def remaining(
    have: Mapping[str, Mapping[int, int]], levels: Sequence[int], launches: int
) -> dict[str, dict[int, int]]:
    """Starts each arm's level still lacks; `have` counts those with a valid run."""
    return {
        arm: {level: max(0, launches - done.get(level, 0)) for level in levels}
        for arm, done in have.items()
    }


def starts(lack: Mapping[str, Mapping[int, int]], seed: int) -> list[Start]:
    """Rounds over all arms that lack something, each round in an order of its own.

    Arms alternate, so that a machine that drifts in the course of hours drifts under all of them;
    no arm follows itself where another one is left.
    """
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    rounds = max((n for of in lack.values() for n in of.values()), default=0)
    out: list[Start] = []
    for number in range(1, rounds + 1):
        batch = []
        for arm, of in lack.items():
            levels = tuple(level for level, n in of.items() if n >= number)
            if levels:
                batch.append(Start(arm, number, levels))
        rng.shuffle(batch)
        if out and len(batch) > 1 and batch[0].arm == out[-1].arm:
            batch.append(batch.pop(0))
        out += batch
    return out
