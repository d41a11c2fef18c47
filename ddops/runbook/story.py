"""What a run's journal comes to: each step's state, what it waits for, how the run stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ddops.ledger import JournalEntry


class StepState(StrEnum):
    """A step as the journal leaves it. CUT: begun, and no word of an end."""

    PENDING = "pending"
    CUT = "cut short"
    WAITING = "waiting"
    FAILED = "failed"
    SKIPPED = "skipped"
    DONE = "done"


class RunState(StrEnum):
    """A run as the journal leaves it. OPEN: at work, or left behind by one that was killed."""

    OPEN = "open"
    WAITING = "waiting"
    FAILED = "failed"
    COMPLETED = "completed"
    ABORTED = "aborted"


#: Steps that a resume leaves alone.
OVER = (StepState.DONE, StepState.SKIPPED)
_STEP = {
    "begun": StepState.CUT, "skipped": StepState.SKIPPED, "done": StepState.DONE,
    "failed": StepState.FAILED, "waiting": StepState.WAITING,
}  # fmt: skip
_RUN = {
    "started": RunState.OPEN, "resumed": RunState.OPEN, "waiting": RunState.WAITING,
    "completed": RunState.COMPLETED, "failed": RunState.FAILED, "aborted": RunState.ABORTED,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Story:
    """`asked` is what a waiting step asks, with its subject; `approved` the subject that was
    said yes to, by step. `unknown`: failed steps of which nobody knows what they did.
    `meant`: what each step was begun with last."""

    run: RunState
    steps: Mapping[str, StepState] = field(default_factory=dict)
    asked: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    approved: Mapping[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    meant: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def of(self, key: str) -> StepState:
        return self.steps.get(key, StepState.PENDING)

    @property
    def waiting(self) -> str | None:
        """The step that waits for a person and was not approved yet."""
        for key, state in self.steps.items():
            if state is StepState.WAITING and self.approved.get(key) != self.asked[key][1]:
                return key
        return None


def read_story(events: Sequence[JournalEntry], order: Sequence[str]) -> Story:
    """Replay the journal. `order` is the steps' order: a resume from a step forgets what is
    at it and behind it."""
    run, steps = RunState.OPEN, dict[str, StepState]()
    asked, approved, unknown = dict[str, tuple[str, str]](), dict[str, str](), set[str]()
    meant: dict[str, Mapping[str, object]] = {}
    for e in events:
        if e.step == "":
            run = _RUN[e.state]
            start = e.evidence.get("from")
            if e.state == "resumed" and isinstance(start, str) and start in order:
                for key in order[order.index(start) :]:
                    steps.pop(key, None)
                    approved.pop(key, None)
                    unknown.discard(key)
            continue
        if e.state == "waiting":
            asked[e.step] = (str(e.evidence.get("asked")), str(e.evidence.get("subject")))
        if e.state == "approved":
            approved[e.step] = str(e.evidence.get("subject"))
        if e.state == "begun":
            meant[e.step] = e.evidence
        if e.state in _STEP:
            steps[e.step] = _STEP[e.state]
            unknown.discard(e.step)
            if e.evidence.get("unknown") is True:
                unknown.add(e.step)
    return Story(run, steps, asked, approved, frozenset(unknown), meant)
