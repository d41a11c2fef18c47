"""The gate before any number: the reference's tokens, one for one, at the concurrency measured.

The golden prompts are asked through the measuring client itself, as many at once as the run will
have under way; asked more than once, so that answers behind a hit of the prefix cache are judged
too. A difference is forgiven only where it is a tie: the engine's own scores of the two tokens,
asked for anew without drafts in between, lie closer than `TIE`, or than the service's own margin;
or behind the tokens that a service's `prefix` asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddops.bench.answer import Load, Sample
from ddops.bench.plan import LoadPlan, Request, Where
from ddops.model import GateResult, Verdict

#: Nats between the two best tokens below which rounding may decide.
TIE = 0.02
TOP = 5
#: Differences that are looked at more closely; with more, ties explain nothing.
LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class Near:
    """How near to the reference is near enough: so many tokens of each answer, so many nats."""

    first: int | None = None
    tie: float = TIE


STRICT = Near()


@dataclass(frozen=True, slots=True)
class Reference:
    """One golden prompt. `gap` is the reference's own least distance between two tokens."""

    id: str
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    gap: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer left the reference."""

    id: str
    at: int
    want: int | None
    got: int | None
    gap: float | None

    def words(self) -> str:
        return f"{self.id} from token {self.at}"


def read_references(text: str) -> tuple[Reference, ...]:
    """The golden file's prompts, whole; `gates.parse_golden` has judged the file."""
    return tuple(
        Reference(
            str(p["id"]),
            tuple(int(i) for i in p["input_ids"]),
            tuple(int(i) for i in p["output_ids"]),
            float(p["min_gap"]) if isinstance(p.get("min_gap"), int | float) else None,
        )
        for p in json.loads(text)["prompts"]
    )


def golden_plan(
    where: Where, references: Sequence[Reference], concurrency: int, timeout_s: float
) -> LoadPlan:
    """Every prompt twice, and as many requests as keep the concurrency up."""
    rounds = max(2, -(-2 * concurrency // len(references)))
    requests = [
        Request(
            id=r.id,
            body={
                "input_ids": list(r.input_ids),
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": len(r.output_ids),
                    "ignore_eos": True,
                },
            },
        )
        for _ in range(rounds)
        for r in references
    ]
    return LoadPlan(
        where=where, route="generate", common={"stream": True}, requests=requests,
        concurrency=concurrency, timeout_s=timeout_s,
        deadline_s=timeout_s * (len(requests) // concurrency + 1), keep={"ids": True, "text": True},
        flush=False, noise_s=0.0, sample_s=0.0,
    )  # fmt: skip


def differences(
    samples: Sequence[Sample], references: Sequence[Reference], first: int | None = None
) -> list[Difference]:
    """The first difference of every answer that is not the reference's, in its `first` tokens."""
    known = {r.id: r for r in references}
    out = []
    for sample in samples:
        want, got = known[sample.prompt].output_ids[:first], sample.output_ids[:first]
        if want == got:
            continue
        at = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b),
                  min(len(want), len(got)))  # fmt: skip
        out.append(
            Difference(
                sample.prompt,
                at,
                want[at] if at < len(want) else None,
                got[at] if at < len(got) else None,
                known[sample.prompt].gap,
            )
        )
    return out


def tie_plan(
    where: Where, references: Sequence[Reference], found: Sequence[Difference], timeout_s: float
) -> LoadPlan:
    """One token behind the common beginning of each difference, with the scores of the best."""
    known = {r.id: r for r in references}
    requests = [
        Request(
            id=f"{d.id}@{d.at}",
            body={
                "input_ids": [*known[d.id].input_ids, *known[d.id].output_ids[: d.at]],
                "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
            },
        )
        for d in found
    ]
    common = {"stream": True, "return_logprob": True, "top_logprobs_num": TOP}
    return LoadPlan(
        where=where, route="generate", common=common, requests=requests, concurrency=1,
        timeout_s=timeout_s, deadline_s=timeout_s * (len(requests) + 1), keep={"ids": True},
        flush=True, noise_s=0.0, sample_s=0.0,
    )  # fmt: skip


def margins(samples: Sequence[Sample], found: Sequence[Difference]) -> list[float | None]:
    """Distance in nats between wanted and given token; None where one is not among the best."""
    out: list[float | None] = []
    for difference, sample in zip(found, samples, strict=True):
        scores = {token: score for score, token in sample.top}
        want, got = scores.get(difference.want or -1), scores.get(difference.got or -1)
        out.append(None if want is None or got is None else abs(want - got))
    return out


def judge_exactness(
    load: Load,
    references: Sequence[Reference],
    concurrency: int,
    weight_version: str,
    ask_margins: Callable[[Sequence[Difference]], Sequence[float | None]],
    near: Near = STRICT,
) -> GateResult:
    """PASS, FAIL, or UNKNOWN where not every prompt was answered by this very start."""
    name = f"exactness C={concurrency}"
    if load.refused:
        return GateResult(name, Verdict.UNKNOWN, load.refused, {})
    lost = [s for s in load.samples if not s.ok]
    if lost or not load.samples:
        why = f"{len(lost)} of {len(load.samples)} prompts not answered"
        more = f"; first: {lost[0].outcome} {lost[0].why[:200]}" if lost else ""
        return GateResult(name, Verdict.UNKNOWN, why + more, {"lost": len(lost)})
    if strange := {s.versions for s in load.samples} - {(weight_version,)}:
        words = ", ".join(" ".join(v) or "nobody named" for v in sorted(strange))
        return GateResult(name, Verdict.FAIL, f"answered by {words}, not {weight_version}", {})
    found = differences(load.samples, references, near.first)
    tokens = sum(s.tokens or 0 for s in load.samples)
    cached = sum(1 for s in load.samples if (s.cached_tokens or 0) > 4)
    evidence: dict[str, object] = {
        "answers": len(load.samples), "tokens": tokens, "behind_a_cache_hit": cached,
        "different": len(found), "per_1k_tokens": round(1000 * len(found) / max(1, tokens), 3),
    }  # fmt: skip
    if near != STRICT:
        evidence |= {"first": near.first, "tie": near.tie}
    if not found:
        words = f"{len(load.samples)} answers, {tokens} tokens equal"
        return GateResult(name, Verdict.PASS, words, evidence)
    return _with_ties(name, found, ask_margins, evidence, near.tie)


def _with_ties(
    name: str,
    found: Sequence[Difference],
    ask_margins: Callable[[Sequence[Difference]], Sequence[float | None]],
    evidence: Mapping[str, object],
    tie: float,
) -> GateResult:
    """Differences are ties only if all are; the reference's own gap is asked first."""
    first = found[0]
    words = f"{len(found)} answers differ; {first.words()}"
    certain = [d for d in found if d.gap is not None and d.gap > tie]
    if certain or len({(d.id, d.at) for d in found}) > LOOKED_AT:
        return GateResult(name, Verdict.FAIL, words, evidence)
    unique = list({(d.id, d.at, d.got): d for d in found}.values())
    measured = list(ask_margins(unique))
    rows = [{"at": d.words(), "margin": m} for d, m in zip(unique, measured, strict=True)]
    more = {**evidence, "margins": rows}
    if all(m is not None and m < tie for m in measured):
        return GateResult(name, Verdict.PASS, f"{words}; all ties within {tie} nats", more)
    return GateResult(name, Verdict.FAIL, words, more)
