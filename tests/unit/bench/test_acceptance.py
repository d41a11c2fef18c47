"""Faults that public tools were reported for, one test a row; docs/reference/bench-acceptance.md.

Times are made by hand, so every expected number is exact.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddops.bench.answer import Sample
from ddops.bench.figures import (
    Figures,
    chunk_gaps_ns,
    commit_of,
    figures,
    first_answer_ns,
    per_token_ns,
    tpot_ns,
    ttft_ns,
)
from ddops.bench.plan import Point
from ddops.bench.prompts import read_prompts
from ddops.bench.record import cell_of
from ddops.bench.validity import Asked, judge_run, warnings_of, worst
from ddops.bench.window import Window, closed_window, open_window
from ddops.errors import ConfigError
from ddops.hostside.load.around import Server
from ddops.ledger.bench_records import Status
from tests.unit.bench.inventory import HOST, PROMPTS, SERVICE, SUITE, profile
from tests.unit.bench.support import (
    MS,
    ROLE,
    closed,
    closing,
    even,
    event,
    later,
    load,
    native,
    read,
    stream,
    usage,
)


def asked(**changes: Any) -> Asked:
    base = Asked(
        route="generate", concurrency=4, weight_version="v", output_tokens=200, ignore_eos=True,
        speculative=False, max_send_delay_ms=5.0, max_noise=0.02,
    )  # fmt: skip
    return replace(base, **changes)


def judged(samples: list[Sample], wish: Asked, **changes: Any) -> tuple[Status, str]:
    window = closed_window(samples, wish.concurrency or 1, 1)
    numbers = figures(samples, window, closed=True) if window.ns > 0 else None
    return worst(judge_run(load(samples, **changes), window, numbers, wish))


def all_of(samples: list[Sample], concurrency: int) -> tuple[Window, Figures]:
    window = closed_window(samples, concurrency, 1)
    return window, figures(samples, window, closed=True)


def test_a_run_short_of_its_level_does_not_count() -> None:
    """One slot of four is empty for a fifth of the time."""
    samples = closed(even(200, 10.0), 4, 6)
    assert judged(samples, asked())[0] is Status.VALID
    gone = [
        replace(s, sent=s.sent + 400 * MS, free_at=s.sent + 400 * MS)
        if s.slot == 3 and s.sent is not None
        else s
        for s in samples
    ]
    status, why = judged(gone, asked())
    assert status is Status.VOID
    assert "delivered concurrency: 3.8" in why


# ---- A: tokens and times


def test_four_tokens_a_chunk_have_three_intervals() -> None:
    sample = even(200, 40.0, each=4)
    assert set(chunk_gaps_ns(sample)) == {40 * MS}
    assert {(v, n) for v, n in per_token_ns(sample)} == {(10.0 * MS, 4)}
    assert tpot_ns(sample) == 10.0 * MS


def test_the_peak_is_never_below_the_mean() -> None:
    samples = closed(even(200, 40.0, each=4), 16, 5)
    _, numbers = all_of(samples, 16)
    assert numbers.peak_tps is not None
    assert numbers.output_tps is not None
    assert numbers.peak_tps >= numbers.output_tps
    broken = replace(numbers, peak_tps=numbers.output_tps / 4)
    window = closed_window(samples, 16, 1)
    wish = asked(concurrency=16)
    assert "peak" in worst(judge_run(load(samples), window, broken, wish))[1]


def test_half_a_character_is_credited_when_the_count_rises() -> None:
    events = [
        (50, native(1)), (60, event({"text": "", "output_ids": [0, 1], "meta_info": {
            "completion_tokens": 2, "weight_version": "v"}})), (70, native(3)),
    ]  # fmt: skip
    sample = read(stream(events))
    assert sample.ok
    assert [c.hi // MS for c in sample.chunks] == [50, 60, 70]
    assert tpot_ns(sample) == 10.0 * MS


def test_counts_without_text_make_the_request_invalid() -> None:
    sample = read(stream([(50, ROLE), (60, closing(5))]), "chat")
    assert sample.outcome == "no_first_token"
    assert ttft_ns(sample) is None
    assert tpot_ns(sample) is None


def test_uneven_chunks_give_the_exact_series() -> None:
    counts = [1, 4, 6, 11]  # 1, 3, 2, 5 tokens
    events = [(50 + 30 * i, usage(c)) for i, c in enumerate(counts)]
    sample = read(stream([*events, (141, closing(11))]), "chat")
    assert per_token_ns(sample) == [(10 * MS, 3), (15 * MS, 2), (6 * MS, 5)]


def test_tokens_of_the_first_chunk_are_not_in_the_divisor() -> None:
    events = [(50, native(16))] + [(50 + 10 * i, native(16 + i)) for i in range(1, 185)]
    sample = read(stream(events))
    assert sample.tokens == 200
    assert tpot_ns(sample) == 10.0 * MS  # 184 intervals of 10 ms over 184 tokens, not 199


@pytest.mark.parametrize("text", ["a", "b", " ab", " "])
def test_nothing_is_tokenised_again(text: str) -> None:
    """A tokenizer that adds a begin token, or joins blanks, cannot change a count: none is used."""
    events = [(50 + i, usage(i + 1, text)) for i in range(100)]
    sample = read(stream([*events, (151, closing(100))]), "chat")
    assert sample.tokens == 100
    assert [c.tokens for c in sample.chunks] == [1] * 100
    # A stream whose running count does not end where the closing count says is not believed.
    wrong = read(stream([*events, (151, closing(90))]), "chat")
    status, why = judged(closed(wrong, 1, 3), asked(concurrency=1, route="chat", output_tokens=90))
    assert status is Status.INVALID
    assert "counted 100 tokens, the end 90" in why


def test_one_token_over_two_chunks_is_one() -> None:
    events = [(50, usage(1, "Hel")), (51, usage(1, "lo")), (60, usage(2, "!"))]
    sample = read(stream([*events, (61, closing(2))]), "chat")
    assert sample.tokens == 2
    assert len(sample.chunks) == 2


@pytest.mark.parametrize("each", [1, 2, 4, 8, 16])
def test_throughput_does_not_depend_on_tokens_a_chunk(each: int) -> None:
    samples = closed(even(192, 10.0 * each, each=each, first_ms=10.0 * each), 2, 8)
    _, numbers = all_of(samples, 2)
    assert numbers.output_tps == pytest.approx(2 * 100.0, rel=0.01)
    assert tpot_ns(samples[0]) == pytest.approx(10.0 * MS)


def test_a_role_is_no_token() -> None:
    sample = read(stream([(1, ROLE), (50, usage(1)), (51, closing(1))]), "chat")
    assert ttft_ns(sample) == 50 * MS


def test_reasoning_counts_and_the_answer_has_its_own_time() -> None:
    events = [(100, usage(1, None, reasoning="so")), (2000, usage(2, "yes"))]
    sample = read(stream([*events, (2001, closing(2))]), "chat")
    assert ttft_ns(sample) == 100 * MS
    assert first_answer_ns(sample) == 2000 * MS
    only = read(stream([(100, usage(1, None, reasoning="so")), (101, closing(1))]), "chat")
    assert ttft_ns(only) == 100 * MS
    assert first_answer_ns(only) is None


def test_an_answer_held_back_and_sent_at_once_is_no_speed() -> None:
    held = even(200, 0.001, first_ms=2000.0)
    status, why = judged(closed(held, 1, 4), asked(concurrency=1))
    assert status is Status.INVALID
    assert "impossibly fast" in why


def test_missing_usage_is_an_error_and_never_the_length_asked_for() -> None:
    text = event({"choices": [{"index": 0, "delta": {"content": "x"}}]})
    silent = read(stream([(50, text), (60, text)]), "chat")
    assert silent.outcome == "no_usage"
    assert silent.tokens is None
    counted = read(
        stream([(50 + i, usage(i + 1)) for i in range(50)] + [(101, closing(50))]), "chat"
    )
    assert counted.tokens == 50  # of 200 asked for


def test_an_end_that_came_too_early_fails_the_audit() -> None:
    status, why = judged(closed(even(50, 10.0), 2, 4), asked(concurrency=2))
    assert status is Status.INVALID
    assert "200 tokens asked for; the first has 50" in why
    assert judged(closed(even(50, 10.0), 2, 4), asked(concurrency=2, ignore_eos=False))[0] is (
        Status.VALID
    )


# ---- B: load


def test_open_loop_percentiles_count_from_the_schedule() -> None:
    samples = [
        replace(later(even(10, 10.0), 100.0 * n, n=n), scheduled=10 * n * MS) for n in range(40)
    ]
    window = Window(0, 10**12, "all", True)
    numbers = figures(samples, window, closed=False)
    service, response = numbers.spread["ttft_p50_ms"], numbers.spread["response_ttft_p50_ms"]
    assert service == pytest.approx(50.0)
    assert response == pytest.approx(50.0 + 90 * 19.5)


def test_the_ramp_is_not_in_the_window() -> None:
    slow, fast = even(200, 100.0, first_ms=500.0), even(200, 10.0)
    assert slow.end is not None
    rest = [later(s, slow.end / MS, n=s.n + 2, slot=s.slot) for s in closed(fast, 2, 6)]
    samples = [later(slow, 0, n=0, slot=0), later(slow, 0, n=1, slot=1), *rest]
    window, numbers = all_of(samples, 2)
    assert window.start == slow.end
    _, alone = all_of(closed(fast, 2, 7), 2)
    assert numbers.output_tps == pytest.approx(alone.output_tps, rel=0.01)


def test_a_client_near_its_ceiling_is_not_taken_for_the_server() -> None:
    samples = closed(even(200, 10.0), 2, 5)
    client = {"clock_step_ns": 0, "stopped": "", "cpu_s": 9.9, "wall_s": 10.0,
              "capacity_reads_s": 40000.0}  # fmt: skip
    status, why = judged(samples, asked(concurrency=2), client=client)
    assert status is Status.VOID
    assert "99% of its core" in why


def test_waiting_in_the_client_has_its_own_number() -> None:
    samples = [
        replace(later(even(10, 10.0), 0.0, n=n), scheduled=-30_000 * MS, free_at=0)
        for n in range(8)
    ]
    numbers = figures(samples, Window(-(10**12), 10**12, "all", True), closed=False)
    assert numbers.spread["ttft_p50_ms"] == pytest.approx(50.0)
    queue = numbers.more["client_queue_p99_ms"]
    assert isinstance(queue, float)
    assert queue >= 30_000


# ---- C: the server's state


def test_prompts_answered_from_a_cache_void_the_comparison() -> None:
    warm = even(200, 10.0, cached_tokens=9)
    status, why = judged(closed(warm, 2, 4), asked(concurrency=2))
    assert status is Status.INVALID
    assert "prefix cache" in why
    assert judged(closed(even(200, 10.0), 2, 4), asked(concurrency=2))[0] is Status.VALID


def test_slow_first_waves_are_cut_by_rule_until_nothing_changes() -> None:
    slow, fast = even(200, 40.0), even(200, 10.0)
    assert slow.end is not None
    first = closed(slow, 1, 2)
    rest = [later(s, 2 * slow.end / MS, n=s.n + 2) for s in closed(fast, 1, 12)]
    window, numbers = all_of([*first, *rest], 1)
    assert window.steady
    assert window.cut_tiles > 0
    assert window.start >= 2 * slow.end  # the second slow one came after the warm-up wave
    assert numbers.output_tps == pytest.approx(200 / (fast.end or 1) * 1e9, rel=0.02)


def test_what_never_settles_is_void() -> None:
    speeds = [10.0, 14.0, 19.0, 26.0, 36.0, 50.0, 70.0, 95.0, 130.0]
    samples, at = [], 0.0
    for n, gap in enumerate(speeds):
        one = even(200, gap)
        samples.append(later(one, at, n=n))
        at += (one.end or 0) / MS
    status, why = judged(samples, asked(concurrency=1))
    assert status is Status.VOID
    assert "never settle" in why


def test_other_work_on_the_server_voids_the_run() -> None:
    status, why = judged(closed(even(200, 10.0), 2, 4), asked(concurrency=2), idle=False)
    assert status is Status.VOID
    assert "other requests" in why


def test_an_answer_of_another_start_never_counts() -> None:
    other = even(200, 10.0, weight_version="old-1")
    status, why = judged(closed(other, 2, 4), asked(concurrency=2))
    assert status is Status.INVALID
    assert "old-1" in why
    refused = load([], refused="the server says it is 'old-1', not 'v'")
    window = Window(0, 0, "", False)
    assert worst(judge_run(refused, window, None, asked()))[0] is Status.VOID


def test_a_server_that_runs_fewer_at_once_is_seen_and_labelled() -> None:
    one = even(200, 10.0)
    took = (one.end or 0) / MS
    # Eight wait, two run: each answer begins when the one four places before has ended.
    samples = []
    for n in range(48):
        ran = later(one, took * (n // 2), n=n, slot=n % 8)
        samples.append(replace(ran, sent=max(0, (ran.sent or 0) - round(3 * took * MS))))
    conditions = tuple({"at": int(i * 1e9), "running": 2.0} for i in range(1, 40))
    status, why = judged(samples, asked(concurrency=8), conditions=conditions)
    assert status is Status.VOID
    assert "C_eff=2" in why
    assert "says itself that it ran at most 2" in why
    samples, look = closed(one, 8, 4), load([]).before
    status, why = judged(samples, asked(concurrency=8), before=replace(look, running_limit=4))
    assert status is Status.VOID
    assert "runs 4 requests at once" in why


# ---- D: speculative decoding


def test_no_count_of_steps_is_not_measured_and_never_stale() -> None:
    samples = closed(even(200, 10.0), 2, 4)  # a server with gauges from an earlier load
    window, numbers = all_of(samples, 2)
    assert commit_of(samples, window) is None
    warned = warnings_of(numbers, asked(speculative=True))
    assert any("not measured" in w for w in warned)


def test_ranks_are_weighted_by_their_verify_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def spec(tokens: int, steps: int, n: int) -> Sample:
        one = even(tokens, 1.0, each=tokens // 4, spec_verify_ct=steps)
        return later(one, 0.0, n=n)

    samples = [spec(100, 33, 0), spec(400, 57, 1)]
    commit = commit_of(samples, Window(-1, 10**12, "all", True))
    assert commit is not None
    assert commit.length == pytest.approx((99 + 399) / (33 + 57))
    states = [None, None, {"effective_max_running_requests_per_dp": 2},
              {"effective_max_running_requests_per_dp": 3}]  # fmt: skip
    server = Server("127.0.0.1", 1, None)
    monkeypatch.setattr(server, "json", lambda _path: {"internal_states": states})
    assert server.identity()["running_limit"] == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"spec_verify_ct": 40, "spec_num_correct_drafts": 10},
        {"spec_verify_ct": 100, "spec_num_correct_drafts": 100,
         "spec_correct_drafts_histogram": [1, 2]},
        {"spec_verify_ct": 100, "spec_num_correct_drafts": 100, "spec_accept_length": 3.0},
    ],
)  # fmt: skip
def test_counts_that_contradict_each_other_are_not_believed(changes: dict[str, Any]) -> None:
    samples = closed(even(200, 10.0, **changes), 2, 4)
    status, why = judged(samples, asked(concurrency=2, speculative=True))
    assert status is Status.INVALID
    assert "counts" in why


def test_counts_that_agree_pass() -> None:
    good: dict[str, Any] = {
        "spec_verify_ct": 100, "spec_num_correct_drafts": 100, "spec_accept_length": 2.0,
        "spec_correct_drafts_histogram": [40, 30, 20, 10],
    }  # fmt: skip
    samples = closed(even(200, 10.0, **good), 2, 4)
    assert judged(samples, asked(concurrency=2, speculative=True))[0] is Status.VALID


def test_random_tokens_cannot_be_asked_for(tmp_path: Path) -> None:
    """Acceptance on random tokens says nothing, so a suite takes texts from a file alone."""
    bad = tmp_path / "random.jsonl"
    bad.write_text('{"id": "r", "input_ids": [5, 9, 1]}\n')
    with pytest.raises(ConfigError, match="`text` is missing"):
        read_prompts(bad, "random.jsonl")


@pytest.mark.parametrize(
    ("row", "option", "part"),
    [
        ("d7", "disable-cuda-graph", "graph"),
        ("d8", "disable-overlap-schedule", "overlap"),
    ],
)
def test_graph_and_overlap_keep_cells_from_being_compared(row: str, option: str, part: str) -> None:
    """GPU-only rows: the rule is in the cell's key, so that `compare` refuses the pair."""
    plain, other = profile(), profile(launch={option: True})
    cells = [cell_of(SERVICE, HOST, p, "0" * 64, SUITE, PROMPTS, Point(4)) for p in (plain, other)]
    assert row
    assert cells[0].comparable != cells[1].comparable
    assert [c.fix[part] for c in cells] == [True, False]


