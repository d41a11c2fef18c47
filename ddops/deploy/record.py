"""What a deploy writes down, in the ledger here and in the journal on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ddops.clock import Clock, SystemClock
from ddops.events import Event, Level, Reporter
from ddops.gates import Launch
from ddops.ledger import Ledger, Outcome
from ddops.model import GateResult
from ddops.probe import Facts


@dataclass(slots=True)
class Recorder:
    """One deployment's rows. `journal` writes the same lines on the host itself.

    A row that is `soon` followed by another, with nothing done on the host between them, waits
    for that one and goes to the host's journal with it. Here each row is written at once.
    """

    ledger: Ledger
    op_id: str
    service: str
    host: str
    release: str
    report: Reporter
    journal: Callable[[Sequence[Mapping[str, object]]], None]
    clock: Clock = field(default_factory=SystemClock)
    #: On the way back: what cannot be written is said, and what serves is not given up for it.
    leaving: bool = False
    _waiting: list[Mapping[str, object]] = field(default_factory=list)

    def locked(self, committed: str | None) -> None:
        """The first row. The host's journal is told what its link says passed last: a run that
        was killed behind its commit has not written that itself."""
        self._ledger_row("locked", Outcome.OK, {"committed": committed})
        self._journal_row("locked", Outcome.OK, {"committed": committed})

    def ok(self, state: str, evidence: Mapping[str, object], *, soon: bool = False) -> None:
        self._row(state, Outcome.OK, evidence, soon=soon)

    def skip(self, state: str, why: str) -> None:
        self._row(state, Outcome.SKIP, {"why": why})

    def fail(self, state: str, why: str, evidence: Mapping[str, object]) -> None:
        self._row(state, Outcome.FAIL, {"why": why, **evidence})

    def give_up(self, state: str, why: str, evidence: Mapping[str, object]) -> None:
        """`fail` on a way out: what cannot be written is said, and hides no error."""
        self._try(state, lambda: self._row(state, Outcome.FAIL, {"why": why, **evidence}))

    def back(self, release: str | None) -> None:
        """`restored`, on a way out too."""
        self._try("restored", lambda: self._row("restored", Outcome.OK, {"serves": release}))

    def committed(self) -> None:
        """The last row; the link on the host has moved already, whatever becomes of this."""
        evidence = {"release": self.release}
        self._try("committed", lambda: self._row("committed", Outcome.OK, evidence))

    def unknown(self, state: str, why: str) -> None:
        """Here only: the host cannot be reached to be told."""
        self._try(state, lambda: self._ledger_row(state, Outcome.UNKNOWN, {"why": why}))

    def _try(self, state: str, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            self.report.emit(
                Event("record", f"{state} is not on record: {error}", self.host, Level.WARN)
            )

    def facts(self, facts: Facts) -> None:
        self.ledger.add_facts(
            self.host, dict(facts.raw), digest=facts.digest, simulated=facts.simulated
        )

    def launch(self, launch: Launch, digest: str) -> None:
        def write() -> None:
            self.ledger.add_launch(
                launch.nonce,
                deployment=self.op_id,
                host=self.host,
                release=digest,
                started=datetime.fromtimestamp(launch.started, UTC),
            )

        self._must(f"the start {launch.nonce}", write)

    def gates(self, results: Sequence[GateResult], nonce: str | None) -> None:
        def write() -> None:
            with self.ledger.batch():
                for result in results:
                    self.ledger.add_gate(result, deployment=self.op_id, launch=nonce)

        self._must(", ".join(r.name for r in results), write)

    def _must(self, what: str, write: Callable[[], None]) -> None:
        if self.leaving:
            self._try(what, write)
        else:
            write()

    def _row(
        self, state: str, verdict: Outcome, evidence: Mapping[str, object], *, soon: bool = False
    ) -> None:
        self._must(state, lambda: self._ledger_row(state, verdict, evidence))
        self._journal_row(state, verdict, {}, soon=soon)

    def _journal_row(
        self, state: str, verdict: Outcome, more: Mapping[str, object], *, soon: bool = False
    ) -> None:
        self._waiting.append(
            {
                "at": self.clock.now().isoformat(timespec="seconds"),
                "op": self.op_id,
                "service": self.service,
                "release": self.release,
                "state": state,
                "verdict": verdict.value,
                **more,
            }
        )
        if not soon:
            rows = self._waiting[:]
            self._waiting.clear()  # lost with a host that is: they are on record here
            self.journal(rows)

    def _ledger_row(self, state: str, verdict: Outcome, evidence: Mapping[str, object]) -> None:
        n = self.ledger.add_transition(self.op_id, state, verdict, dict(evidence))
        self.report.emit(
            Event(
                "transition",
                f"{state}: {verdict.value}",
                self.host,
                Level.DETAIL,
                {"op": self.op_id, "n": n, "evidence": dict(evidence)},
            )
        )
