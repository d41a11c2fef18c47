"""The host's lock, with real files: taken by one, given back by its holder, never guessed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ddops import lock
from ddops.clock import SystemClock
from ddops.errors import CommandFailed, LockHeldError
from ddops.layout import HostLayout
from ddops.transport import FakeTransport, LocalTransport


@pytest.fixture
def layout(tmp_path: Path) -> HostLayout:
    return HostLayout(str(tmp_path / "engine"))


@pytest.fixture
def host() -> LocalTransport:
    return LocalTransport("box")


def me(op: str = "op") -> lock.Owner:
    return lock.owner(op, "deploy x", SystemClock())


def elsewhere() -> lock.Owner:
    return dataclasses.replace(me(), where="other", process="another-boot/pid:[1]/5", pid=1)


def test_one_takes_it_and_the_next_is_told_who(host: LocalTransport, layout: HostLayout) -> None:
    assert lock.read(host, layout) is None
    lock.take(host, layout, me())
    with pytest.raises(LockHeldError, match=rf"pid {os.getpid()} \(deploy x\)") as held:
        lock.take(host, layout, me("other"))
    assert held.value.next == "wait until it has ended: ddops lock status box"
    seen = lock.read(host, layout)
    assert seen is not None
    assert seen.owner is not None
    assert seen.owner.purpose == "deploy x"
    assert not seen.stale
    assert (Path(layout.lock) / "owner.json").stat().st_mode & 0o077 == 0


def test_only_its_holder_gives_it_back(host: LocalTransport, layout: HostLayout) -> None:
    mine = me()
    lock.take(host, layout, mine)
    with pytest.raises(LockHeldError, match="no longer ours"):
        lock.release(host, layout, token="another")
    assert lock.read(host, layout) is not None
    assert lock.release(host, layout, token=mine.token)
    assert not lock.release(host, layout, token=mine.token)
    assert list(Path(layout.lock).parent.iterdir()) == []


def test_waiting_takes_it_when_it_comes_free(host: LocalTransport, layout: HostLayout) -> None:
    first = me()
    lock.take(host, layout, first)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            lock.release(host, layout, token=first.token)

    told: list[str] = []
    lock.take(host, layout, me("second"), wait_s=10, pause=sleep, tell=told.append)
    assert len(waits) == 3
    (words,) = told
    assert words.startswith("waiting up to 10 s for the lock of ")
    assert f"pid {os.getpid()}" in words


def test_a_stale_lock_of_another_machine_is_not_taken(
    host: LocalTransport, layout: HostLayout
) -> None:
    lock.take(host, layout, elsewhere())
    old = time.time() - 2 * lock.STALE_S
    os.utime(Path(layout.lock) / "heartbeat", (old, old))
    with pytest.raises(LockHeldError, match="stale") as held:
        lock.take(host, layout, me())
    assert "--stale" in held.value.next


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_clock_that_jumps_takes_no_lock_from_a_holder_that_lives(
    host: LocalTransport, layout: HostLayout, jump: float
) -> None:
    """Age is told by the host's clock; a jump makes a lock look old, or not born yet."""
    lock.take(host, layout, me())
    heart = Path(layout.lock) / "heartbeat"
    then = time.time() - jump
    os.utime(heart, (then, then))
    held = lock.read(host, layout)
    assert held is not None
    assert held.stale is (jump > 0)
    with pytest.raises(LockHeldError):
        lock.take(host, layout, elsewhere())


def test_a_holder_of_this_machine_that_is_gone_is_followed(
    host: LocalTransport, layout: HostLayout
) -> None:
    script = (
        "import dataclasses, json; from ddops import lock; from ddops.clock import SystemClock;"
        "print(json.dumps(dataclasses.asdict(lock.owner('op', 'deploy x', SystemClock()))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    dead = lock.Owner(**json.loads(done.stdout))
    assert dead.gone
    lock.take(host, layout, dead)
    lock.take(host, layout, me())
    seen = lock.read(host, layout)
    assert seen is not None
    assert seen.owner is not None
    assert seen.owner.pid == os.getpid()


@pytest.mark.parametrize(
    ("owner", "gone"),
    [
        (me(), False),
        (elsewhere(), False),
        (dataclasses.replace(me(), process=""), False),
        (dataclasses.replace(me(), pid=2**22 + 1), True),
        # The pid runs, and is another process: it started at another time.
        (dataclasses.replace(me(), process=me().process.rpartition("/")[0] + "/1"), True),
        (dataclasses.replace(me(), process="", pid=2**22 + 1), False),
    ],
)
def test_gone_is_said_only_of_what_certainly_is(owner: lock.Owner, gone: bool) -> None:
    assert owner.gone is gone


def test_an_owner_nobody_can_read_is_no_free_lock(host: LocalTransport, layout: HostLayout) -> None:
    lock.take(host, layout, me())
    (Path(layout.lock) / "owner.json").write_text("{")
    with pytest.raises(LockHeldError, match="unreadable owner"):
        lock.take(host, layout, me())


def test_of_many_at_once_one_gets_it(host: LocalTransport, layout: HostLayout) -> None:
    got: list[str] = []

    def go(name: str) -> None:
        try:
            lock.take(host, layout, me(name))
        except LockHeldError:
            return
        got.append(name)

    threads = [threading.Thread(target=go, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    assert sorted(p.name for p in Path(layout.lock).parent.iterdir()) == ["lock"]


def test_a_lock_that_was_taken_away_is_noticed(
    host: LocalTransport, layout: HostLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    other = elsewhere()
    with pytest.raises(LockHeldError, match="no longer ours"), \
            lock.holding(host, layout, me()) as lease:  # fmt: skip
        lease.check()
        lock.release(host, layout)
        lock.take(host, layout, other)
        end = time.monotonic() + 5
        while not lease.lost and time.monotonic() < end:
            time.sleep(0.01)
        with pytest.raises(LockHeldError, match="taken from this run"):
            lease.check()
    seen = lock.read(host, layout)
    assert seen is not None
    assert seen.owner == other


def test_the_error_of_the_block_comes_first(layout: HostLayout) -> None:
    host = FakeTransport("box").on("sh", "")
    with pytest.raises(ValueError, match="of the block") as raised, \
            lock.holding(host, layout, me()):  # fmt: skip
        host.unreachable()
        raise ValueError("of the block")
    assert "the lock on box stays" in raised.value.__notes__[0]


def test_a_disk_that_takes_no_lock_is_said(layout: HostLayout, tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("a file where the folder should be")
    with pytest.raises(CommandFailed, match="cannot be taken"):
        lock.take(LocalTransport("box"), layout, me())
