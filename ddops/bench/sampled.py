"""The gate above temperature 0: are sampled answers drawn from the target's own distribution?

No two samples are equal, so tokens cannot be compared. But the target can score them: each answer
is sent back as a prompt and the engine, which drafts nothing while it reads, says how likely each
token was. Verified speculation leaves the distribution as it is, so the mean score of a speculative
start equals that of an autoregressive one. Drafts that nobody verified score lower; answers that
are greedy in truth score higher.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from ddops.bench.answer import Load, Sample
from ddops.bench.exactness import Reference
from ddops.bench.plan import LoadPlan, Request, Where
from ddops.model import GateResult, Verdict

VERSION = "sampled/1"
TEMPERATURE = 1.0
ANSWERS, TOKENS = 8, 32
#: A difference that chance makes once in a thousand times.
SIGMAS = 3.3
#: Nats a token: what must be seen at least, else the gate has no power.
VISIBLE = 0.25

Scores = Mapping[str, Sequence[float]]


def sampling_plan(where: Where, references: Sequence[Reference], timeout_s: float) -> LoadPlan:
    """Each golden prompt several times, at temperature 1."""
    requests = [
        Request(
            id=r.id,
            body={
                "input_ids": list(r.input_ids),
                "sampling_params": {
                    "temperature": TEMPERATURE, "max_new_tokens": TOKENS, "ignore_eos": True,
                    "sampling_seed": 1000 * n + i,
                },
            },
        )
        for n in range(ANSWERS)
        for i, r in enumerate(references)
    ]  # fmt: skip
    return _plan(where, requests, {"stream": True}, timeout_s)


def scoring_plan(
    where: Where, references: Sequence[Reference], answers: Sequence[Sample], timeout_s: float
) -> LoadPlan:
    """Each answer behind its prompt, read and scored; one token more is made, and ignored."""
    known = {r.id: r.input_ids for r in references}
    requests = [
        Request(
            id=a.prompt,
            body={
                "input_ids": [*known[a.prompt], *a.output_ids],
                "logprob_start_len": max(0, len(known[a.prompt]) - 1),
                "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
            },
        )
        for a in answers
    ]
    return _plan(where, requests, {"stream": True, "return_logprob": True}, timeout_s)


def _plan(
    where: Where, requests: Sequence[Request], common: Mapping[str, object], timeout_s: float
) -> LoadPlan:
    return LoadPlan(
        where=where, route="generate", common=common, requests=requests, concurrency=2,
        timeout_s=timeout_s, deadline_s=timeout_s * len(requests), keep={"ids": True}, flush=True,
        noise_s=0.0, sample_s=0.0,
    )  # fmt: skip


def scores(answers: Sequence[Sample], scored: Load) -> dict[str, list[float]] | None:
    """Mean log probability a token of each answer, by prompt; None where the engine gave none."""
    out: dict[str, list[float]] = {}
    if len(scored.samples) != len(answers):
        return None
    for answer, sample in zip(answers, scored.samples, strict=True):
        count = len(answer.output_ids)
        tail = sample.read[-count:]
        if not sample.ok or not count or tuple(t for _, t in tail) != answer.output_ids:
            return None
        if any(score is None for score, _ in tail):
            return None
        out.setdefault(answer.prompt, []).append(
            statistics.fmean(score for score, _ in tail if score is not None)
        )
    return out


def judge_sampled(
    found: Scores | None, reference: Scores | None, *, is_reference: bool
) -> GateResult:
    """`reference`: the scores of an autoregressive start of the same model."""
    evidence: dict[str, object] = {
        "version": VERSION, "reference": is_reference,
        "scores": {k: [round(v, 5) for v in vs] for k, vs in (found or {}).items()},
    }  # fmt: skip
    if not found:
        words = "no_power: the engine gave no scores of what it was sent"
        return GateResult("sampled", Verdict.UNKNOWN, words, evidence | {"no_power": True})
    if is_reference:
        mean = statistics.fmean(v for vs in found.values() for v in vs)
        words = f"the reference itself: {mean:.3f} nats a token"
        return GateResult("sampled", Verdict.PASS, words, evidence)
    if reference is None or set(reference) != set(found):
        words = "no_power: no autoregressive start of this model has been asked"
        return GateResult("sampled", Verdict.UNKNOWN, words, evidence | {"no_power": True})
    gap, error = _difference(found, reference)
    evidence |= {"difference": gap, "standard_error": error}
    if SIGMAS * error > VISIBLE:
        words = f"no_power: a difference below {SIGMAS * error:.2f} nats could not be seen"
        return GateResult("sampled", Verdict.UNKNOWN, words, evidence | {"no_power": True})
    words = f"{gap:+.3f} nats a token against the reference, standard error {error:.3f}"
    verdict = Verdict.FAIL if abs(gap) > SIGMAS * error else Verdict.PASS
    return GateResult("sampled", verdict, words, evidence)


def _difference(found: Scores, reference: Scores) -> tuple[float, float]:
    """Mean over prompts of the difference of means, and its standard error."""
    gaps, variance = [], 0.0
    for prompt, values in found.items():
        base = reference[prompt]
        gaps.append(statistics.fmean(values) - statistics.fmean(base))
        for side in (values, base):
            variance += (statistics.variance(side) / len(side)) if len(side) > 1 else math.inf
    return statistics.fmean(gaps), math.sqrt(variance) / len(gaps)
