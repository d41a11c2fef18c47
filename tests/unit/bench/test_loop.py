"""The loop against a server that knows the truth. Rows B and C of the acceptance table too."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ddops.hostside.load as package
from ddops.bench.answer import Load, parse_load
from ddops.bench.figures import figures, ttft_ns
from ddops.bench.plan import LoadPlan, Request, Where
from ddops.bench.prompts import constant_schedule, poisson_schedule
from ddops.bench.validity import Asked, judge_run, worst
from ddops.bench.window import closed_window, open_window
from ddops.hostside.load.loop import Loop
from ddops.hostside.load.stamps import Warm
from ddops.ledger.bench_records import Status
from tests.unit.bench.mock import Answer, Mock, serving, tokens
from tests.unit.bench.support import MS, native

FOLDER = str(Path(package.__file__).parents[1])


def run(mock: Mock, count: int, *, payload: str = "x", files: str = "1024", **changes: Any) -> Load:
    """The client as it runs on a host: a process of its own, plan in, answer out."""
    within = ["/bin/sh", "-c", f'ulimit -Sn {files}; exec "$@"', "sh"]
    base: dict[str, Any] = {
        "where": Where(host="127.0.0.1", port=mock.port, model="m"),
        "route": "generate",
        "common": {"stream": True},
        "requests": [Request(id=f"p{i}", body={"text": payload}) for i in range(count)],
        "concurrency": 4,
        "timeout_s": 10.0,
        "deadline_s": 30.0,
        "noise_s": 0.0,
        "sample_s": 0.0,
        "idle_budget_s": 2.0,
    }
    plan = LoadPlan(**{**base, **changes})
    done = subprocess.run(
        [*within, sys.executable, "-m", "load"], input=plan.dump(), capture_output=True, timeout=90,
        env={"PYTHONPATH": FOLDER, "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return parse_load(done.stdout)


def test_every_request_is_answered_and_told_apart() -> None:
    with serving(Mock(tokens(5, 0.002))) as mock:
        load = run(mock, 12)
    assert [s.n for s in load.samples] == list(range(12))
    assert {s.outcome for s in load.samples} == {"ok"}
    assert {s.tokens for s in load.samples} == {5}
    assert {s.connection for s in load.samples} == {"warm"}
    assert mock.most == 4
    assert all(s.sent is not None and s.sent_by is not None for s in load.samples)
    assert all((s.sent_by or 0) >= (s.sent or 0) for s in load.samples)
    assert load.idle is True
    assert load.client["stopped"] == ""


def test_the_kernel_says_when_or_the_answer_says_that_it_does_not() -> None:
    with serving(Mock(tokens(5, 0.005))) as mock:
        load = run(mock, 4)
    warm = Warm()
    works = bool(warm.works)
    warm.close()
    assert load.client["kernel_stamps"] is works
    if not works:
        assert load.client["why"]


def test_without_kernel_stamps_bounds_are_wider_and_hold() -> None:
    with serving(Mock(tokens(20, 0.005))) as mock:
        loop = Loop(
            ("127.0.0.1", mock.port), [request(mock)] * 4, {"concurrency": 2},
            {"connections": "warm", "timeout_s": 5, "deadline_s": 10, "max_raw_bytes": 1 << 20},
            False,
        )  # fmt: skip
        loop.run()
    for exchange in loop.exchanges:
        assert not exchange.error
        pairs = list(zip(exchange.lows, exchange.stamps, strict=True))
        assert all(0 < low <= hi for low, hi in pairs)


def request(mock: Mock) -> bytes:
    body = b'{"text": "x"}'
    head = f"POST /generate HTTP/1.1\r\nHost: x:{mock.port}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_delivered_concurrency_is_what_was_asked_for() -> None:
    with serving(Mock(tokens(30, 0.004))) as mock:
        load = run(mock, 32, concurrency=8)
    assert mock.most == 8
    window = closed_window(load.samples, 8, 1)
    numbers = figures(load.samples, window, closed=True)
    assert numbers.in_flight == pytest.approx(8, rel=0.05)
    # It is counted from when requests were under way, not from how many slots there are.
    half = [s for s in load.samples if s.slot < 4 or s.n < 8]
    thin = figures(half, window, closed=True)
    assert thin.in_flight == pytest.approx(4, rel=0.05)


def test_two_hundred_streams_at_once() -> None:
    with serving(Mock(tokens(3, 0.3, first_s=1.5))) as mock:
        load = run(mock, 200, concurrency=200)
    assert mock.most == 200
    assert all(s.ok for s in load.samples)


def test_a_session_that_may_open_few_files_holds_the_level_all_the_same() -> None:
    with serving(Mock(tokens(2, 0.1, first_s=0.5))) as mock:
        load = run(mock, 60, concurrency=60, files="32")
    assert mock.most == 60
    assert all(s.ok for s in load.samples)


def test_warm_connections_are_open_before_the_clock_runs() -> None:
    with serving(Mock(tokens(2), accept_delay_s=0.02)) as mock:
        warm = run(mock, 16, concurrency=8)
    with serving(Mock(tokens(2), accept_delay_s=0.02)) as mock:
        cold = run(mock, 16, concurrency=8, connections="cold")
    assert {s.connection for s in warm.samples} == {"warm"}
    assert {s.connection for s in cold.samples} == {"cold"}
    first = [t for s in warm.samples if s.n >= 8 and (t := ttft_ns(s)) is not None]
    assert sorted(first)[len(first) // 2] < 20 * MS  # no accept in it


@pytest.mark.parametrize(("connections", "before"), [("warm", 8), ("cold", 0)])
def test_what_is_warm_was_opened_before_the_clock_ran(
    monkeypatch: pytest.MonkeyPatch, connections: str, before: int
) -> None:
    opened: list[int] = []
    real = socket.create_connection

    def noted(*args: Any) -> socket.socket:
        made = real(*args)
        opened.append(time.time_ns())
        return made

    with serving(Mock(tokens(2))) as mock:
        loop = Loop(
            ("127.0.0.1", mock.port), [request(mock)] * 16, {"concurrency": 8},
            {"connections": connections, "timeout_s": 5, "deadline_s": 10,
             "max_raw_bytes": 1 << 20}, False,
        )  # fmt: skip
        monkeypatch.setattr(socket, "create_connection", noted)
        loop.run()
        monkeypatch.undo()
    assert len(opened) == before
    assert all(at <= loop.t0 for at in opened)
    assert mock.connections == (before or 16)  # and none was opened later


def test_large_events_do_not_hold_the_server_back() -> None:
    text = "y" * 100_000

    def big(_n: int, _body: dict[str, Any]) -> Iterator[tuple[float, bytes]]:
        for i in range(1, 11):
            yield 0.0, native(i, weight_version=text)

    with serving(Mock(big)) as mock:
        load = run(mock, 32, concurrency=16)
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", mock.port)) as plain:
            plain.sendall(request(mock))
            got = 0
            while got < 10 * 100_000:
                got += len(plain.recv(1 << 18))
        alone = time.monotonic() - began
    assert all(s.ok for s in load.samples)
    assert load.client["raw_bytes"] > 32 * 10 * 100_000
    assert load.client["raw_bytes"] / load.client["reads"] > 1 << 14  # whole segments at a time
    assert load.end / 1e9 < 32 * max(alone, 0.02) * 4  # the mock's one interpreter is the limit


def test_an_open_loop_keeps_to_its_schedule() -> None:
    rate, count = 100.0, 200
    with serving(Mock(tokens(2, 0.001))) as mock:
        load = run(mock, count, concurrency=None, at_ns=constant_schedule(rate, count),
                   max_connections=64)  # fmt: skip
    sent = [s.sent for s in load.samples if s.sent is not None]
    assert len(sent) == count
    # The schedule is the plan's own, however late the client is.
    assert [s.scheduled for s in load.samples] == constant_schedule(rate, count)
    late = [s.sent - s.scheduled for s in load.samples if s.sent is not None]
    assert min(late) >= 0
    # Other work on this machine delays some; sleeps that add up would delay the whole second half.
    assert min(late[-100:]) < 1e9 / rate
    window = open_window(load.samples, 0.2)
    assert window.steady
    # A run that did not keep to it is void.
    numbers = figures(load.samples, window, closed=False)
    wish = Asked(
        route="generate", concurrency=None, weight_version=None, output_tokens=2, ignore_eos=False,
        speculative=False, max_send_delay_ms=1e9, max_noise=1.0, rate=rate * 1.02,
    )  # fmt: skip
    off = [s for s in judge_run(load, window, numbers, wish) if s.rule == "rate"]
    assert not off  # the schedule itself is what it is held against
    slow = tuple(
        replace(s, sent=None if s.sent is None else round(s.sent * 1.09)) for s in load.samples
    )
    found = judge_run(replace(load, samples=slow), window, numbers, wish)
    assert any(f.rule == "rate" for f in found)


def test_a_server_over_capacity_shows_in_the_response_times() -> None:
    gate = threading.Lock()

    def serial(n: int, body: dict[str, Any]) -> Iterator[tuple[float, bytes]]:
        with gate:
            time.sleep(0.02)
        yield from tokens(1)(n, body)

    with serving(Mock(serial)) as mock:
        load = run(mock, 60, concurrency=None, at_ns=constant_schedule(100, 60), max_connections=4)
    numbers = figures(load.samples, open_window(load.samples, 0.1), closed=False)
    service, response = numbers.spread["ttft_mean_ms"], numbers.spread["response_ttft_mean_ms"]
    assert service is not None
    assert response is not None
    assert response > service + 100  # fifty a second served, a hundred asked for


def test_schedules_are_absolute_and_repeatable() -> None:
    assert constant_schedule(200, 5) == [0, 5 * MS, 10 * MS, 15 * MS, 20 * MS]
    assert poisson_schedule(50, 9, 1) == poisson_schedule(50, 9, 1) != poisson_schedule(50, 9, 2)
    assert all(b > a for a, b in pairwise(poisson_schedule(50, 1000, 1)))
    assert poisson_schedule(50, 20000, 3)[-1] == pytest.approx(400e9, rel=0.05)


def test_a_connection_that_was_closed_meanwhile_is_opened_anew() -> None:
    with serving(Mock(tokens(2), close_idle_after=1)) as mock:
        load = run(mock, 8, concurrency=2)
    assert {s.outcome for s in load.samples} == {"ok"}
    assert {s.connection for s in load.samples if s.n >= 2} == {"reopened"}


@pytest.mark.parametrize(
    ("answer", "changes", "outcome"),
    [
        (tokens(3, 5.0), {"timeout_s": 0.5}, "timeout"),
        (tokens(3, 5.0), {"timeout_s": 60.0, "deadline_s": 0.5}, "unfinished"),
    ],
)
def test_what_takes_too_long_is_ended(
    answer: Answer, changes: dict[str, Any], outcome: str
) -> None:
    began = time.monotonic()
    with serving(Mock(answer)) as mock:
        load = run(mock, 2, concurrency=2, **changes)
    assert {s.outcome for s in load.samples} == {outcome}
    assert time.monotonic() - began < 20


def test_a_server_that_is_gone_ends_the_run_early() -> None:
    mock = Mock(tokens(1))
    with serving(mock):
        pass
    load = run(mock, 5000, concurrency=4, idle_budget_s=0.2)
    assert len(load.samples) < 50
    assert {s.outcome for s in load.samples} == {"refused"}
    assert "takes no connection" in load.client["stopped"]


def test_a_busy_answer_is_counted_as_a_failure() -> None:
    with serving(Mock(tokens(1), status=503)) as mock:
        load = run(mock, 4)
    assert {s.outcome for s in load.samples} == {"http_503"}


def test_nothing_is_sent_to_another_server() -> None:
    with serving(Mock(tokens(1), version="old-1")) as mock:
        where = Where(host="127.0.0.1", port=mock.port, model="m", weight_version="new-2")
        load = run(mock, 4, where=where)
    assert "old-1" in load.refused
    assert mock.seen == []
    wish = Asked(
        route="generate", concurrency=4, weight_version="new-2", output_tokens=1, ignore_eos=True,
        speculative=False, max_send_delay_ms=5, max_noise=1,
    )  # fmt: skip
    window = closed_window(load.samples, 4, 1)
    assert worst(judge_run(load, window, None, wish))[0] is Status.VOID


def test_a_busy_server_is_waited_for_and_then_said_to_be_busy() -> None:
    metrics = "sglang:num_running_reqs 20\nsglang:num_queue_reqs 0\n"
    with serving(Mock(tokens(1), metrics=metrics)) as mock:
        load = run(mock, 4, idle_budget_s=0.5)
    assert load.idle is False


def test_memory_is_bounded_by_the_limit() -> None:
    payloads_seen: list[int] = []
    with serving(Mock(tokens(50))) as mock:
        loop = Loop(
            ("127.0.0.1", mock.port), [request(mock)] * 400, {"concurrency": 2},
            {"connections": "warm", "timeout_s": 5, "deadline_s": 20, "max_raw_bytes": 50_000},
            False,
        )  # fmt: skip
        loop.run()
        payloads_seen.append(len(mock.seen))
    assert "bytes were received" in loop.stopped
    assert payloads_seen[0] < 400


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"schema": "other"}', b"\xff\xfe"])
def test_a_plan_that_is_none_is_refused(text: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "load"], input=text, capture_output=True, timeout=30,
        env={"PYTHONPATH": FOLDER, "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert done.returncode == 64
    assert b"not a plan" in done.stderr


@pytest.mark.parametrize(
    "data", [b"", b"{}", zlib.compress(b"{}"), zlib.compress(b"[1]"), zlib.compress(b"{")[:5]]
)
def test_an_answer_that_is_none_is_an_error(data: bytes) -> None:
    from ddops.errors import CommandFailed

    with pytest.raises(CommandFailed, match="not readable"):
        parse_load(data)


@pytest.mark.parametrize("payload", ["", "\u00e9\u4e2d\U0001f600", "\0\x1b", "z" * 2_000_000])
def test_prompts_of_any_kind_arrive_whole(payload: str) -> None:
    with serving(Mock(tokens(1))) as mock:
        load = run(mock, 2, payload=payload, concurrency=1)
    assert [s.outcome for s in load.samples] == ["ok", "ok"]
    assert [b["text"] for b in mock.seen] == [payload, payload]


def test_an_interrupt_ends_the_run_and_keeps_what_was_measured(
    tmp_path: Path,
) -> None:
    with serving(Mock(tokens(5, 0.02))) as mock:
        plan = LoadPlan(
            where=Where(host="127.0.0.1", port=mock.port, model="m"), route="generate",
            common={"stream": True}, requests=[Request(id="p", body={"text": "x"})] * 2000,
            concurrency=2, deadline_s=60, noise_s=0.0, sample_s=0.0, idle_budget_s=1.0,
        )  # fmt: skip
        file = tmp_path / "plan.json"
        file.write_bytes(plan.dump())
        with file.open("rb") as stdin:
            child = subprocess.Popen(
                [sys.executable, "-m", "load"], stdin=stdin, stdout=subprocess.PIPE,
                env={"PYTHONPATH": FOLDER, "PATH": "/usr/bin:/bin"},
            )  # fmt: skip
        wait_for(lambda: len(mock.seen) > 6)
        child.terminate()
        out, _ = child.communicate(timeout=30)
    load = parse_load(out)
    assert load.client["stopped"] == "signal"
    assert 0 < sum(s.ok for s in load.samples) < 2000
    assert json.loads(zlib.decompress(out))["schema"] == "ddops.load/1"


def wait_for(there: Callable[[], bool], limit_s: float = 20.0) -> None:
    began = time.monotonic()
    while not there():
        assert time.monotonic() - began < limit_s
        time.sleep(0.02)
