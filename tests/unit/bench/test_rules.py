"""What makes a run count for nothing: each rule alone, on a run that is valid but for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ddops.bench.answer import Load, Sample
from ddops.bench.figures import figures
from ddops.bench.validity import judge_run, worst
from ddops.bench.window import closed_window
from ddops.ledger.bench_records import Status
from tests.unit.bench.support import MS, closed, even, load
from tests.unit.bench.test_acceptance import asked

RUN = load(closed(even(200, 10.0), 4, 5))
HOT = {"at": 1, "gpus": [{"clocks_event_reasons.active": "0x0000000000000020"}]}


def client(**changes: Any) -> Load:
    return replace(RUN, client={**RUN.client, **changes})


def look(**changes: Any) -> Load:
    return replace(RUN, before=replace(RUN.before, **changes))


def each(change: Callable[[Sample], Sample]) -> Load:
    return replace(RUN, samples=tuple(map(change, RUN.samples)))


def left_late(sample: Sample) -> Sample:
    return replace(sample, free_at=sample.free_at - 6 * MS)


def seen_late(sample: Sample) -> Sample:
    """All its events were in reads that began 50 ms before."""
    chunks = tuple(c._replace(lo=c.lo - 50 * MS) for c in sample.chunks)
    return replace(sample, chunks=chunks)


def judged(run: Load) -> tuple[Status, str]:
    window = closed_window(run.samples, 4, 1)
    wish = asked(concurrency=4)
    return worst(judge_run(run, window, figures(run.samples, window, closed=True), wish))


def test_the_run_is_valid_but_for_the_rule() -> None:
    assert judged(RUN)[0] is Status.VALID


@pytest.mark.parametrize(
    ("run", "status", "says"),
    [
        (replace(RUN, after=replace(RUN.after, weight_version="w")), Status.VOID, "'w' after"),
        (look(process={"pid": 1, "start_ticks": 1}), Status.VOID, "restart: the engine's process"),
        (look(process={**RUN.before.process, "same": False}), Status.VOID, "restart: the engine"),
        (look(environment={"SGLANG_SIMULATE_ACC_LEN": "3"}), Status.INVALID, "SIMULATE_ACC_LEN is"),
        (each(lambda s: replace(s, retractions=s.n == 7)), Status.VOID, "took 1 requests back"),
        (replace(RUN, conditions=(HOT, {})), Status.VOID, "held down at 1 of 2 looks"),
        (client(clock_step_ns=-2_000_000), Status.VOID, "the clock was set by -2.0 ms"),
        (client(stopped="deadline"), Status.VOID, "stopped: deadline"),
        (client(look_every_s=1.0, unlooked_s=13.5), Status.VOID, "nobody looked at GPUs"),
        (each(left_late), Status.VOID, "requests left 6.0 ms late"),
        (replace(RUN, noise_before=0.03), Status.VOID, "others took 3% of the core"),
        (replace(RUN, noise_after=0.03), Status.VOID, "others took 3% of the core"),
        (each(seen_late), Status.VOID, "the median TTFT is known to 50.0 ms only"),
    ],
)
def test_each_rule_alone_keeps_a_run_out(run: Load, status: Status, says: str) -> None:
    found, why = judged(run)
    assert found is status
    assert says in why


@pytest.mark.parametrize(("every", "without"), [(1.0, 12.5), (60.0, 61.0), (None, 600.0)])
def test_looks_as_far_apart_as_they_were_asked_for_are_enough(
    every: float | None, without: float
) -> None:
    assert judged(client(look_every_s=every, unlooked_s=without))[0] is Status.VALID


def test_a_commit_length_above_the_width_of_a_verify_pass_is_impossible() -> None:
    run = load(closed(even(200, 10.0, spec_verify_ct=50), 4, 5))
    wide = replace(run, before=replace(run.before, info={"speculative_num_draft_tokens": 4}))
    narrow = replace(run, before=replace(run.before, info={"speculative_num_draft_tokens": 3}))
    assert judged(wide)[0] is Status.VALID
    status, why = judged(narrow)
    assert status is Status.INVALID
    assert "is outside 1 to 3" in why


def test_a_run_without_answers_is_no_run() -> None:
    found = judge_run(load(()), closed_window((), 4, 1), None, asked(concurrency=4))
    assert "requests: no answer at all" in [str(f) for f in found]
