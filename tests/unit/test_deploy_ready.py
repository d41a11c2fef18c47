"""Waiting for an engine, with a clock of our own: patient with loads, quick with deaths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from ddops.command import Redactor, Secret
from ddops.deploy.ready import APPEAR_S, FATAL_S, LOST_S, STRETCH, Waiter, fatal_line
from ddops.deploy.stop import Stop
from ddops.errors import DeadlineExceeded, GateFailed, HostKeyError, Interrupted, UnreachableError
from ddops.events import Level, ListReporter
from ddops.gates import Job, Observation
from ddops.gates.observation import Answer, Launch, Port
from ddops.inventory.model import SlurmTable
from ddops.layout import HostLayout, ServiceLayout
from ddops.model import State

BUDGET = 100.0


@dataclass
class Time:
    t: float = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.t, UTC)

    def monotonic(self) -> float:
        return self.t

    def sleep(self, seconds: float) -> None:
        self.t += seconds


class Patience(Stop):
    """A stop whose waiting is the clock's."""

    def __init__(self, clock: Time) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, seconds: float) -> bool:
        self.clock.sleep(seconds)
        return self.asked


@dataclass
class Named:
    name: str = "box"
    slurm: SlurmTable = field(default_factory=lambda: SlurmTable(queue_s=300))


@dataclass
class Service:
    looks: Iterator[Observation | Exception]
    clock: Time
    took: float = 0.0
    host: Named = field(default_factory=Named)
    where: ServiceLayout = field(default_factory=lambda: HostLayout("/opt/ddops").service("k"))

    def observe(self) -> Observation:
        self.clock.sleep(self.took)
        seen = next(self.looks)
        if isinstance(seen, Exception):
            raise seen
        return seen


def look(
    nonce: str | None = "n", status: int | None = None, size: int = 0, log: str = "",
    engine: State = State.UP, op: str = "op",
) -> Observation:  # fmt: skip
    launch = Launch(nonce, f"w-{nonce}", "r", op, 7, 6, 1.0) if nonce else None
    return Observation(
        0.0, "r", launch, engine, "", 7, 1.0, 1, Port(1, True, True, "pid 7"), size, log,
        health=Answer(status) if status else None,
    )  # fmt: skip


def forever(seen: Callable[[int], Observation | Exception]) -> Iterator[Observation | Exception]:
    number = 0
    while True:
        yield seen(number)
        number += 1


def waiter(looks: Iterator[Observation | Exception], took: float = 0.0) -> tuple[Waiter, Time]:
    clock = Time()
    redactor = Redactor([Secret("hush-hush-9")])
    made = Waiter(
        Service(looks, clock, took), "op", 0, BUDGET, clock, Patience(clock), ListReporter(),  # type: ignore[arg-type]
        redactor,
    )  # fmt: skip
    return made, clock


def test_ready_is_a_healthy_engine_of_this_deploy() -> None:
    wait, _ = waiter(iter([look(None), look(op="old", status=200), look(), look(status=200)]))
    seen = wait.ready()
    assert seen.launch is not None
    assert seen.launch.op_id == "op"
    assert seen.health == Answer(200)


