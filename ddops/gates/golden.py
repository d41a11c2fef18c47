"""G4: does the engine answer what the reference answered?

`exactness`: the golden prompts, greedily, give the reference's tokens, one for one.
`prefix>=N`: their first N tokens are the reference's, for an engine whose rounding differs later.
`margin<=X`: an answer may leave the reference where the engine itself, asked for that one token
without drafts, scores both within X nats of each other; anywhere else it fails.
`commit_length>=X`: tokens per verify step over all golden answers, from the answers' own
counts. A requirement that cannot be measured is unknown, and unknown does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddops.config.files import MISSHAPEN, parse_json, reason
from ddops.errors import ConfigError, Problem
from ddops.model import GateResult, Verdict

GOLDEN_SCHEMA = "ddops.golden/1"
#: Gates that `ddops bench` climbs before any number; a deploy does not wait for them.
_OF_BENCH = ("canary", "degeneration", "sampled", "coding")
_COMMIT = re.compile(r"commit_length\s*>=\s*(\d+(?:\.\d+)?)\Z")
_PREFIX = re.compile(r"prefix\s*>=\s*(\d+)\Z")
_MARGIN = re.compile(r"margin\s*<=\s*(\d+(?:\.\d+)?)\Z")


def nearness(requirements: Sequence[str]) -> tuple[int | None, float | None]:
    """How near an answer must be, as far as a service says: its first tokens, nats at a tie.

    None is the strict word of whoever asks; `exactness` beside others is that too.
    """
    if "exactness" in requirements:
        return None, None
    margins = [float(m.group(1)) for r in requirements if (m := _MARGIN.match(r))]
    firsts = [int(m.group(1)) for r in requirements if (m := _PREFIX.match(r))]
    return (None if margins else max(firsts, default=None)), min(margins, default=None)


def needs_ties(requirements: Sequence[str]) -> bool:
    """Whether the answers must be asked with the scores of where they leave the reference."""
    return any(_MARGIN.match(r) for r in requirements)


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
        raw = parse_json(text)
        if raw["schema"] != GOLDEN_SCHEMA:
            raise ValueError(f"schema is {raw['schema']!r}, want {GOLDEN_SCHEMA!r}")
        rows = tuple((str(p["id"]), tuple(int(i) for i in p["output_ids"])) for p in raw["prompts"])
        if not rows or any(not ids for _, ids in rows):
            raise ValueError("no prompts, or a prompt without an expected answer")
        if len(dict(rows)) != len(rows):
            raise ValueError("two prompts with one id")
        if any(not p["input_ids"] for p in raw["prompts"]):
            raise ValueError("a prompt without input tokens")
    except MISSHAPEN as error:
        raise ConfigError(
            [Problem(file, 0, "", f"not a golden file: {reason(error)}")], next="make it anew"
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
        elif prefix := _PREFIX.match(requirement):
            out.append(_exactness(golden, answers, requirement, int(prefix.group(1))))
        elif margin := _MARGIN.match(requirement):
            out.append(_margin(golden, answers, requirement, float(margin.group(1))))
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


def _exactness(
    golden: Golden,
    answers: Sequence[Mapping[str, object]],
    name: str = "exactness",
    first: int | None = None,
) -> GateResult:
    """All tokens, or the `first` ones of each answer."""
    wrong: list[dict[str, object]] = []
    for answer in answers:
        want, got = list(golden.want[str(answer["id"])][:first]), _ids(answer)[:first]
        if want != got:
            at = _first_difference(want, got)
            wrong.append({"id": answer["id"], "first_difference": at, "want": len(want)})
    total = len(golden.prompts)
    evidence: dict[str, object] = {"prompts": total, "wrong": wrong}
    if wrong:
        one = wrong[0]
        return GateResult(
            f"G4 {name}",
            Verdict.FAIL,
            f"{len(wrong)} of {total} golden prompts differ;"
            f" {one['id']} from token {one['first_difference']} of {one['want']}",
            evidence,
        )
    tokens = sum(len(ids[:first]) for _, ids in golden.prompts)
    return GateResult(
        f"G4 {name}", Verdict.PASS, f"{total} prompts, {tokens} tokens equal", evidence
    )


def _margin(
    golden: Golden, answers: Sequence[Mapping[str, object]], name: str, most: float
) -> GateResult:
    """Each difference is a tie by the engine's own scores, or the gate fails."""
    rows: list[dict[str, object]] = []
    bad = ""
    for answer in answers:
        want, got = golden.want[str(answer["id"])], _ids(answer)
        if list(want) == got:
            continue
        at = _first_difference(want, got)
        gap = _gap(answer.get("tie"), at, want[at : at + 1], got[at : at + 1])
        rows.append({"id": answer["id"], "first_difference": at, "margin": gap})
        if gap is None or gap > most:
            words = "its scores are not known" if gap is None else f"{gap:.3g} nats apart"
            bad = bad or f"{answer['id']} from token {at} of {len(want)}: {words}"
    total = len(golden.prompts)
    evidence: dict[str, object] = {"prompts": total, "different": rows, "bound": most}
    if bad:
        words = f"{len(rows)} of {total} golden prompts differ; {bad}"
        return GateResult(f"G4 {name}", Verdict.FAIL, words, evidence)
    words = f"{total} prompts, {len(rows)} leave the reference at a tie" if rows else (
        f"{total} prompts equal")  # fmt: skip
    return GateResult(f"G4 {name}", Verdict.PASS, words, evidence)


def _gap(tie: object, at: int, want: Sequence[int], got: Sequence[object]) -> float | None:
    """Nats between the wanted and the given token; None where one was not scored."""
    if not isinstance(tie, Mapping) or tie.get("at") != at or not want or not got:
        return None
    top = tie.get("top")
    scores = {one[1]: float(one[0]) for one in top} if isinstance(top, list) else {}
    if want[0] not in scores or got[0] not in scores:
        return None
    return abs(scores[want[0]] - scores[got[0]])


def _ids(answer: Mapping[str, object]) -> list[int]:
    found = answer["output_ids"]
    return found if isinstance(found, list) else []


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
