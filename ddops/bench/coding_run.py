"""`ddops bench coding`: ask a deployed server the tasks, grade its replies, store verdict and rows.

The reference is the newest valid coding run of the same tasks, asked the same way, on an
autoregressive start of the same model: withdraw that run, and the candidate has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddops.bench import coding_gate, record
from ddops.bench.answer import Load
from ddops.bench.coding import (
    Answer,
    CodingResult,
    Graded,
    Runner,
    grade,
    local,
    preflight,
    to_samples,
)
from ddops.bench.coding_extract import Rule
from ddops.bench.coding_tasks import Task, TaskSet
from ddops.bench.plan import LoadPlan, Request
from ddops.bench.target import Proof, Target, by, device_of, prove, unknown_start
from ddops.errors import RefusedError
from ddops.ledger import Cell, Identity, Ledger, NewRun, NewSample, Run, Status
from ddops.model import GateResult, Verdict

#: Long enough that a solution is seldom cut; a reply that is cut is marked.
MAX_TOKENS = 1024
CONCURRENCY = 8
TIMEOUT_S = 300.0
ROUTES = ("chat", "generate")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one coding run came to."""

    run: str
    gate: GateResult
    result: CodingResult
    reference: str | None


@dataclass(frozen=True, slots=True)
class CodingBench:
    """Asks and judges one target. `chat` asks in words, `generate` lets the prompt be continued."""

    target: Target
    ledger: Ledger
    tasks: TaskSet
    route: str = "chat"
    runner: Runner = local

    def run(self) -> Outcome:
        """Preflight, ask, grade, judge, store. Raises RefusedError before anything is asked."""
        ready = preflight(self.tasks, self.runner)
        proof = prove(self.target, self.ledger)
        load = self.target.run(self.plan(proof))
        if load.refused:
            raise RefusedError(
                f"{self.target.host.name}: the tasks were not asked",
                why=load.refused,
                next=f"ddops status {self.target.host.name}",
            )
        result = grade(self.tasks, self.answers(load, proof), self.runner, ready)
        cell = self.cell(proof)
        speculative = self.target.profile.spec.algorithm != "none"
        reference = self.reference(cell) if speculative else None
        gate = self.judge(result, reference, speculative=speculative)
        run = self.store(proof, cell, load, result, gate)
        return Outcome(run, gate, result, reference.id if reference else None)

    # ---- asking

    def plan(self, proof: Proof) -> LoadPlan:
        """All tasks, greedily, a few at once."""
        info = proof.seen.server_info.values if proof.seen.server_info else {}
        most = info.get("max_running_requests")
        at_once = min(CONCURRENCY, most) if isinstance(most, int) and most > 0 else CONCURRENCY
        native = self.route == "generate"
        common: dict[str, object] = {"stream": True}
        if native:
            common["sampling_params"] = {"temperature": 0, "max_new_tokens": MAX_TOKENS}
        else:
            common |= {
                "model": self.target.model,
                "stream_options": {"include_usage": True},
                "temperature": 0,
                "max_tokens": MAX_TOKENS,
            }
        return LoadPlan(
            where=self.target.where(proof.weight_version),
            route=self.route,
            common=common,
            requests=[Request(id=t.id, body=self.body(t)) for t in self.tasks.tasks],
            concurrency=at_once,
            timeout_s=TIMEOUT_S,
            deadline_s=TIMEOUT_S * max(4, len(self.tasks.tasks) // at_once),
            keep={"text": True},
        )

    def body(self, task: Task) -> Mapping[str, object]:
        if self.route == "generate":
            return {"text": task.prompt}
        return {"messages": [{"role": "user", "content": task.asked}]}

    def answers(self, load: Load, proof: Proof) -> list[Answer]:
        """Replies; one that was lost, or is not proven to be this start's, is no answer."""
        same = load.before.weight_version == load.after.weight_version == proof.weight_version
        native = self.route == "generate"
        out = []
        for s in load.samples:
            ours = same and (not native or s.versions == (proof.weight_version,))
            text = s.text if s.ok and ours else None
            out.append(Answer(s.prompt, text, truncated=s.finish == "length"))
        return out

    # ---- judging

    def cell(self, proof: Proof) -> Cell:
        """What was asked of what: `fix` is alike for a candidate and its reference."""
        service, profile, spec = self.target.service, self.target.profile, self.target.profile.spec
        return Cell(
            suite="coding",
            vary={
                "release": proof.release,
                "algorithm": spec.algorithm,
                "budget": spec.budget,
                "topk": spec.topk,
                "block": spec.block,
            },
            fix={
                "model": f"{service.model}@{service.revision or ''}",
                "tasks": self.tasks.sha256,
                "prompts": self.tasks.prompts_sha256,
                "route": self.route,
                "max_tokens": MAX_TOKENS,
                "temperature": 0,
            },
            service=service.name,
            label=f"{profile.name} {self.tasks.name}",
        )

    def reference(self, cell: Cell) -> Run | None:
        """The newest valid run of an autoregressive start that was asked the same."""
        found = [
            run
            for c in self.ledger.cells("coding")
            if c.comparable == cell.comparable and c.vary.get("algorithm") == "none"
            for run in self.ledger.runs(c.key)
        ]
        return max(found, key=lambda r: r.started) if found else None

    def judge(
        self, result: CodingResult, reference: Run | None, *, speculative: bool
    ) -> GateResult:
        """The gate. An autoregressive start is judged by the floor alone: it is the measure."""
        if not speculative:
            return coding_gate.judge_alone(result)
        if reference is None:
            evidence = {"no_power": True, "verdicts": dict(result.counts)}
            words = "no_power: no autoregressive start of this model was asked these tasks"
            return GateResult(coding_gate.NAME, Verdict.UNKNOWN, words, evidence)
        base = stored(self.tasks, self.ledger.samples(reference))
        found = coding_gate.judge(base, result)
        return replace(found, evidence={**found.evidence, "reference_run": reference.id})

    # ---- storing

    def store(
        self, proof: Proof, cell: Cell, load: Load, result: CodingResult, gate: GateResult
    ) -> str:
        """Gate and run in one transaction. A run without a passed gate says why."""
        began, ended = record.span(load)
        bound = proof.launch is not None
        good = gate.verdict is Verdict.PASS and bound
        words = f"gate {gate.name}: {gate.verdict.value}: {gate.message}"
        if not bound:
            words = unknown_start(proof)
        status = Status.VALID if good else Status.INVALID if bound else Status.UNBOUND
        with self.ledger.batch():
            self.ledger.add_cell(cell)
            gates: tuple[str, ...] = ()
            if proof.launch is not None:
                op = proof.launch.deployment
                gates = (self.ledger.add_gate(gate, deployment=op, launch=proof.nonce),)
            run = NewRun(
                cell=cell.key,
                launch=proof.nonce if bound else None,
                gates=gates,
                status=status,
                reason="" if good else words,
                identity=Identity.PROVEN if self.route == "generate" else Identity.BRACKETED,
                device_class=device_of(load.before.info, self.target.host),
                started=began,
                ended=ended,
                requests=len(load.samples),
                failed=record.failed(load.samples),
                host=self.target.host.name if bound else None,
                by=by(),
                protocol={"route": self.route, "tasks": result.tasks, "grader": result.python},
                window={"rule": "all tasks, once"},
                metrics={
                    "pass_rate": result.pass_rate,
                    "verdicts": dict(result.counts),
                    "rules": dict(result.rules),
                },
            )
            return self.ledger.add_run(run, self.rows(load, result))

    def rows(self, load: Load, result: CodingResult) -> Sequence[NewSample]:
        """One row a task, in the order of the tasks."""
        asked = {s.prompt: s for s in load.samples}
        rows = []
        for row in to_samples(result):
            s = asked.get(row.prompt)
            if s is not None:
                row = replace(row, sent_ns=s.sent, end_ns=s.end, tokens=s.tokens, finish=s.finish)
                row = row if s.ok else replace(row, outcome=s.outcome, reason=s.why[:500])
            rows.append(row)
        return rows


def stored(tasks: TaskSet, samples: Sequence[NewSample]) -> CodingResult:
    """A result as it was, from its rows."""
    graded = []
    for s in samples:
        detail = s.detail or {}
        rule = Rule(str(detail.get("rule", Rule.NONE.value)))
        cut = detail.get("truncated") is True
        graded.append(Graded(s.prompt, s.verdict or "no_answer", "", rule, cut))
    return CodingResult(tasks.name, tasks.sha256, tuple(graded), "", {})
