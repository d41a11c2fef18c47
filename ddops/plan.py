"""Typed steps: observe, plan, apply, verify. A plan is data; apply does exactly that plan.

Observing is the only way a step learns about the host, and planning is pure, so a dry run is
the same code path without `apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ddops.errors import DdopsError, Interrupted, RefusedError, UnreachableError
from ddops.events import Event, Level, Reporter
from ddops.model import digest


class Change(Enum):
    """What a step would do to the host."""

    NONE = "none"
    CREATE = "create"
    UPDATE = "update"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Proposal:
    """One step's plan: `lines` say what would change, for people to read."""

    change: Change
    lines: tuple[str, ...] = ()

    @property
    def pending(self) -> bool:
        return self.change is not Change.NONE


class Step(Protocol):
    """One thing a host must have. `apply` is idempotent and safe to run again after a kill."""

    @property
    def id(self) -> str: ...

    @property
    def title(self) -> str: ...

    def observe(self) -> Proposal: ...

    def apply(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps of one host with what each would do."""

    host: str
    rows: tuple[tuple[str, str, Proposal], ...]

    @property
    def pending(self) -> int:
        return sum(p.pending for _, _, p in self.rows)

    @property
    def digest(self) -> str:
        """Binds an apply to the plan that was shown."""
        return digest([[i, p.change.value, list(p.lines)] for i, _, p in self.rows])


def make_plan(host: str, steps: Sequence[Step]) -> Plan:
    """Observe every step. A host that cannot be reached gives UNKNOWN rows, not an error."""
    rows: list[tuple[str, str, Proposal]] = []
    lost: str | None = None
    for step in steps:
        if lost is None:
            try:
                rows.append((step.id, step.title, step.observe()))
                continue
            except UnreachableError as error:
                lost = error.what
        rows.append((step.id, step.title, Proposal(Change.UNKNOWN, (lost,))))
    return Plan(host, tuple(rows))


def apply_plan(
    plan: Plan,
    steps: Sequence[Step],
    *,
    report: Reporter,
    journal: Callable[[str, str], None],
    stopped: Callable[[], bool],
) -> int:
    """Do the plan's pending steps in order, verifying each; returns how many were done.

    A step that would now do what the plan did not show is refused: the host has moved on. Less to
    do than shown is fine (taking the lock makes a folder), and so is what earlier steps of the
    same plan made different.
    """
    done = 0
    for step, (step_id, title, proposal) in zip(steps, plan.rows, strict=True):
        if proposal.change is Change.UNKNOWN:
            raise RefusedError(
                f"{plan.host}: {title}: not known",
                why="; ".join(proposal.lines),
                next=f"ddops check {plan.host}",
            )
        if not proposal.pending:
            continue
        if stopped():
            raise Interrupted(
                f"{plan.host}: stopped by the user before: {title}",
                why=f"{done} steps were done and stay",
                next="run it again: it goes on from there",
            )
        now = step.observe()
        if not now.pending:
            continue
        if done == 0 and not set(now.lines) <= set(proposal.lines):
            raise RefusedError(
                f"{plan.host}: the host moved on since the plan was made ({step_id})",
                why="; ".join(now.lines),
                next="make the plan again",
            )
        report.emit(Event("step", f"{title} ...", plan.host, data={"step": step_id}))
        journal(step_id, "begin")
        step.apply()
        after = step.observe()
        if after.pending:
            raise DdopsError(
                f"{plan.host}: {title}: applied, but not there afterwards",
                why="; ".join(after.lines),
                next=f"ddops provision {plan.host} -v",
            )
        journal(step_id, "done")
        done += 1
        report.emit(Event("step", f"{title}: done", plan.host, Level.DETAIL, {"step": step_id}))
    return done
