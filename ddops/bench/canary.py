"""Gates on text, for models that can follow an instruction: verbatim copies, and degeneration.

They have power only where the autoregressive reference itself clears a floor. A model that cannot
copy a line shows nothing by failing to; then the verdict is UNKNOWN, `no_power`, never a pass.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddops.bench.answer import Load
from ddops.bench.plan import LoadPlan, Request, Where, text_body
from ddops.model import GateResult, Verdict

#: Part of the canaries the reference must get right, and of its answers that must be sound.
FLOOR = 0.8
SEED = 20240
#: The content of the set: a change makes earlier references another thing.
VERSION = "canary/1"
#: An answer of which less than this is new four-token runs goes in circles.
DISTINCT = 0.3
RUN = 4


@dataclass(frozen=True, slots=True)
class Canary:
    """A prompt and what the answer must hold, letter for letter."""

    id: str
    prompt: str
    expected: str
    tokens: int


def canaries() -> tuple[Canary, ...]:
    """The set: always the same. Identifiers, numbers, JSON, recall over turns, a long count."""
    rng = random.Random(SEED)  # noqa: S311 - words to copy, not secrets
    letters = "abcdefghijklmnopqrstuvwxyz"

    def word(length: int) -> str:
        return "".join(rng.choice(letters) for _ in range(length))

    out = []
    for n in range(8):
        name = f"{word(4)}-{word(2)}{rng.randrange(10, 99)}_{word(5)}"
        ask = f"Repeat this identifier exactly, and nothing else: {name}\n"
        out.append(Canary(f"identifier-{n}", ask, name, 48))
    for n in range(4):
        number = str(rng.randrange(10**23, 10**24))
        ask = f"Repeat this number exactly, and nothing else: {number}\n"
        out.append(Canary(f"number-{n}", ask, number, 64))
    for n in range(3):
        value = json.dumps({word(5): rng.randrange(1000), word(4): [word(3), word(3)]})
        ask = f"Repeat this JSON exactly, and nothing else: {value}\n"
        out.append(Canary(f"json-{n}", ask, value, 96))
    for n in range(3):
        name = f"{word(5)}-{rng.randrange(100, 999)}"
        filler = " ".join(f"The {word(6)} is {word(5)}." for _ in range(40))
        ask = (
            f"User: Remember that the code is {name}.\nAssistant: I will.\n"
            f"User: {filler}\nAssistant: I see.\nUser: What is the code?\nAssistant:"
        )
        out.append(Canary(f"recall-{n}", ask, name, 48))
    out.append(
        Canary("count", "Count from 1 to 400, separated by blanks: 1 2 3", " 398 399 400", 4096)
    )
    return tuple(out)


def text_plan(where: Where, route: str, asked: Sequence[Canary], timeout_s: float) -> LoadPlan:
    """All of them, greedily, four at once."""
    requests = []
    for canary in asked:
        body = dict(text_body(route, canary.prompt))
        if route == "generate":
            body["sampling_params"] = {"temperature": 0, "max_new_tokens": canary.tokens}
        else:
            body |= {"temperature": 0, "max_tokens": canary.tokens, "model": where.model,
                     "stream_options": {"include_usage": True}}  # fmt: skip
        requests.append(Request(id=canary.id, body=body))
    return LoadPlan(
        where=where, route=route, common={"stream": True}, requests=requests,
        concurrency=min(4, len(requests)), timeout_s=timeout_s,
        deadline_s=timeout_s * len(requests), keep={"ids": True, "text": True}, flush=True,
        noise_s=0.0, sample_s=0.0,
    )  # fmt: skip


def passed(load: Load, asked: Sequence[Canary]) -> tuple[set[str], set[str]]:
    """Ids that hold what they must, and ids that were answered at all."""
    known = {c.id: c for c in asked}
    answered = {s.prompt for s in load.samples if s.ok}
    right = {s.prompt for s in load.samples if s.ok and known[s.prompt].expected in s.text}
    return right, answered


def judge_canaries(
    load: Load,
    asked: Sequence[Canary],
    reference: Mapping[str, bool] | None,
    *,
    is_reference: bool,
) -> GateResult:
    """`reference`: what an autoregressive start of the same model got right; None: never asked."""
    right, answered = passed(load, asked)
    lost = len(asked) - len(answered)
    evidence: dict[str, object] = {
        "version": VERSION, "results": {c.id: c.id in right for c in asked},
        "reference": is_reference,
    }  # fmt: skip
    if lost:
        words = f"{lost} of {len(asked)} canaries were not answered"
        return GateResult("canary", Verdict.UNKNOWN, words, evidence)
    base = {c.id: c.id in right for c in asked} if is_reference else reference
    if base is None:
        words = "no_power: no autoregressive start of this model has been asked"
        return GateResult("canary", Verdict.UNKNOWN, words, evidence | {"no_power": True})
    share = sum(base.values()) / len(asked)
    if share < FLOOR:
        words = f"no_power: the reference gets {share:.0%} right, at least {FLOOR:.0%} is needed"
        return GateResult("canary", Verdict.UNKNOWN, words, evidence | {"no_power": True})
    broken = sorted(i for i, ok in base.items() if ok and i not in right)
    if broken:
        words = f"{len(broken)} copies are not verbatim that the reference gets right: {broken[0]}"
        return GateResult("canary", Verdict.FAIL, words, evidence)
    return GateResult("canary", Verdict.PASS, f"{len(right)} of {len(asked)} verbatim", evidence)


def degenerate(ids: Sequence[int], text: str, finish: str) -> str:
    """Why an answer is no text; empty when it is one."""
    if not ids:
        return "empty"
    if finish not in ("stop", "length"):
        return f"finish {finish or 'missing'}"
    if text.count("\ufffd") > 0.02 * len(text):
        return "replacement characters"
    runs = [tuple(ids[i : i + RUN]) for i in range(len(ids) - RUN + 1)]
    if len(runs) >= 16 and len(set(runs)) < DISTINCT * len(runs):
        return "goes in circles"
    return ""


def judge_degeneration(load: Load, reference: float | None, *, is_reference: bool) -> GateResult:
    """`reference`: the sound share of an autoregressive start of the same model."""
    faults = {
        s.prompt: degenerate(s.output_ids, s.text, s.finish) for s in load.samples if s.ok
    }  # fmt: skip
    count = len(load.samples)
    sound = sum(not why for why in faults.values()) / count if count else 0.0
    evidence: dict[str, object] = {
        "sound": sound, "faults": dict(Counter(w for w in faults.values() if w)),
        "reference": is_reference,
    }  # fmt: skip
    if not count or len(faults) < count:
        return GateResult(
            "degeneration", Verdict.UNKNOWN, "not every prompt was answered", evidence
        )
    base = sound if is_reference else reference
    if base is None or base < FLOOR:
        said = "was never asked" if base is None else f"is sound in {base:.0%}"
        words = f"no_power: the autoregressive reference {said}"
        return GateResult("degeneration", Verdict.UNKNOWN, words, evidence | {"no_power": True})
    if sound < base - 0.05:
        words = f"{sound:.0%} of the answers are sound, the reference's {base:.0%}"
        return GateResult("degeneration", Verdict.FAIL, words, evidence)
    return GateResult(
        "degeneration", Verdict.PASS, f"{sound:.0%} of the answers are sound", evidence
    )