def test_a_load_that_makes_progress_may_take_longer_than_its_budget() -> None:
    grows = forever(lambda n: look(size=n // 100 * 10, status=200 if n > 500 else None))
    wait, clock = waiter(grows)
    wait.ready()
    assert clock.t > 2 * BUDGET


@pytest.mark.parametrize(
    ("grows", "least", "most"),
    [(False, BUDGET, BUDGET + 5), (True, STRETCH * BUDGET, STRETCH * BUDGET + 5)],
)
def test_a_load_is_given_up_in_the_end(grows: bool, least: float, most: float) -> None:
    wait, clock = waiter(forever(lambda n: look(size=n if grows else 0, status=503)))
    with pytest.raises(GateFailed, match="G2: not ready after"):
        wait.ready()
    assert least < clock.t < most


@pytest.mark.parametrize("second", [look(engine=State.DOWN), look(nonce="n2")])
def test_a_death_is_told_at_once_with_the_last_lines_masked(second: Observation) -> None:
    log = "\n".join([*(f"line {n}" for n in range(40)), "key hush-hush-9", "CUDA out of memory"])
    died = look(
        nonce=second.launch.nonce if second.launch else None, engine=second.engine,
        size=len(log), log=log,
    )  # fmt: skip
    wait, clock = waiter(iter([look(), died]))
    with pytest.raises(GateFailed, match="G0: the engine ended while loading") as raised:
        wait.ready()
    assert clock.t < 1
    why = raised.value.why
    assert why.startswith("CUDA out of memory\n")
    assert "hush-hush-9" not in why
    assert "line 39" in why
    assert "line 20" not in why


def test_an_engine_that_hangs_behind_a_fatal_line_is_given_up() -> None:
    wait, clock = waiter(forever(lambda n: look(size=100 + n, log="torch.OutOfMemoryError: x")))
    with pytest.raises(GateFailed, match="hangs after a fatal line"):
        wait.ready()
    assert FATAL_S < clock.t < FATAL_S + 2


def job(state: str, restarts: int = 0, **more: Any) -> Observation:
    """A look at a service that is a scheduler's job."""
    seen = look(engine=State.UP if state == "RUNNING" else State.DOWN, **more)
    return replace(seen, job=Job(7, state, f"job 7 is {state}: Resources", restarts))


def test_a_queue_takes_nothing_from_the_time_of_a_load() -> None:
    looks = [
        *[job("PENDING", nonce=None)] * 120,
        *[job("RUNNING")] * 20,
        job("RUNNING", status=200),
    ]
    wait, clock = waiter(iter(looks))
    assert wait.ready().healthy
    assert clock.t > 2 * BUDGET, "longer in the queue than a load may be silent"
    assert isinstance(wait.report, ListReporter)
    assert any("job 7 is PENDING: Resources" in e.message for e in wait.report.events)


def test_a_queue_has_its_own_limit_and_its_reason_is_told() -> None:
    wait, clock = waiter(forever(lambda _: job("PENDING", nonce=None)))
    with pytest.raises(GateFailed, match="job 7 is PENDING: Resources, for 300 s"):
        wait.ready()
    assert 300 < clock.t < 303


@pytest.mark.parametrize(
    ("seen", "words"),
    [(job("FAILED", nonce=None), "the engine ended while loading"),
     (job("CANCELLED"), "the engine ended while loading"),
     (job("PENDING", 1, nonce=None), "the node it was started on is lost"),
     (job("RUNNING", 1), "the node it was started on is lost")],
)  # fmt: skip
def test_a_job_that_is_over_or_began_anew_is_told_at_once(seen: Observation, words: str) -> None:
    wait, clock = waiter(iter([job("RUNNING"), seen]))
    with pytest.raises(GateFailed, match=words):
        wait.ready()
    assert clock.t < 1


def test_a_start_that_never_shows_is_given_up() -> None:
    wait, clock = waiter(forever(lambda _: look(op="old")))
    with pytest.raises(GateFailed, match="was not started"):
        wait.ready()
    assert APPEAR_S < clock.t < APPEAR_S + 2


def test_a_boot_in_between_is_told_as_one_and_at_once() -> None:
    """Only a boot starts without an operation: this deploy's own start has gone with the host."""
    wait, clock = waiter(iter([look(None), look(), look(nonce="b", op="", status=200)]))
    with pytest.raises(GateFailed, match="the host was booted"):
        wait.ready()
    assert clock.t < 2


def test_lines_of_an_earlier_start_do_not_count() -> None:
    old = "CUDA out of memory\n"
    wait, _ = waiter(
        iter([look(size=len(old) + 4, log=old + "fine", status=None), look(status=200)])
    )
    wait.log_from = len(old)
    assert wait.tail(look(size=len(old) + 4, log=old + "fine")) == "fine"
    wait.ready()


def test_sizes_are_bytes_and_progress_bars_are_not() -> None:
    """A bar of letters of three bytes must not reach back into the start before."""
    old, new = "CUDA out of memory\n", "Loading: 100%|" + "█" * 30 + "|\n"
    wait, _ = waiter(iter([]))
    wait.log_from = len(old)
    seen = look(size=len(old) + len(new.encode()), log=old + new)
    assert wait.tail(seen) == new


def test_half_a_line_is_left_out() -> None:
    wait, _ = waiter(iter([]))
    assert wait.tail(look(size=8, log="old and\nnew\n")) == "new\n"


def test_a_lost_connection_is_waited_out() -> None:
    lost = UnreachableError("box: gone")
    wait, _ = waiter(iter([look(), lost, lost, look(status=200)]))
    wait.ready()
    assert isinstance(wait.report, ListReporter)
    warned = [e.message for e in wait.report.events if e.level is Level.WARN]
    assert warned == ["no answer while loading, trying on: box: gone"]  # once, not each time


def test_a_connection_lost_for_long_is_unknown_not_down() -> None:
    wait, clock = waiter(forever(lambda _: DeadlineExceeded("box: no end")), took=20)
    with pytest.raises(DeadlineExceeded):
        wait.ready()
    assert LOST_S < clock.t < LOST_S + 25


def test_another_host_key_is_not_waited_out() -> None:
    wait, _ = waiter(iter([HostKeyError("box: changed")]))
    with pytest.raises(HostKeyError):
        wait.ready()


def test_a_wish_to_stop_ends_the_wait() -> None:
    wait, _ = waiter(forever(lambda _: look()))
    wait.stop.ask()
    with pytest.raises(Interrupted, match="while the engine was loading"):
        wait.ready()


def test_fatal_lines() -> None:
    assert fatal_line("fine\n  RuntimeError: CUDA error: x\nmore") == "RuntimeError: CUDA error: x"
    assert fatal_line("0 CUDA errors so far") is None
