"""Connecting politely, fanning out, the host in memory, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ddops.command import Cmd, cmd, sh
from ddops.errors import DeadlineExceeded, HostKeyError, TransportLost, UnreachableError
from ddops.model import Result
from ddops.transport import ConnectPolicy, FakeTransport, LocalTransport, fan_out
from ddops.transport.common import Bounded, Job, OverdueError, brief
from ddops.transport.fake import Hang
from ddops.transport.files import read_file, write_file
from ddops.transport.policy import TransientConnectError


def test_transient_failures_are_tried_again_with_growing_waits() -> None:
    slept: list[float] = []
    policy = ConnectPolicy(attempts=4, backoff_s=1.0, sleep=slept.append, random=lambda: 0.5)
    left = [TransientConnectError("no", why="refused") for _ in range(3)]

    def attempt() -> str:
        if left:
            raise left.pop()
        return "up"

    assert policy.connect(attempt) == "up"
    assert slept == [1.0, 2.0, 4.0]


def test_the_last_failure_says_how_often() -> None:
    policy = ConnectPolicy(sleep=lambda _: None)

    def attempt() -> None:
        raise TransientConnectError("no", why="refused")

    with pytest.raises(UnreachableError) as caught:
        policy.connect(attempt)
    assert caught.value.why == "refused (3 tries)"


@pytest.mark.parametrize("error", [UnreachableError("login"), HostKeyError("key"), ValueError()])
def test_other_failures_are_not_tried_again(error: Exception) -> None:
    calls: list[int] = []
    policy = ConnectPolicy(sleep=lambda _: pytest.fail("waited"))

    def attempt() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        policy.connect(attempt)
    assert calls == [1]


def test_jitter_spreads_the_waits() -> None:
    slept: list[float] = []
    values = iter([0.0, 1.0])
    policy = ConnectPolicy(
        attempts=2, backoff_s=1.0, sleep=slept.append, random=lambda: next(values)
    )

    def attempt() -> None:
        raise TransientConnectError("no")

    for _ in range(2):
        with pytest.raises(TransientConnectError):
            policy.connect(attempt)
    assert slept == [0.5, 1.5]


def test_slots_are_shared_and_free_while_waiting() -> None:
    waiting = threading.Event()
    release = threading.Event()

    def sleep(_: float) -> None:
        waiting.set()
        release.wait(5)

    policy = ConnectPolicy(concurrent=1, attempts=2, sleep=sleep)
    answers = iter([TransientConnectError("no"), None])

    def flaky() -> str:
        error = next(answers)
        if error is not None:
            raise error
        return "late"

    first = Job(lambda: policy.connect(flaky), "first")
    assert waiting.wait(5)
    assert policy.connect(lambda: "other") == "other"
    release.set()
    assert first.within(5) == "late"


@pytest.mark.parametrize("bad", [{"concurrent": 0}, {"attempts": 0}])
def test_policies_that_allow_nothing(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        ConnectPolicy(**bad)  # type: ignore[arg-type]


# Fan-out.


def test_order_outcomes_and_bound() -> None:
    at_once, most, lock = 0, 0, threading.Lock()

    def work(number: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.005 * (5 - number % 5))
        with lock:
            at_once -= 1
        if number == 3:
            raise TransportLost("lost")
        if number == 4:
            raise ValueError(number)
        return number * 10

    outcomes = fan_out(range(20), work, parallel=4)
    assert [item for item, _ in outcomes] == list(range(20))
    assert isinstance(outcomes[3][1], TransportLost)
    assert isinstance(outcomes[4][1], ValueError)
    assert [o for n, o in outcomes if n not in (3, 4)] == [
        n * 10 for n in range(20) if n not in (3, 4)
    ]
    assert most == 4


def test_nothing_to_do() -> None:
    assert fan_out([], lambda item: item) == []
    with pytest.raises(ValueError, match="parallel"):
        fan_out([1], lambda item: item, parallel=0)


def test_interrupt_is_prompt_and_starts_nothing_new() -> None:
    started: list[int] = []

    def work(number: int) -> None:
        started.append(number)
        if number == 1:
            raise KeyboardInterrupt
        time.sleep(0.5)

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fan_out(range(100), work, parallel=2)
    assert time.monotonic() - start < 0.4
    time.sleep(0.6)
    assert len(started) <= 4


# The host in memory.


def test_handlers_and_the_record() -> None:
    host = FakeTransport("h").on("nvidia-smi", "first").on("nvidia-smi", b"second")
    host.on(lambda c: "--bad" in c.argv, Result(3, b"", b"no", 0.1))
    host.on("dead", UnreachableError("dead"))
    host.on("hang", Hang())

    def answer(command: Cmd) -> str:
        return " ".join(command.argv)

    host.on("echo", answer)
    assert host.run(cmd("nvidia-smi")).out == "second"
    assert host.run(cmd("nvidia-smi", "--bad")).rc == 3
    assert host.run(cmd("echo", "a")).out == "echo a"
    with pytest.raises(UnreachableError, match="dead"):
        host.run(cmd("dead"))
    with pytest.raises(DeadlineExceeded, match="within 5 s: hang"):
        host.run(cmd("hang"), deadline_s=5)
    missing = host.run(cmd("nothing"))
    assert (missing.rc, missing.err) == (127, "sh: nothing: not found\n")
    assert [c.argv[0] for c in host.calls] == ["nvidia-smi"] * 2 + [
        "echo",
        "dead",
        "hang",
        "nothing",
    ]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("fault", "error"), [("die", TransportLost), ("hang", DeadlineExceeded)])
def test_faults_before_and_after_the_effect(
    fault: str, error: type[Exception], after: bool
) -> None:
    host = FakeTransport()
    write_file(host, "/file", b"old")
    (host.die_at if fault == "die" else host.hang_at)(2, after=after)
    with pytest.raises(error):
        write_file(host, "/file", b"new")
    assert read_file(host, "/file") == (b"new" if after else b"old")
    assert len(host.calls) == 3


def test_unreachable_wrong_key_and_healing() -> None:
    host = FakeTransport("h").on("true", b"")
    host.unreachable("no route")
    with pytest.raises(UnreachableError, match="no route"):
        host.run(cmd("true"))
    host.wrong_host_key()
    with pytest.raises(HostKeyError):
        host.run(cmd("true"))
    host.die_at(1)
    host.heal()
    assert host.run(cmd("true")).ok
    assert len(host.calls) == 1
    host.close()
    assert host.closed


def test_files_can_be_set_up_and_looked_at() -> None:
    host = FakeTransport()
    host.files.put("/etc/a/b", b"x", 0o600)
    node = host.files.get("/etc/a/b")
    assert node is not None
    assert (node.data, node.mode & 0o777) == (b"x", 0o600)
    assert host.files.get("/etc/none") is None


# This machine.


def test_deadline_ends_the_whole_group(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    script = '(sleep 1; touch "$1") & sleep 30'
    with pytest.raises(DeadlineExceeded):
        LocalTransport().run(sh(script, str(marker)), deadline_s=0.2)
    time.sleep(1.2)
    assert not marker.exists()


def test_a_child_that_keeps_the_output_open_runs_into_the_deadline() -> None:
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        LocalTransport().run(sh("sleep 20 & exit 0"), deadline_s=0.3)
    assert time.monotonic() - start < 2
    assert LocalTransport().run(sh("sleep 20 >/dev/null 2>&1 & exit 0"), deadline_s=5).ok


# Odds and ends.


def test_bounded_keeps_the_first_bytes() -> None:
    kept = Bounded(5)
    kept.feed(b"abc")
    kept.feed(b"de")
    assert (kept.value(), kept.truncated) == (b"abcde", False)
    kept.feed(b"f")
    assert (kept.value(), kept.truncated) == (b"abcde", True)


def test_jobs() -> None:
    assert Job(lambda: 1, "one").within(5) == 1
    with pytest.raises(ZeroDivisionError):
        Job(lambda: 1 // 0, "two").within(5)
    gate = threading.Event()
    job = Job(gate.wait, "three")
    with pytest.raises(OverdueError):
        job.within(0.01)
    gate.set()
    assert job.within(5)


def test_brief_is_one_short_printable_line() -> None:
    text = brief(sh("a\nb\n" + "c" * 300, "\udcff"))
    assert "\n" not in text
    assert len(text) <= 130
    text.encode()


def test_importing_the_package_loads_no_ssh_library() -> None:
    look = "import sys, ddops.transport; print(sorted({'fabric', 'paramiko'} & set(sys.modules)))"
    for text in (look, look.replace("ddops.transport;", "ddops.transport.ssh;")):
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n"
