"""Gates before numbers. Faults of docs/reference/bench-acceptance.md among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddops.bench.answer import Sample
from ddops.bench.canary import (
    canaries,
    degenerate,
    judge_canaries,
    judge_degeneration,
    text_plan,
)
from ddops.bench.exactness import (
    Difference,
    Near,
    Reference,
    differences,
    golden_plan,
    judge_exactness,
    margins,
    tie_plan,
)
from ddops.bench.plan import Where
from ddops.bench.runner import Measured, settled
from ddops.bench.sampled import judge_sampled, sampling_plan, scores, scoring_plan
from ddops.command import Redactor
from ddops.gates import nearness
from ddops.ledger import Cell, Ledger, Status
from ddops.model import GateResult, Verdict
from tests.ledgers import make_ledger
from tests.unit.bench.support import load

WANT = tuple(range(100, 148))
REFERENCES = (
    Reference("a", (1, 2, 3), WANT, None),
    Reference("b", (4, 5), tuple(range(48)), 0.3),
)
WHERE = Where(host="127.0.0.1", port=1, model="m", weight_version="v")


def answers(**wrong: tuple[int, ...]) -> list[Sample]:
    out = []
    for n, r in enumerate((*REFERENCES, *REFERENCES)):
        ids = wrong.get(f"{r.id}{n // 2}", r.output_ids)
        out.append(Sample(n=n, prompt=r.id, slot=0, tokens=len(ids), output_ids=ids,
                          versions=("v",), cached_tokens=8 * (n // 2)))  # fmt: skip
    return out


def never(_found: Sequence[Difference]) -> Sequence[float | None]:
    raise AssertionError("no margin is to be asked for")


def judge(
    samples: list[Sample], ask: object = never, *, concurrency: int = 4, refused: str = ""
) -> tuple[Verdict, str]:
    made = load(samples, refused=refused)
    done = judge_exactness(made, REFERENCES, concurrency, "v", ask)  # type: ignore[arg-type]
    assert done.name == f"exactness C={concurrency}"
    return done.verdict, done.message


def test_equal_answers_pass_also_behind_the_cache() -> None:
    done = judge_exactness(load(answers()), REFERENCES, 4, "v", never)
    assert done.verdict is Verdict.PASS
    assert done.evidence["behind_a_cache_hit"] == 2
    assert done.evidence["tokens"] == 4 * 48


def test_a_difference_at_one_width_is_told_with_place_and_margin() -> None:
    wrong = (*WANT[:7], 9, *WANT[8:])
    asked: list[Difference] = []

    def ask(found: Sequence[Difference]) -> Sequence[float | None]:
        asked.extend(found)
        return [0.4]

    verdict, words = judge(answers(a1=wrong), ask)
    assert verdict is Verdict.FAIL
    assert "a from token 7" in words
    assert asked == [Difference("a", 7, 107, 9, None)]


def test_a_tie_is_forgiven_and_named() -> None:
    wrong = (*WANT[:7], 9, *WANT[8:])
    verdict, words = judge(answers(a1=wrong), lambda found: [0.001] * len(found))
    assert verdict is Verdict.PASS
    assert "ties" in words
    # Not where the reference's own best two tokens were far apart all the way.
    verdict, _ = judge(answers(b1=(0, 1, 77)), never)
    assert verdict is Verdict.FAIL
    # Not where one of the two is not among the best at all.
    verdict, _ = judge(answers(a1=wrong), lambda found: [None] * len(found))
    assert verdict is Verdict.FAIL


def test_a_service_may_be_content_with_less() -> None:
    """What its deploys pass by, its measurements pass by: else it could never be measured."""
    wrong = (*WANT[:7], 9, *WANT[8:])

    def at(near: Near, margin: float = 0.3) -> Verdict:
        ask = lambda found: [margin] * len(found)  # noqa: E731
        return judge_exactness(load(answers(a1=wrong)), REFERENCES, 4, "v", ask, near).verdict

    assert at(Near(first=7)) is Verdict.PASS
    assert at(Near(first=8)) is Verdict.FAIL
    assert at(Near(tie=0.5)) is Verdict.PASS
    assert at(Near(tie=0.2)) is Verdict.FAIL
    # The reference knows better: its two best tokens were never closer than 0.3.
    far = judge_exactness(load(answers(b1=(0, 1, 77))), REFERENCES, 4, "v", never, Near(tie=0.2))
    assert far.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("gates", "near"),
    [
        (("commit_length>=2",), (None, None)),
        (("exactness", "margin<=0.5"), (None, None)),
        (("prefix>=16",), (16, None)),
        (("margin<=0.5", "margin<=0.1"), (None, 0.1)),
        (("prefix>=16", "margin<=0.5"), (None, 0.5)),
    ],
)
def test_how_near_is_read_from_the_gates(
    gates: tuple[str, ...], near: tuple[int | None, float | None]
) -> None:
    assert nearness(gates) == near


def test_a_draft_nobody_verified_fails() -> None:
    """An engine that takes every draft: plausible tokens, but not the target's."""
    taken = (100, *range(500, 547))
    verdict, words = judge(answers(a0=taken, a1=taken, b0=taken, b1=taken))
    assert verdict is Verdict.FAIL
    assert "4 answers differ" in words


