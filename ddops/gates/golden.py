"""G4: does the engine answer what the reference answered?

`exactness`: the golden prompts, greedily, give the reference's tokens, one for one.
`commit_length>=X`: tokens per verify step over all golden answers, from the answers' own
counts. A requirement that cannot be measured is unknown, and unknown does not pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddops.errors import ConfigError, Problem
from ddops.model import GateResult, Verdict

GOLDEN_SCHEMA = "ddops.golden/1"
#: Gates that `ddops bench` climbs before any number; a deploy does not wait for them.
_OF_BENCH = ("canary", "degeneration", "sampled", "coding")
_COMMIT = re.compile(r"commit_length\s*>=\s*(\d+(?:\.\d+)?)\Z")


@dataclass(frozen=True, slots=True)
class Golden:
    """Prompts and the reference's answers, as token ids."""

    prompts: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def want(self) -> dict[str, tuple[int, ...]]:
        return dict(self.prompts)


def parse_golden(text: str, file: str) -> Golden:
    """Read a golden file; anything odd about it is an error, since a gate hangs on it."""
    try:
        raw = json.loads(text)
        if raw["schema"] != GOLDEN_SCHEMA:
            raise ValueError(f"schema is {raw['schema']!r}, want {GOLDEN_SCHEMA!r}")
        rows = tuple((str(p["id"]), tuple(int(i) for i in p["output_ids"])) for p in raw["prompts"])
        if not rows or any(not ids for _, ids in rows):
            raise ValueError("no prompts, or a prompt without an expected answer")
        if len(dict(rows)) != len(rows):
            raise ValueError("two prompts with one id")
        if any(not p["input_ids"] for p in raw["prompts"]):
            raise ValueError("a prompt without input tokens")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            [Problem(file, 0, "", f"not a golden file: {error}")], next="make it anew"
        ) from error
    return Golden(rows)


def judge_golden(
    requirements: Sequence[str],
    golden: Golden | None,
    answers: Sequence[Mapping[str, object]],
    weight_version: str,
    *,
    speculative: bool = True,
) -> list[GateResult]:
    """One result per requirement. Each answer must come from this very start.

    A commit length is asked of a `speculative` launch alone.
    """
    if not requirements:
        return [GateResult("G4", Verdict.SKIP, "the service lists no correctness gate", {})]
    if golden is None:
        return [
            GateResult(f"G4 {r}", Verdict.FAIL, "the service has no golden file", {})
            for r in requirements
        ]
    broken = _broken(golden, answers, weight_version)
    if broken:
        return [GateResult(f"G4 {r}", Verdict.FAIL, broken, {}) for r in requirements]
    out = []
    for requirement in requirements:
        if requirement == "exactness":
            out.append(_exactness(golden, answers))
        elif (match := _COMMIT.match(requirement)) and not speculative:
            skipped = "an autoregressive launch commits one token a step"
            out.append(GateResult(f"G4 {requirement}", Verdict.SKIP, skipped, {}))
        elif requirement in _OF_BENCH:
            out.append(GateResult(f"G4 {requirement}", Verdict.SKIP, "judged by ddops bench", {}))
        elif match:
            out.append(_commit_length(requirement, float(match.group(1)), answers))
        else:
            out.append(GateResult(f"G4 {requirement}", Verdict.FAIL, "no such gate", {}))
    return out


def _broken(
    golden: Golden, answers: Sequence[Mapping[str, object]], weight_version: str
) -> str | None:
    """Why the answers cannot be judged at all, or None."""
    for answer in answers:
        if answer.get("error"):
            return f"prompt {answer.get('id')}: {answer['error']}"
    ids = [str(a.get("id")) for a in answers]
    if sorted(ids) != sorted(golden.want):
        return f"asked {len(golden.want)} prompts, {len(ids)} rows came back"
    for answer in answers:
        meta = answer.get("meta")
        said = meta.get("weight_version") if isinstance(meta, Mapping) else None
        if said != weight_version:
            return f"prompt {answer['id']} was answered by {said!r}, not by {weight_version!r}"
        if not isinstance(answer.get("output_ids"), list):
            return f"prompt {answer['id']}: the answer carries no token ids"
    return None


def _exactness(golden: Golden, answers: Sequence[Mapping[str, object]]) -> GateResult:
    wrong: list[dict[str, object]] = []
    for answer in answers:
        want, got = golden.want[str(answer["id"])], answer["output_ids"]
        if not isinstance(got, list) or list(want) != got:
            at = _first_difference(want, got if isinstance(got, list) else [])
            wrong.append({"id": answer["id"], "first_difference": at, "want": len(want)})
    total = len(golden.prompts)
    evidence: dict[str, object] = {"prompts": total, "wrong": wrong}
    if wrong:
        first = wrong[0]
        return GateResult(
            "G4 exactness",
            Verdict.FAIL,
            f"{len(wrong)} of {total} golden prompts differ;"
            f" {first['id']} from token {first['first_difference']} of {first['want']}",
            evidence,
        )
    tokens = sum(len(ids) for _, ids in golden.prompts)
    return GateResult(
        "G4 exactness", Verdict.PASS, f"{total} prompts, {tokens} tokens equal", evidence
    )


def _first_difference(want: Sequence[int], got: Sequence[object]) -> int:
    for n, (a, b) in enumerate(zip(want, got, strict=False)):
        if a != b:
            return n
    return min(len(want), len(got))


def _commit_length(name: str, least: float, answers: Sequence[Mapping[str, object]]) -> GateResult:
    """Tokens per verify step. The first token of an answer comes from prefill, not from a step."""
    tokens = steps = 0
    for answer in answers:
        meta = answer["meta"]
        assert isinstance(meta, Mapping)  # noqa: S101 - _broken has looked
        verify, done = meta.get("spec_verify_ct"), meta.get("completion_tokens")
        if not isinstance(verify, int) or not isinstance(done, int) or verify <= 0:
            return GateResult(
                f"G4 {name}", Verdict.UNKNOWN, "the answers carry no count of verify steps", {}
            )
        tokens, steps = tokens + done - 1, steps + verify
    value = tokens / steps
    evidence: dict[str, object] = {"tokens": tokens, "steps": steps, "value": round(value, 3)}
    verdict = Verdict.PASS if value >= least else Verdict.FAIL
    return GateResult(f"G4 {name}", verdict, f"commit length {value:.2f}", evidence)