def test_replacement_characters_are_counted() -> None:
    text = "\ufffd" * 200
    events = [
        (50 + 10 * i, event({"text": text[: i + 1], "output_ids": list(range(i + 1)), "meta_info": {
            "completion_tokens": i + 1, "weight_version": "v", "prompt_tokens": 10}}))
        for i in range(200)
    ]  # fmt: skip
    samples = closed(read(stream(events)), 2, 4)
    status, why = judged(samples, asked(concurrency=2))
    assert status is Status.INVALID
    assert "replacement characters" in why


def test_speculation_that_helps_nothing_is_said() -> None:
    samples = closed(even(200, 10.0, spec_verify_ct=199), 2, 4)
    _, numbers = all_of(samples, 2)
    assert numbers.commit is not None
    assert numbers.commit.length == 1.0
    assert any("helps nothing" in w for w in warnings_of(numbers, asked(speculative=True)))


# ---- F: what counts


def test_a_server_killed_in_the_run_leaves_no_number() -> None:
    samples = closed(even(200, 10.0), 2, 4)
    samples[-1] = replace(samples[-1], outcome="truncated", why="closed by the server")
    status, why = judged(samples, asked(concurrency=2))
    assert status is Status.INVALID
    assert "1 truncated of 8" in why


@pytest.mark.parametrize(
    "reads",
    [
        [(1.0, b"HTTP/1.1 503 x\r\nContent-Length: 4\r\n\r\nbusy")],
        stream([(50, native(1)), (60, event({"error": {"message": "boom"}}))]),
    ],
)
def test_an_error_is_no_success(reads: list[tuple[float, bytes]]) -> None:
    failed = read(reads)
    assert not failed.ok
    good = closed(even(200, 10.0), 2, 4)
    status, why = judged([replace(failed, end=good[-1].end, n=8), *good], asked(concurrency=2))
    assert status is not Status.VALID
    assert failed.outcome in why


def test_another_flag_is_another_cell() -> None:
    old, new = profile(), profile(launch={"chunked-prefill-size": 4096})
    keys = [cell_of(SERVICE, HOST, p, "0" * 64, SUITE, PROMPTS, Point(4)).key for p in (old, new)]
    assert keys[0] != keys[1]
    same = cell_of(SERVICE, HOST, profile(), "0" * 64, SUITE, PROMPTS, Point(4))
    assert same.key == keys[0]


def test_open_window_is_the_schedule() -> None:
    samples = [replace(later(even(10, 10.0), 0.0, n=n), scheduled=n * MS) for n in range(3000)]
    window = open_window(samples, 1.0)
    assert (window.start, window.end, window.steady) == (1000 * MS, 2999 * MS, True)
    assert not open_window(samples[:10], 1.0).steady
