"""The gate ladder and the golden judge: what passes, what does not, and what is not known."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import pytest

from ddops.errors import CommandFailed, ConfigError
from ddops.gates import (
    Observation,
    judge_g0,
    judge_g1,
    judge_g2,
    judge_g3,
    judge_golden,
    judge_soak,
    parse_golden,
    soaked,
)
from ddops.gates.observation import Answer, Launch, Port, parse_observation
from ddops.model import GateResult, State, Verdict

RELEASE = "ab" * 32
LAUNCH = Launch("n1", f"{RELEASE[:12]}-n1", RELEASE, "op", 7, 6, 1.0)
WELL = Observation(
    at=10.0, current=RELEASE, launch=LAUNCH, engine=State.UP, engine_why="", pid=7, uptime_s=3.0,
    rss_bytes=1, port=Port(30000, True, True, "pid 7"), log_size=0, log_tail="",
    health=Answer(200), model_info=Answer(200, values={"weight_version": LAUNCH.weight_version}),
    server_info=Answer(200, values={"tp_size": 8}),
)  # fmt: skip


def but(**changes: object) -> Observation:
    return dataclasses.replace(WELL, **changes)  # type: ignore[arg-type]


def test_a_service_that_is_well_passes() -> None:
    results = [judge_g0(WELL, WELL, "op"), judge_g1(WELL), judge_g2(WELL)]
    results.append(judge_g3(WELL, RELEASE, {"tp_size": 8}))
    assert [r.verdict for r in results] == [Verdict.PASS] * 4


@pytest.mark.parametrize(
    ("seen", "verdict", "words"),
    [
        (but(engine=State.DOWN, engine_why="gone"), Verdict.FAIL, "not running: gone"),
        (but(engine=State.UNKNOWN), Verdict.UNKNOWN, "not running"),
        (but(launch=dataclasses.replace(LAUNCH, nonce="n2")), Verdict.FAIL, "restarted"),
        (but(launch=None), Verdict.FAIL, "not running"),
    ],
)
def test_g0(seen: Observation, verdict: Verdict, words: str) -> None:
    result = judge_g0(WELL, seen, "op")
    assert (result.verdict, words in result.message) == (verdict, True)


def test_g0_refuses_another_deploys_start() -> None:
    assert judge_g0(WELL, WELL, "other").verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("port", "words"),
    [
        (Port(30000, False, False, None), "nothing listens"),
        (Port(30000, True, False, "pid 99 nginx"), "held by pid 99 nginx"),
    ],
)
def test_g1(port: Port, words: str) -> None:
    result = judge_g1(but(port=port))
    assert result.verdict is Verdict.FAIL
    assert words in result.message


@pytest.mark.parametrize(
    ("health", "words"),
    [(None, "not asked"), (Answer(503), "503"), (Answer(None, "timed out"), "timed out")],
)
def test_g2(health: Answer | None, words: str) -> None:
    result = judge_g2(but(health=health))
    assert result.verdict is Verdict.FAIL
    assert words in result.message


@pytest.mark.parametrize(
    ("seen", "spec", "words"),
    [
        (but(model_info=None), {}, "not asked"),
        (but(model_info=Answer(200, values={"weight_version": "old"})), {}, "says it is 'old'"),
        (but(model_info=Answer(200)), {}, "says it is None"),
        (WELL, {"tp_size": 4}, "tp_size is 8, want 4"),
        (WELL, {"pp_size": 1}, "pp_size is None, want 1"),
        (but(launch=dataclasses.replace(LAUNCH, weight_version="cd-n1")), {}, "launched cd-n1"),
    ],
)
def test_g3(seen: Observation, spec: Mapping[str, object], words: str) -> None:
    result = judge_g3(seen, RELEASE, spec)
    assert result.verdict is Verdict.FAIL
    assert words in result.message


_HEAD = '{"schema": "ddops.golden/1", "prompts": '
GOLDEN = parse_golden(
    json.dumps({
        "schema": "ddops.golden/1",
        "prompts": [
            {"id": "a", "input_ids": [1], "output_ids": [5, 6, 7]},
            {"id": "b", "input_ids": [2], "output_ids": [8, 9, 10, 11]},
        ],
    }),
    "golden.json",
)  # fmt: skip


def answers(**of_a: object) -> list[Mapping[str, object]]:
    meta = {"weight_version": "w", "spec_verify_ct": 1, "completion_tokens": 3}
    a = {"id": "a", "output_ids": [5, 6, 7], "meta": meta, **of_a}
    b = {"id": "b", "output_ids": [8, 9, 10, 11],
         "meta": {"weight_version": "w", "spec_verify_ct": 2, "completion_tokens": 4}}  # fmt: skip
    return [a, b]


def judge(rows: list[Mapping[str, object]], *gates: str, **options: bool) -> tuple[Verdict, str]:
    (result,) = judge_golden(gates or ("exactness",), GOLDEN, rows, "w", **options)
    return result.verdict, result.message


def test_exact_answers_pass() -> None:
    assert judge(answers()) == (Verdict.PASS, "2 prompts, 7 tokens equal")


@pytest.mark.parametrize(
    ("of_a", "words"),
    [
        ({"output_ids": [5, 6, 8]}, "a from token 2 of 3"),
        ({"output_ids": [5, 6]}, "a from token 2 of 3"),
        ({"output_ids": [5, 6, 7, 7]}, "a from token 3 of 3"),
        ({"output_ids": None}, "no token ids"),
        ({"meta": {"weight_version": "x"}}, "answered by 'x'"),
        ({"meta": {}}, "answered by None"),
        ({"error": "HTTP 503"}, "prompt a: HTTP 503"),
        ({"id": "c"}, "asked 2 prompts"),
    ],
)
def test_exactness_fails(of_a: Mapping[str, object], words: str) -> None:
    verdict, message = judge(answers(**of_a))
    assert verdict is Verdict.FAIL
    assert words in message


def test_an_answer_that_failed_is_what_is_told_though_the_rest_was_not_asked() -> None:
    assert "timed out" in judge([{"id": "a", "error": "timed out"}])[1]


def test_an_answer_that_is_missing_or_doubled_fails() -> None:
    assert judge(answers()[:1])[0] is Verdict.FAIL
    assert judge([*answers(), answers()[0]])[0] is Verdict.FAIL


@pytest.mark.parametrize(
    ("gate", "verdict"),
    [("commit_length>=1.6", Verdict.PASS), ("commit_length>=1.7", Verdict.FAIL)],
)
def test_commit_length_leaves_out_the_token_of_the_prefill(gate: str, verdict: Verdict) -> None:
    # (3 - 1 + 4 - 1) tokens in 3 steps
    assert judge(answers(), gate)[0] is verdict


@pytest.mark.parametrize(
    ("of_a", "gate", "verdict", "words"),
    [
        ([5, 6, 8], "prefix>=2", Verdict.PASS, "2 prompts, 4 tokens equal"),
        ([5, 6, 8], "prefix>=3", Verdict.FAIL, "a from token 2 of 3"),
        ([5, 6], "prefix>=99", Verdict.FAIL, "a from token 2 of 3"),
        ([5, 6, 7], "prefix>=99", Verdict.PASS, "7 tokens equal"),
        ([5, 6, 7, 7], "prefix>=3", Verdict.PASS, "6 tokens equal"),
    ],
)
def test_a_prefix_is_as_long_as_the_service_says(
    of_a: list[int], gate: str, verdict: Verdict, words: str
) -> None:
    found, message = judge(answers(output_ids=of_a), gate)
    assert (found, words in message) == (verdict, True)


@pytest.mark.parametrize(
    ("tie", "verdict", "words"),
    [
        (
            {"at": 2, "top": [[-0.70, 7], [-0.72, 8]]},
            Verdict.PASS,
            "1 leave the reference at a tie",
        ),
        ({"at": 2, "top": [[-0.10, 7], [-2.3, 8]]}, Verdict.FAIL, "2.2 nats apart"),
        ({"at": 2, "top": [[-0.10, 7]]}, Verdict.FAIL, "scores are not known"),
        ({"at": 1, "top": [[-0.70, 7], [-0.72, 8]]}, Verdict.FAIL, "scores are not known"),
        ({"at": 2, "top": "HTTP 400: no"}, Verdict.FAIL, "scores are not known"),
        (None, Verdict.FAIL, "scores are not known"),
    ],
)
def test_a_margin_forgives_ties_alone(tie: object, verdict: Verdict, words: str) -> None:
    found, message = judge(answers(output_ids=[5, 6, 8], tie=tie), "margin<=0.05")
    assert (found, words in message) == (verdict, True)


def test_a_margin_is_asked_of_every_answer() -> None:
    tie = {"at": 1, "top": [[-0.7, 6], [-0.7, 9]]}
    rows = answers(output_ids=[5, 9, 9], tie=tie)
    rows[1] = {**rows[1], "output_ids": [8, 8, 8, 8]}
    assert judge(rows, "margin<=0.05")[0] is Verdict.FAIL
    assert judge(answers(), "margin<=0")[0] is Verdict.PASS
    short = answers(output_ids=[5, 6])
    assert judge(short, "margin<=9")[0] is Verdict.FAIL, "an answer that ends early is no tie"


def soak(*looks: Observation) -> GateResult | None:
    return judge_soak(looks, "op", RELEASE, {"tp_size": 8}, 12.0)


def test_a_soak_goes_on_while_all_is_well_and_one_answer_is_late() -> None:
    late = but(health=Answer(None, "timed out"))
    assert soak(WELL, WELL) is None
    assert soak(WELL, WELL, late) is None
    assert soak(WELL, late, WELL) is None
    failed = soak(WELL, late, late)
    assert failed is not None
    assert (failed.name, failed.verdict) == ("G6", Verdict.FAIL)
    assert "G2 after 12 s" in failed.message
    assert soaked(late, 30.0, {"looks": 3}).verdict is Verdict.FAIL
    assert soaked(WELL, 30.0, {"looks": 3}).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (but(launch=dataclasses.replace(LAUNCH, nonce="n2")), "G0 after 12 s: the engine was rest"),
        (but(engine=State.DOWN, engine_why="gone"), "not running: gone"),
        (but(port=Port(30000, True, False, "pid 9 nginx")), "held by pid 9 nginx"),
        (but(server_info=Answer(200, values={"tp_size": 4})), "tp_size is 4"),
    ],
)
def test_a_soak_ends_at_once_where_the_start_is_not_what_it_was(
    look: Observation, words: str
) -> None:
    failed = soak(WELL, look)
    assert failed is not None
    assert failed.verdict is Verdict.FAIL
    assert words in failed.message


def test_commit_length_without_counts_is_unknown_and_on_autoregressive_skipped() -> None:
    bare = answers(meta={"weight_version": "w"})
    assert judge(bare, "commit_length>=2")[0] is Verdict.UNKNOWN
    assert judge(bare, "commit_length>=2", speculative=False)[0] is Verdict.SKIP


def test_gates_without_a_golden_file_or_of_no_known_name_fail() -> None:
    (result,) = judge_golden(("exactness",), None, [], "w")
    assert result.verdict is Verdict.FAIL
    assert judge(answers(), "vibes")[0] is Verdict.FAIL
    (none,) = judge_golden((), None, [], "w")
    assert none.verdict is Verdict.SKIP


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"schema": "x"}', '{"schema": "ddops.golden/1", "prompts": []}',
        _HEAD + '[{"id": "a", "input_ids": [], "output_ids": [1]}]}',
        _HEAD + '[{"id": "a", "input_ids": [1], "output_ids": []}]}',
        _HEAD + '[{"id": "a", "input_ids": [1]}]}',
    ],
)  # fmt: skip
def test_a_golden_file_with_anything_odd_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="not a golden file"):
        parse_golden(text, "g.json")


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "ddops.observation/0"}', "[1]"])
def test_an_observation_of_no_known_shape_is_an_error(text: str) -> None:
    with pytest.raises(CommandFailed, match="not readable"):
        parse_observation(text)
