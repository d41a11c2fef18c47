"""Running a runbook: step after step, each journaled before and after, stopping at any doubt.

    skip_if -> require -> begun -> do -> verify -> done

Nothing is done unless the journal says first that it will be. A step that was cut short is done
again where that is the same as once; a shell step with effects only when a person says so.
Conditions that are not known stop the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddops.deploy import Stop
from ddops.errors import (
    DdopsError,
    ExitCode,
    Interrupted,
    PendingError,
    RefusedError,
    UnreachableError,
)
from ddops.events import Level
from ddops.runbook.act import Doing, NeedsApproval, act, meaning
from ddops.runbook.bind import Bound, Instance
from ddops.runbook.conditions import Condition
from ddops.runbook.context import Context
from ddops.runbook.judge import Judged, Truth, together
from ddops.runbook.look import Looker
from ddops.runbook.steps import Action, Shell, WaitUntil, name_of
from ddops.runbook.story import OVER, StepState, Story, read_story
from ddops.runbook.timed import Overdue, in_time


@dataclass(slots=True)
class Run:
    """One run at work. The caller holds it (`hold.holding`)."""

    id: str
    bound: Bound
    context: Context
    by: str

    def go(self) -> None:
        """From where the journal is to the end. Raises what stopped it; the journal knows too."""
        try:
            for step in self.bound.steps:
                if self.context.stop.asked:
                    raise Interrupted(f"stopped by the user before {step.key}",
                                      next=f"ddops runbook resume {self.id}")  # fmt: skip
                self._one(step)
        except NeedsApproval as need:
            self._note("", "waiting")
            raise PendingError(
                f"run {self.id} waits for a person: {need.what}",
                next=f"ddops runbook approve {self.id}, then resume it",
            ) from need
        except DdopsError as error:
            self._note("", "failed", {"error": error.lines()})
            error.add_note(f"run {self.id} stopped; next: ddops runbook resume {self.id}")
            raise
        self._note("", "completed")

    # ---- one step

    def _one(self, step: Instance) -> None:
        story = self._story()
        state = story.of(step.key)
        if state in OVER:
            return
        self._tell(step, "in_progress")
        doubtful = step.key in story.meant and (state is StepState.CUT or step.key in story.unknown)
        if doubtful and self._found_done(step):
            return
        try:
            if self._skipped(step):
                return
            self._required(step)
            doing = self._doing(step, Stop())
            meant = story.meant[step.key] if doubtful else meaning(step.do, doing)
        except DdopsError as error:
            self._failed(step, error, begun=doubtful)
            raise
        approved = story.approved.get(step.key)
        self._note(step.key, "begun", meant, "in_progress", "")
        self._done(step, replace(doing, approved=approved, meant=meant, again=doubtful))

    def _done(self, step: Instance, doing: Doing) -> None:
        try:
            evidence = self._do(step, doing)
        except NeedsApproval as need:
            if not self._asked(step, need):
                raise
            self._done(step, replace(doing, approved=need.subject))
            return
        except DdopsError as error:
            self._failed(step, error)
            self._remedied(step, error)
            raise
        words = str(evidence.get("words", "done"))
        self._note(step.key, "done", evidence, "completed", words)
        self._tell(step, "completed", words)

    def _do(self, step: Instance, doing: Doing) -> Mapping[str, object]:
        """Do and verify, in the time there is."""
        stop = doing.stop

        def work() -> Mapping[str, object]:
            evidence = act(step.do, doing)
            seen = self._verified(step, stop)
            return {**evidence, **({"verified": [j.line for j in seen]} if seen else {})}

        ctx = self.context
        return in_time(work, limit_s=step.time_limit_s, whole=ctx.stop, stop=stop,
                       clock=ctx.clock, what=step.key)  # fmt: skip

    def _doing(self, step: Instance, stop: Stop) -> Doing:
        return Doing(self.context, stop, step.time_limit_s, step.lock_wait_s, self.by)

    def _verified(self, step: Instance, stop: Stop) -> list[Judged]:
        """What `verify` says must hold; a wait asks until it does."""
        while True:
            seen = self._judged(step.verify)
            if together(seen) is Truth.HOLDS:
                return seen
            if not isinstance(step.do, WaitUntil):
                bad = [j.line for j in seen if j.truth is not Truth.HOLDS]
                raise DdopsError(f"{step.key}: done, but not as it should be: {bad[0]}",
                                 why="; ".join(bad[1:]))  # fmt: skip
            if stop.wait(step.do.every_s):
                raise Interrupted(f"{step.key}: stopped while waiting: {seen[-1].line}")

    def _found_done(self, step: Instance) -> bool:
        """A step that was cut short. The product's own steps can be done again, and are; what a
        shell step did is asked of what it verifies."""
        if not isinstance(step.do, Shell) or "none" in step.do.effects:
            return False
        seen = self._judged(step.verify)
        if together(seen) is not Truth.HOLDS:
            raise RefusedError(
                f"{step.key}: it was cut short, and what it did is not known",
                why="what it verifies does not hold, and doing it twice may do harm",
                next=f"ddops runbook resume {self.id} --from {step.key}   # to do it again",
            )
        words = "was done when it was cut short"
        evidence = {"words": words, "verified": [j.line for j in seen]}
        self._note(step.key, "done", evidence, "completed", words)
        self._tell(step, "completed", words)
        return True

    def _skipped(self, step: Instance) -> bool:
        if not step.skip_if:
            return False
        seen = self._judged(step.skip_if)
        truth = together(seen)
        if truth is Truth.UNKNOWN:
            raise _unknown(step, "skip_if", seen)
        if truth is Truth.FAILS:
            return False
        words = f"skipped: {'; '.join(j.line for j in seen)}"
        self._note(step.key, "skipped", {"skip_if": [j.line for j in seen]}, "completed", words)
        self._tell(step, "completed", words)
        return True

    def _required(self, step: Instance) -> None:
        seen = self._judged(step.require)
        if any(j.truth is Truth.UNKNOWN for j in seen):
            raise _unknown(step, "require", seen)
        bad = [j.line for j in seen if j.truth is Truth.FAILS]
        if bad:
            raise RefusedError(f"{step.key} is not done: {bad[0]}", why="; ".join(bad[1:]))

    # ---- when it does not go well

    def _asked(self, step: Instance, need: NeedsApproval) -> bool:
        """Whether the person at the terminal said yes; else the journal waits for one."""
        evidence = {"asked": need.what, "subject": need.subject}
        self._note(step.key, "waiting", evidence, "blocked", f"waits for approval: {need.what}")
        self._tell(step, "blocked", f"waits for approval: {need.what}")
        confirm = self.context.confirm
        if confirm is None or not confirm(need.what):
            return False
        self._note(step.key, "approved", evidence, "in_progress", f"approved by {self.by}")
        return True

    def _failed(self, step: Instance, error: DdopsError, *, begun: bool = True) -> None:
        unknown = begun and isinstance(error, UnreachableError | Overdue)
        evidence = {"error": error.lines(), "code": int(error.exit_code), "unknown": unknown}
        words = "; ".join(error.lines()[:2])
        self._note(step.key, "failed", evidence, "blocked", words)
        self._tell(step, "blocked", words)

    def _remedied(self, step: Instance, error: DdopsError) -> None:
        """`on_failure`, unless the step may still be at work: then nothing is done beside it."""
        if isinstance(error, Overdue) and error.left:
            return
        for action in step.on_failure:
            self.context.say(f"{step.key} failed; on_failure: {name_of(action)}", Level.WARN)
            try:
                evidence = self._remedy(step, action)
            except DdopsError as second:
                error.add_note(f"on_failure of {step.key} failed too: {second}")
                evidence = {"error": second.lines()}
            self._note(step.key, "remedied", {"step": name_of(action), **evidence})
            if "error" in evidence:
                return

    def _remedy(self, step: Instance, action: Action) -> Mapping[str, object]:
        stop = Stop()  # what puts things back is not what the user wishes to stop
        doing = self._doing(step, stop)

        def work() -> Mapping[str, object]:
            return act(action, replace(doing, meant=meaning(action, doing)))

        return in_time(
            work, limit_s=step.time_limit_s, whole=Stop(), stop=stop,
            clock=self.context.clock, what=f"on_failure of {step.key}",
        )  # fmt: skip

    # ---- journal and words

    def _story(self) -> Story:
        with self.context.ledger() as book:
            return read_story(book.runbook_events(self.id), [s.key for s in self.bound.steps])

    def _note(
        self, step: str, state: str, evidence: Mapping[str, object] | None = None,
        status: str | None = None, words: str = "",
    ) -> None:  # fmt: skip
        with self.context.ledger() as book:
            book.add_runbook_event(
                self.id, step, state, by=self.by, evidence=evidence, status=status, words=words
            )

    def _judged(self, conditions: Sequence[Condition]) -> list[Judged]:
        return Looker(self.context).judge_all(conditions) if conditions else []

    def _tell(self, step: Instance, status: str, words: str = "") -> None:
        level = Level.WARN if status == "blocked" else Level.INFO
        self.context.say(task_line(step.content, step.priority, status, words), level)


def task_line(content: str, priority: str, status: str, words: str = "") -> str:
    """One task for people, at most 80 columns: content, priority, status; evidence below."""
    head = f"{status:<11} {priority:<6} "
    line = head + _cut(content, 80 - len(head))
    return f"{line}\n            {_cut(words, 68)}" if words else line


def _cut(text: str, room: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= room else text[: room - 3] + "..."


def _unknown(step: Instance, which: str, seen: Sequence[Judged]) -> DdopsError:
    """A condition that is not known: neither doing nor skipping would be right."""
    lost = [j.line for j in seen if j.truth is Truth.UNKNOWN]
    error = RefusedError(
        f"{step.key}: {which} is not known: {lost[0]}",
        why="; ".join([*lost[1:], "what is not known is never taken for true or false"]),
    )
    error.exit_code = ExitCode.REFUSED
    return error
