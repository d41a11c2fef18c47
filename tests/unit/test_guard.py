"""The guard: one engine, a fresh name at each start, and an end for all that came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddops import hostside
from tests.lab.harness import tagged

SCRIPT = Path(hostside.__file__).with_name("guard.py")
RELEASE = "ab" * 32
#: An engine that says its arguments and stays.
STAYS = "import sys, time; print(sys.argv[1:], flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + STAYS
#: A child in a session of its own that ignores TERM, as leaked schedulers do.
LEAK = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
    f"'{DEAF}'.replace('print(sys.argv[1:], flush=True); ', '')], start_new_session=True); "
)


@dataclass
class Box:
    dir: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def stage(self, body: str, grace: float = 1.0, **more: object) -> None:
        release = self.dir / "releases" / RELEASE
        release.mkdir(parents=True, exist_ok=True)
        spec = {"release": RELEASE, "argv": [sys.executable, "-c", body], "env": {"SEEN": "yes"},
                "stop_grace_s": grace, **more}  # fmt: skip
        (release / "launch.json").write_text(json.dumps(spec))
        if not (self.dir / "current").is_symlink():
            (self.dir / "current").symlink_to(f"releases/{RELEASE}")
            (self.dir / "run").mkdir()
        (self.dir / "run" / "op_id").write_text("op-1\n")

    def start(self) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if k != "INVOCATION_ID"}
        with (self.dir / "log").open("w") as log:
            # A file, not a pipe: what the engine leaks would hold a pipe open.
            made = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(self.dir)], env=env, stdout=log, stderr=log
            )
        self.started.append(made)
        return made

    def log(self) -> str:
        return (self.dir / "log").read_text()

    def record(self) -> dict[str, object]:
        value: dict[str, object] = json.loads((self.dir / "run" / "launch.json").read_text())
        return value

    def pids(self) -> list[int]:
        return tagged(f"DDOPS_SERVICE={self.dir}")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path / "service")
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.wait()
    for pid in made.pids():
        os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "did not come"
        time.sleep(0.02)


def test_each_start_has_a_name_of_its_own(box: Box) -> None:
    seen = set()
    for _ in range(2):
        box.stage("import sys; print(sys.argv[1:])")
        guard = box.start()
        guard.wait(10)
        out = box.log()
        record = box.record()
        assert guard.returncode == 0
        assert record["weight_version"] == f"{RELEASE[:12]}-{record['nonce']}"
        assert f"'--weight-version', '{record['weight_version']}'" in out
        assert (record["release"], record["op_id"]) == (RELEASE, "op-1")
        seen.add(record["nonce"])
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os; os.abort()", 134),
    ],
)
def test_the_engines_status_is_the_guards(box: Box, body: str, status: int) -> None:
    box.stage(body)
    guard = box.start()
    guard.wait(10)
    assert guard.returncode == status


def test_an_engine_that_is_not_there_is_said(box: Box) -> None:
    box.stage("")
    path = box.dir / "current" / "launch.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, "argv": ["/nowhere/python"]}))
    guard = box.start()
    guard.wait(10)
    out = box.log()
    assert guard.returncode == 127
    assert "cannot start /nowhere/python" in out


def test_a_stop_ends_the_engine_and_what_left_its_session(box: Box) -> None:
    box.stage(LEAK + STAYS)
    guard = box.start()
    until(lambda: len(box.pids()) == 2)
    guard.send_signal(signal.SIGTERM)
    guard.wait(15)
    assert box.pids() == []


def test_a_death_of_the_engine_ends_what_it_left(box: Box) -> None:
    box.stage(LEAK + "raise SystemExit(4)", grace=0.2)
    guard = box.start()
    guard.wait(15)
    assert guard.returncode == 4
    assert box.pids() == []


def test_an_engine_deaf_to_term_is_killed_behind_its_grace(box: Box) -> None:
    box.stage(DEAF, grace=0.5)
    guard = box.start()
    until(lambda: box.pids())
    time.sleep(0.3)  # until it has set its handler
    began = time.monotonic()
    guard.send_signal(signal.SIGTERM)
    guard.wait(15)
    assert 0.4 < time.monotonic() - began < 8
    assert box.pids() == []


def test_leftovers_of_a_killed_guard_are_ended_by_the_next_start(box: Box) -> None:
    box.stage(LEAK + STAYS, grace=0.3)
    guard = box.start()
    until(lambda: len(box.pids()) == 2)
    before = set(box.pids())
    guard.kill()
    guard.wait()
    until(lambda: len(box.pids()) == 1)  # the engine dies with its guard, what it leaked does not
    box.stage(STAYS, grace=0.3)
    box.start()
    until(lambda: len(now := box.pids()) == 1 and not before & set(now))


def test_only_processes_of_this_service_are_signalled(box: Box, tmp_path: Path) -> None:
    env = {**os.environ, "DDOPS_SERVICE": f"{box.dir}-other"}
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env)
    try:
        box.stage("raise SystemExit(0)")
        box.start().wait(10)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_secrets_reach_the_engine_by_environment_alone(box: Box) -> None:
    box.stage("import os; print('has', os.environ['TOKEN'] == 'hush', os.environ['SEEN'])")
    (box.dir / "current" / "secrets.json").write_text('{"TOKEN": "hush"}')
    box.start().wait(10)
    out = box.log()
    assert "has True yes" in out
    assert "hush" not in json.dumps(box.record())
