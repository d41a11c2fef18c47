"""One release on several hosts: in waves, and never half of them by accident.

A wave that fails for more hosts than allowed ends the roll-out: no further wave begins, and the
hosts that have the new release already go back to what they served, so that the fleet is of one
kind again. `keep` leaves them as they are. A host that cannot be reached is unknown: it counts as
failed, and nobody claims to have brought it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ddops.deploy.run import Outcome
from ddops.errors import DdopsError

J = TypeVar("J")


class NotTried(DdopsError):
    """A host whose turn did not come; nothing on it was touched."""


class TakenBack(DdopsError):
    """A host that had the new release, and has been taken back to what it served before."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`batch` hosts at a time, None for all. `fail_percent` is of all hosts of the roll-out."""

    canary: bool = False
    batch: int | None = None
    fail_percent: float = 0.0
    keep: bool = False


def waves(items: Sequence[J], rules: Rules) -> list[list[J]]:
    """The canary alone, then batches; without rules one wave."""
    rest = list(items)
    out = []
    if rules.canary and len(rest) > 1:
        out.append([rest.pop(0)])
    size = rules.batch or len(rest) or 1
    return out + [rest[i : i + size] for i in range(0, len(rest), size)]


def too_many(failed: int, total: int, rules: Rules) -> bool:
    """Whether so many failures end the roll-out."""
    return failed > total * rules.fail_percent / 100


@dataclass(frozen=True, slots=True)
class RollOut(Generic[J]):
    """`outcomes` in the order of the hosts. `consistent` says that no host has another release
    than the rest: all new, or all as before."""

    outcomes: tuple[tuple[J, Outcome | Exception], ...]
    consistent: bool


def roll_out(
    jobs: Sequence[J],
    deploy: Callable[[Sequence[J]], Sequence[tuple[J, Outcome | Exception]]],
    back: Callable[[Sequence[J]], Sequence[tuple[J, Outcome | Exception]]],
    rules: Rules,
    say: Callable[[str], None],
) -> RollOut[J]:
    """Wave after wave. `deploy` and `back` do a wave side by side and answer for every job."""
    done: list[tuple[J, Outcome | Exception]] = []
    planned = waves(jobs, rules)
    for n, wave in enumerate(planned, 1):
        if len(planned) > 1:
            say(f"wave {n} of {len(planned)}: {len(wave)} of {len(jobs)} hosts")
        done += deploy(wave)
        failed = sum(isinstance(o, Exception) for _, o in done)
        if too_many(failed, len(jobs), rules):
            tried = len(done)
            done += [(j, NotTried("not tried: the roll-out had failed")) for j in jobs[tried:]]
            return _after_failure(done, back, rules, say)
    return RollOut(tuple(done), not any(isinstance(o, Exception) for _, o in done))


def _after_failure(
    done: list[tuple[J, Outcome | Exception]],
    back: Callable[[Sequence[J]], Sequence[tuple[J, Outcome | Exception]]],
    rules: Rules,
    say: Callable[[str], None],
) -> RollOut[J]:
    new = [j for j, o in done if isinstance(o, Outcome) and o.changed]
    served = any(isinstance(o, Outcome) and not o.changed for _, o in done)
    if not new or rules.keep:
        return RollOut(tuple(done), not new and not served)
    say(f"taking {len(new)} of {len(done)} hosts back to what they served")
    undone = dict(back(new))
    out: list[tuple[J, Outcome | Exception]] = []
    for job, outcome in done:
        if job not in undone:
            out.append((job, outcome))
            continue
        result = undone[job]
        out.append((job, result if isinstance(result, Exception) else TakenBack("taken back")))
    whole = all(isinstance(o, Outcome) for o in undone.values()) and not served
    return RollOut(tuple(out), whole)