def test_a_short_or_a_long_answer_is_a_difference() -> None:
    found = differences(answers(a0=WANT[:5], a1=(*WANT, 1)), REFERENCES)
    assert [(d.at, d.want, d.got) for d in found] == [(5, 105, None), (48, None, 1)]


def test_answers_of_another_start_fail_and_lost_ones_are_unknown() -> None:
    other = [replace(s, versions=("old",)) for s in answers()]
    assert judge(other)[0] is Verdict.FAIL
    lost = [replace(answers()[0], outcome="timeout", why="slow"), *answers()[1:]]
    assert judge(lost)[0] is Verdict.UNKNOWN
    assert judge([])[0] is Verdict.UNKNOWN
    assert judge([], refused="another server")[0] is Verdict.UNKNOWN


@pytest.mark.parametrize("concurrency", [1, 4, 32])
def test_every_prompt_is_asked_twice_and_the_width_is_kept_up(concurrency: int) -> None:
    plan = golden_plan(WHERE, REFERENCES, concurrency, 10.0)
    assert plan.concurrency == concurrency
    assert len(plan.requests) >= max(4, 2 * concurrency)
    assert {r.id for r in plan.requests} == {"a", "b"}
    assert not plan.flush  # answers behind a hit of the prefix cache are judged too


def test_margins_are_asked_behind_the_common_beginning() -> None:
    found = [Difference("a", 2, 102, 9, None)]
    plan = tie_plan(WHERE, REFERENCES, found, 10.0)
    assert plan.requests[0].body["input_ids"] == [1, 2, 3, 100, 101]
    sample = Sample(n=0, prompt="a@2", slot=0, top=((-0.1, 102), (-0.13, 9)))
    assert margins([sample], found) == [pytest.approx(0.03)]
    assert margins([replace(sample, top=((-0.1, 102),))], found) == [None]


# ---- texts


def spoken(wrong: dict[str, str] | None = None) -> list[Sample]:
    made = []
    for n, c in enumerate(canaries()):
        text = (wrong or {}).get(c.id, f"Sure: {c.expected}")
        made.append(Sample(n=n, prompt=c.id, slot=0, tokens=9, text=text, finish="stop",
                           output_ids=tuple(range(9))))  # fmt: skip
    return made


def test_one_corrupted_identifier_fails() -> None:
    asked = canaries()
    good = {c.id: True for c in asked}
    assert judge_canaries(load(spoken()), asked, good, is_reference=False).verdict is Verdict.PASS
    name = asked[0].expected
    wrong = spoken({asked[0].id: name[:-1] + ("a" if name[-1] != "a" else "b")})
    done = judge_canaries(load(wrong), asked, good, is_reference=False)
    assert done.verdict is Verdict.FAIL
    assert asked[0].id in done.message


def test_recall_over_turns_and_long_outputs_are_among_them() -> None:
    asked = {c.id: c for c in canaries()}
    turns = asked["recall-0"]
    assert turns.prompt.count("User:") == 3
    assert turns.expected in turns.prompt
    assert asked["count"].tokens >= 4000
    good = dict.fromkeys(asked, True)
    for broken in ("recall-0", "count"):
        samples = spoken({broken: "I forgot"})
        done = judge_canaries(load(samples), tuple(asked.values()), good, is_reference=False)
        assert done.verdict is Verdict.FAIL


def test_no_power_is_never_a_pass() -> None:
    asked = canaries()
    nothing = spoken({c.id: "?" for c in asked})
    weak = judge_canaries(load(nothing), asked, None, is_reference=True)
    assert weak.verdict is Verdict.UNKNOWN
    assert weak.evidence["no_power"] is True
    unasked = judge_canaries(load(spoken()), asked, None, is_reference=False)
    assert unasked.verdict is Verdict.UNKNOWN
    assert judge_degeneration(load(spoken()), 0.3, is_reference=False).verdict is Verdict.UNKNOWN
    assert judge_degeneration(load(spoken()), None, is_reference=False).verdict is Verdict.UNKNOWN


def test_what_was_not_answered_is_no_wrong_answer() -> None:
    samples = [replace(spoken()[0], outcome="timeout"), *spoken()[1:]]
    good = {c.id: True for c in canaries()}
    done = judge_canaries(load(samples), canaries(), good, is_reference=False)
    assert done.verdict is Verdict.UNKNOWN
    assert "not answered" in done.message


