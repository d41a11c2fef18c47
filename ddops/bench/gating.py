"""Climbing the gates of one server start before it is measured, and once more behind."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ddops.bench.answer import Load
from ddops.bench.canary import (
    VERSION,
    canaries,
    judge_canaries,
    judge_degeneration,
    text_plan,
)
from ddops.bench.exactness import (
    STRICT,
    TIE,
    Difference,
    Near,
    Reference,
    golden_plan,
    judge_exactness,
    margins,
    read_references,
    tie_plan,
)
from ddops.bench.plan import Where
from ddops.bench.sampled import VERSION as SAMPLED
from ddops.bench.sampled import judge_sampled, sampling_plan, scores, scoring_plan
from ddops.bench.target import Proof, Target, unknown_start
from ddops.bench.validity import Finding
from ddops.events import Event, Level, Reporter
from ddops.gates.golden import judge_golden, nearness
from ddops.ledger import Ledger
from ddops.ledger.bench_records import Status
from ddops.model import GateResult, Verdict

#: Seconds for one answer of a gate: the first one may wait for a compiler.
TIMEOUT_S = 120.0
#: Each of these is asked once before and once after the runs of a start.
_TEXT = ("canary", "degeneration")
_EARLIER = """SELECT evidence FROM gate WHERE name = :name AND verdict <> 'FAIL'
ORDER BY at DESC LIMIT 200"""


@dataclass(frozen=True, slots=True)
class Gated:
    """Gates of one server start: rows in the ledger, and what speaks against numbers."""

    ids: tuple[str, ...]
    against: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Gatekeeper:
    """Asks and judges what the service lists; every verdict is stored under this very start."""

    target: Target
    ledger: Ledger
    report: Reporter

    def gate(self, proof: Proof, levels: Sequence[int]) -> Gated:
        """All gates. `levels` are the concurrencies at which exactness is asked for."""
        listed = self.target.service.gates
        if not listed:
            why = "the service lists no gate, so nothing shows that its answers are right"
            return Gated((), (Finding(Status.UNBOUND, "gates", why),))
        if proof.launch is None:
            why = unknown_start(proof)
            return Gated((), (Finding(Status.UNBOUND, "launch", why),))
        results = [r for c in self._within(proof, levels) for r in self._golden(proof, c, listed)]
        if "sampled" in listed:
            results.append(self._sampled(proof))
        if set(listed) & set(_TEXT):
            results += self._text(proof, [g for g in _TEXT if g in listed])
        earlier = self._failed_before(proof, {r.name for r in results})
        ids, against = self._graded(proof) if "coding" in listed else ([], [])
        against += earlier
        for result in results:
            ids.append(
                self.ledger.add_gate(result, deployment=proof.launch.deployment, launch=proof.nonce)
            )
            self._tell(result)
            if result.verdict is Verdict.SKIP:
                ids.pop()  # said why, and carries nothing
            elif result.verdict is not Verdict.PASS:
                words = f"{result.name} {result.verdict.value}: {result.message}"
                against.append(Finding(Status.INVALID, "gate", words))
        return Gated(tuple(ids), tuple(against))

    def _within(self, proof: Proof, levels: Sequence[int]) -> list[int]:
        """Levels the server can run at once; more would only wait."""
        info = proof.seen.server_info.values if proof.seen.server_info else {}
        most = info.get("max_running_requests")
        return [c for c in levels if not isinstance(most, int) or c <= most] or [1]

    # ---- golden prompts

    def _golden(self, proof: Proof, concurrency: int, listed: Sequence[str]) -> list[GateResult]:
        text, golden = self.target.golden_text(), self.target.golden()
        name = f"exactness C={concurrency}"
        if text is None or golden is None:
            return [GateResult(name, Verdict.FAIL, "the service has no golden file", {})]
        where = self.target.where(proof.weight_version)
        references = read_references(text)
        load = self.target.run(golden_plan(where, references, concurrency, TIMEOUT_S))
        first, margin = nearness(listed)
        out = [
            judge_exactness(
                load, references, concurrency, proof.weight_version,
                lambda found: self._margins(where, references, found),
                STRICT if first is None and margin is None else Near(first, max(margin or 0, TIE)),
            )
        ]  # fmt: skip
        lengths = [g for g in listed if g.startswith("commit_length")]
        if lengths and out[0].verdict is Verdict.PASS:
            info = proof.seen.server_info.values if proof.seen.server_info else {}
            out += judge_golden(
                lengths, golden, _answers(load, golden.want), proof.weight_version,
                speculative=bool(info.get("speculative_algorithm")),
            )  # fmt: skip
        return out

    def _margins(
        self, where: Where, references: Sequence[Reference], found: Sequence[Difference]
    ) -> Sequence[float | None]:
        load = self.target.run(tie_plan(where, references, found, TIMEOUT_S))
        if len(load.samples) != len(found):
            return [None] * len(found)
        return margins(load.samples, found)

    # ---- above temperature 0

    def _sampled(self, proof: Proof) -> GateResult:
        info = proof.seen.server_info.values if proof.seen.server_info else {}
        alone = not info.get("speculative_algorithm")
        where = self.target.where(proof.weight_version)
        references = read_references(self.target.golden_text() or '{"prompts": []}')
        asked = self.target.run(sampling_plan(where, references, TIMEOUT_S))
        found = None
        if asked.samples and all(s.ok for s in asked.samples):
            plan = scoring_plan(where, references, asked.samples, TIMEOUT_S)
            found = scores(asked.samples, self.target.run(plan))
        base = None if alone else _scores(self._earlier("sampled"))
        result = judge_sampled(found, base, is_reference=alone)
        return replace(result, evidence={**result.evidence, "model": self._model})

    # ---- texts

    def _text(self, proof: Proof, names: Sequence[str]) -> list[GateResult]:
        info = proof.seen.server_info.values if proof.seen.server_info else {}
        alone = not info.get("speculative_algorithm")
        asked = canaries()
        load = self.target.run(
            text_plan(self.target.where(proof.weight_version), "generate", asked, TIMEOUT_S)
        )
        out = []
        if "canary" in names:
            base = None if alone else _results(self._earlier("canary"))
            out.append(judge_canaries(load, asked, base, is_reference=alone))
        if "degeneration" in names:
            sound = None if alone else _sound(self._earlier("degeneration"))
            out.append(judge_degeneration(load, sound, is_reference=alone))
        return [replace(r, evidence={**r.evidence, "model": self._model}) for r in out]

    @property
    def _model(self) -> str:
        service = self.target.service
        return f"{service.model}@{service.revision or ''}"

    def _earlier(self, name: str) -> Mapping[str, object] | None:
        """The newest evidence of an autoregressive start of this very model."""
        for row in self.ledger.query(_EARLIER, {"name": name}):
            found = json.loads(str(row["evidence"]))
            if found.get("reference") is True and found.get("model") == self._model:
                return dict(found)
        return None

    def _graded(self, proof: Proof) -> tuple[list[str], list[Finding]]:
        """The verdict of `ddops bench coding` on this start; without one nothing counts."""
        found = [g for g in self.ledger.gates(proof.nonce) if g.name == "coding"]
        if found and found[-1].verdict is Verdict.PASS:
            return [found[-1].id], []
        said = f"says {found[-1].verdict.value}" if found else "was not asked of this start"
        words = f"coding {said}; ddops bench coding {self.target.host.name}"
        return [], [Finding(Status.INVALID, "gate", words)]

    def _failed_before(self, proof: Proof, names: Collection[str]) -> list[Finding]:
        """Gates of these names that failed on this very start: the ledger counts no run of it."""
        found = {
            g.name: g.message
            for g in self.ledger.gates(proof.nonce)
            if g.verdict is Verdict.FAIL and g.name in names
        }
        words = "numbers of this start do not count, measure another one"
        return [
            Finding(Status.INVALID, "gate", f"{name} failed on this start before ({m}): {words}")
            for name, m in found.items()
        ]

    def _tell(self, result: GateResult) -> None:
        level = Level.INFO if result.verdict is Verdict.PASS else Level.WARN
        words = f"gate {result.name}: {result.verdict.value}: {result.message}"
        self.report.emit(Event("gate", words, self.target.host.name, level))


def _answers(load: Load, want: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The first answer to each golden prompt, as `gates.judge_golden` reads them."""
    out: dict[str, Mapping[str, object]] = {}
    for s in load.samples:
        if s.prompt in want and s.prompt not in out:
            meta = {
                "weight_version": s.versions[0] if s.versions else None,
                "completion_tokens": s.tokens, "spec_verify_ct": s.verify_ct,
            }  # fmt: skip
            out[s.prompt] = {"id": s.prompt, "output_ids": list(s.output_ids), "meta": meta}
    return list(out.values())


def _results(evidence: Mapping[str, object] | None) -> dict[str, bool] | None:
    results = evidence.get("results") if evidence else None
    if not isinstance(results, dict) or evidence is None or evidence.get("version") != VERSION:
        return None
    return {str(k): v is True for k, v in results.items()}


def _scores(evidence: Mapping[str, object] | None) -> dict[str, list[float]] | None:
    found = evidence.get("scores") if evidence else None
    if not isinstance(found, dict) or evidence is None or evidence.get("version") != SAMPLED:
        return None
    return {str(k): [float(x) for x in v] for k, v in found.items()}


def _sound(evidence: Mapping[str, object] | None) -> float | None:
    value = evidence.get("sound") if evidence else None
    return float(value) if isinstance(value, int | float) else None
