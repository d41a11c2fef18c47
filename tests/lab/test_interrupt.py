"""A deploy that is stopped, or met by another: the service and the lock afterwards."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project, Running
from tests.lab.looking import until
from tests.lab.scenarios import Scenarios, hold


@pytest.fixture
def busy(lab: Project, serving: HostView) -> Iterator[Callable[..., Running]]:
    """Starts a deploy of a release that takes its time, and ends it afterwards."""
    started: list[Running] = []

    def start(sim: str, name: str) -> Running:
        lab.profile(name, sim)
        run = lab.spawn("deploy", serving.name, "--profile", name)
        started.append(run)
        return run

    yield start
    for run in started:
        if run.process.poll() is None:
            run.kill()


def reach(host: HostView, state: str) -> None:
    """Wait until the deploy at work, whose purpose the lock tells, has got to a state."""

    def there() -> bool:
        try:
            owner = json.loads((Path(host.layout.lock) / "owner.json").read_text())
        except (OSError, ValueError):
            return False
        newest = host.deployments()[:1]
        mine = bool(newest) and owner["token"].startswith(newest[0].op_id)
        return mine and state in host.states()

    until(there, what=f"the state {state}")


def test_control_c_while_loading_brings_the_old_release_back(
    serving: HostView, busy: Callable[..., Running]
) -> None:
    old = serving.serves()
    run = busy("load_s=60", "stop-loading")
    reach(serving, "switched")
    until(lambda: len(serving.pids()) == 1 and serving.current != old, what="the load")
    run.interrupt()
    done = run.end()
    assert done.rc == 130, done
    assert "while the engine was loading" in done.err
    assert "serves again" in done.err
    assert serving.serves() == serving.current == serving.committed == old
    assert len(serving.pids()) == 1
    assert not serving.locked
    assert serving.states()["restored"] == "ok"


def test_control_c_while_gating_brings_the_old_release_back(
    serving: HostView, busy: Callable[..., Running]
) -> None:
    old = serving.serves()
    run = busy("prefill_ms=1500", "stop-gating")
    reach(serving, "started")
    run.interrupt()
    done = run.end()
    assert done.rc == 130, done
    assert serving.serves() == serving.current == serving.committed == old
    assert not serving.locked


def test_a_terminal_that_closes_while_loading_brings_the_old_release_back(
    serving: HostView, busy: Callable[..., Running]
) -> None:
    """SIGHUP, as it comes when a connection breaks; and nobody reads what is said any more."""
    old = serving.serves()
    run = busy("load_s=60", "stop-hup")
    reach(serving, "switched")
    until(lambda: len(serving.pids()) == 1 and serving.current != old, what="the load")
    assert run.process.stdout is not None and run.process.stderr is not None
    run.process.stdout.close()
    run.process.stderr.close()
    run.process.send_signal(signal.SIGHUP)
    run.process.send_signal(signal.SIGHUP)
    assert run.process.wait(60) == 130
    assert (serving.serves(), serving.committed) == (old, old)
    assert not serving.locked
    assert serving.states()["restored"] == "ok"


def test_a_deploy_whose_reader_went_away_comes_to_its_end(lab: Project, serving: HostView) -> None:
    old = serving.serves()
    lab.profile("unread", "commit=3")
    run = lab.spawn("deploy", serving.name, "--profile", "unread")
    assert run.process.stdout is not None and run.process.stderr is not None
    run.process.stdout.close()
    run.process.stderr.close()
    assert run.process.wait(60) == 0
    assert serving.serves() == serving.committed != old
    assert serving.states()["committed"] == "ok"


def test_a_wait_for_the_lock_names_its_holder_and_ends_with_control_c(
    lab: Project, serving: HostView, busy: Callable[..., Running]
) -> None:
    old = serving.serves()
    first = busy("load_s=60", "holder")
    reach(serving, "switched")
    lab.profile("waiter", "commit=2")
    second = lab.spawn("deploy", serving.name, "--profile", "waiter", "--lock-wait", "600")
    assert second.process.stderr is not None
    said = second.process.stderr.readline()
    assert f"waiting up to 600 s for the lock of {getpass.getuser()}@" in said
    assert f"pid {first.process.pid}" in said
    second.interrupt()
    done = second.end(20)
    assert done.rc == 130, done
    assert "stopped by the user while it waited for the lock" in done.err
    first.interrupt()
    assert first.end().rc == 130
    assert serving.serves() == old


def test_control_c_before_the_stop_touches_nothing(
    serving: HostView, busy: Callable[..., Running]
) -> None:
    for attempt in range(4):  # the moment is a second long, and a busy machine may miss it
        pids = serving.pids()
        run = busy("", f"stop-early-{attempt}")
        until(lambda: serving.locked, what="the lock")
        run.interrupt()
        done = run.end()
        if done.rc != 0:
            break
    assert done.rc == 130, done
    assert serving.pids() == pids
    assert "stopped" not in serving.states()
    assert serving.states()["failed"] == "fail"
    assert not serving.locked


def test_control_c_on_a_first_deploy_leaves_nothing_served(
    lab: Project, clean_host: HostView
) -> None:
    lab.profile("stop-first", "load_s=60")
    run = lab.spawn("deploy", clean_host.name, "--profile", "stop-first")
    reach(clean_host, "switched")
    run.interrupt()
    done = run.end()
    assert done.rc == 130, done
    assert (clean_host.current, clean_host.committed) == (None, None)
    assert clean_host.pids() == []
    assert not clean_host.locked


def test_a_second_control_c_stops_at_once_and_the_next_run_recovers(
    lab: Project, serving: HostView, busy: Callable[..., Running]
) -> None:
    old = serving.serves()
    run = busy("load_s=60", "stop-twice")
    reach(serving, "switched")
    run.interrupt()
    time.sleep(0.2)
    began = time.monotonic()
    run.interrupt()
    done = run.end(10)
    assert time.monotonic() - began < 5
    assert done.rc == 130, done
    assert "at once" in done.err
    again = lab.run("deploy", serving.name)
    assert again.rc == 0, again
    assert serving.serves() == serving.committed == old
    assert not serving.locked


def test_two_deploys_at_once_name_the_holder(
    lab: Project, serving: HostView, busy: Callable[..., Running]
) -> None:
    run = busy("load_s=4", "first-of-two")
    reach(serving, "locked")
    second = lab.run("deploy", serving.name)
    assert second.rc == 7, second
    assert f"pid {run.process.pid} (deploy tiny" in second.err
    assert f"ddops lock status {serving.name}" in second.err
    status = lab.ok("lock", "status", serving.name)
    assert f"pid {run.process.pid}" in status.out
    refused = lab.run("lock", "release", serving.name)
    assert refused.rc == 7, refused
    waited = lab.run("deploy", serving.name, "--lock-wait", "60")
    first = run.end()
    assert first.rc == 0, first
    assert waited.rc == 0, waited
    assert not serving.locked


@pytest.fixture
def foreign(clean_host: HostView) -> Iterator[HostView]:
    """A host that an operator on another machine holds."""
    hold(clean_host)
    yield clean_host
    subprocess.run(["rm", "-rf", clean_host.layout.lock], check=True)


def test_a_stale_lock_is_never_taken_unasked(lab: Project, foreign: HostView) -> None:
    fresh = lab.run("deploy", foreign.name)
    assert fresh.rc == 7, fresh
    assert "ann@elsewhere" in fresh.err
    long_ago = time.time() - 3600
    os.utime(Path(foreign.layout.lock) / "heartbeat", (long_ago, long_ago))
    stale = lab.run("deploy", foreign.name)
    assert stale.rc == 7, stale
    assert "stale" in stale.err
    assert "--stale" in stale.err
    assert lab.run("lock", "release", foreign.name).rc == 7
    lab.ok("lock", "release", foreign.name, "--stale")
    assert not foreign.locked


def test_a_lost_lock_stops_the_run_that_lost_it(scenarios: Scenarios) -> None:
    """Begun with the session: a heart beats every ten seconds."""
    seen = scenarios.lost_lock()
    assert seen.done.rc in (6, 7), seen.done
    assert "the lock was taken from this run" in seen.done.err
    assert seen.locked  # the other's, untouched
    assert seen.committed == seen.before