@pytest.mark.parametrize(
    ("ids", "text", "finish", "why"),
    [
        ((), "", "stop", "empty"),
        ((1, 2, 3), "x", "abort", "finish abort"),
        ((1, 2, 3), "x", "", "finish missing"),
        ((1, 2, 3), "\ufffd\ufffdx", "length", "replacement characters"),
        ((1, 2) * 40, "ab" * 40, "length", "goes in circles"),
        (tuple(range(80)), "fine", "length", ""),
        ((1, 1, 1, 1), "short ones may repeat", "stop", ""),
    ],
)
def test_degeneration_has_names(ids: tuple[int, ...], text: str, finish: str, why: str) -> None:
    assert degenerate(ids, text, finish) == why


def test_degeneration_is_held_against_the_reference() -> None:
    loops = [replace(s, output_ids=(1, 2) * 40) for s in spoken()]
    assert judge_degeneration(load(loops), 0.95, is_reference=False).verdict is Verdict.FAIL
    assert judge_degeneration(load(spoken()), 0.95, is_reference=False).verdict is Verdict.PASS


def test_canaries_are_always_the_same() -> None:
    assert canaries() == canaries()
    plan = text_plan(WHERE, "generate", canaries(), 5.0)
    assert len(plan.requests) == len(canaries())


# ---- above temperature 0


def drawn(mean: float, spread: float = 0.1) -> dict[str, list[float]]:
    """Eight answers a prompt whose scores lie around a mean."""
    return {
        r.id: [mean + spread * (i - 3.5) / 3.5 for i in range(8)] for r in REFERENCES
    }  # fmt: skip


def test_samples_of_the_targets_own_distribution_pass() -> None:
    done = judge_sampled(drawn(-1.02), drawn(-1.0), is_reference=False)
    assert done.verdict is Verdict.PASS, done.message


@pytest.mark.parametrize(("mean", "why"), [(-2.0, "unverified drafts"), (-0.3, "greedy in truth")])
def test_another_distribution_fails(mean: float, why: str) -> None:
    done = judge_sampled(drawn(mean), drawn(-1.0), is_reference=False)
    assert done.verdict is Verdict.FAIL, why
    assert "nats" in done.message


def test_sampled_without_scores_or_reference_or_precision_has_no_power() -> None:
    for done in (
        judge_sampled(None, drawn(-1.0), is_reference=False),
        judge_sampled(drawn(-1.0), None, is_reference=False),
        judge_sampled(drawn(-1.0), {"other": [-1.0, -1.1]}, is_reference=False),
        judge_sampled(drawn(-1.0, 3.0), drawn(-1.0, 3.0), is_reference=False),
    ):
        assert done.verdict is Verdict.UNKNOWN
        assert done.evidence["no_power"] is True
    assert judge_sampled(drawn(-1.0), None, is_reference=True).verdict is Verdict.PASS


def test_scores_are_of_the_answers_tokens_alone() -> None:
    answer = Sample(n=0, prompt="a", slot=0, output_ids=(7, 8))
    scored = Sample(n=0, prompt="a", slot=0, read=((None, 3), (-1.0, 7), (-3.0, 8)))
    assert scores([answer], load([scored])) == {"a": [-2.0]}
    other = replace(scored, read=((-1.0, 7), (-3.0, 9)))
    assert scores([answer], load([other])) is None  # scores of something else
    assert scores([answer], load([replace(scored, read=())])) is None
    plan = scoring_plan(WHERE, REFERENCES, [replace(answer, prompt="b")], 5.0)
    assert plan.requests[0].body["input_ids"] == [4, 5, 7, 8]
    assert plan.requests[0].body["logprob_start_len"] == 1
    assert len(sampling_plan(WHERE, REFERENCES, 5.0).requests) == 16


def test_a_run_that_a_later_gate_took_back_is_shown_so(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    make_ledger(path, runs=8, samples=16)
    with Ledger.open(path, redactor=Redactor()) as ledger:
        run = ledger.runs()[0]
        cell = Cell(suite="concurrency", vary={}, fix={})
        shown = Measured(run.id, cell, "x", 1, 1, Status.VALID, "", None)
        assert settled(ledger, [shown]) == [shown]
        (start,) = ledger.query("SELECT deployment FROM launch WHERE nonce = ?", [run.launch])
        failed = GateResult("exactness", Verdict.FAIL, "made up")
        ledger.add_gate(failed, deployment=str(start["deployment"]), launch=run.launch)
        (after,) = settled(ledger, [shown])
    assert after.status is Status.INVALID
    assert "afterwards" in after.reason
