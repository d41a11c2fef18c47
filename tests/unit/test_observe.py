"""What the host-side look sees: processes, ports, answers. Down only on evidence."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from ddops import hostside
from ddops.gates import Observation, judge_g2
from ddops.gates.observation import parse_observation
from ddops.model import State, Verdict

SCRIPT = Path(hostside.__file__).with_name("observe.py")
SECRET = "canary-3391-heron"


def look(service: Path, port: int, *more: str) -> Observation:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(service), str(port), *more],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return parse_observation(done.stdout)


def raw(service: Path, port: int, *more: str) -> str:
    words = [sys.executable, str(SCRIPT), str(service), str(port), *more]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


class Handler(http.server.BaseHTTPRequestHandler):
    """An engine that tells more than it should."""

    def do_GET(self) -> None:
        body = json.dumps({"weight_version": "w", "tp_size": 2, "api_key": SECRET}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[int]:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made.server_address[1]
    made.shutdown()
    made.server_close()
    thread.join()


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])


def record(service: Path, **changes: object) -> None:
    (service / "run").mkdir(parents=True, exist_ok=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    me = os.getpid()
    value = {"nonce": "n", "weight_version": "w", "release": "r", "op_id": "o", "pid": me,
             "guard_pid": os.getppid(), "start_ticks": ticks(me), "boot_id": boot, "started": 1.0,
             **changes}  # fmt: skip
    (service / "run" / "launch.json").write_text(json.dumps(value))


def free() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def test_a_host_that_never_served(tmp_path: Path) -> None:
    seen = look(tmp_path, free(), "--http", "1")
    assert (seen.engine, seen.launch, seen.current) == (State.DOWN, None, None)
    assert not seen.port.listening
    assert seen.health is None


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.UP),
        ({"start_ticks": 1}, State.DOWN),  # the pid is another process by now
        ({"boot_id": "another-boot"}, State.DOWN),
        ({"pid": 2**22 + 1}, State.DOWN),
    ],
)
def test_the_engine_is_the_process_of_the_record(
    tmp_path: Path, changes: dict[str, object], state: State
) -> None:
    record(tmp_path, **changes)
    assert look(tmp_path, free()).engine is state


def test_a_port_of_somebody_else_is_not_asked(tmp_path: Path, server: int) -> None:
    seen = look(tmp_path, server, "--http", "1")
    assert (seen.port.listening, seen.port.owned) == (True, False)
    assert f"pid {os.getpid()}" in str(seen.port.owner)
    assert seen.health is seen.model_info is None


def test_what_an_engine_says_is_taken_by_allow_list(tmp_path: Path, server: int) -> None:
    record(tmp_path)
    text = raw(tmp_path, server, "--http", "5")
    seen = parse_observation(text)
    assert seen.port.owned
    assert seen.health is not None
    assert seen.health.status == 200
    assert seen.server_info is not None
    assert dict(seen.server_info.values) == {"tp_size": 2, "weight_version": "w"}
    assert SECRET not in text


class Early(Handler):
    """Lists its models while it loads, and is not ready: nothing else may be believed."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200 if self.path.startswith("/v1/models") else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_a_list_of_models_counts_for_nothing(tmp_path: Path) -> None:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Early)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    record(tmp_path)
    try:
        seen = look(tmp_path, made.server_address[1], "--http", "2")
    finally:
        made.shutdown()
        made.server_close()
        thread.join()
    assert not seen.healthy
    assert judge_g2(seen).verdict is Verdict.FAIL
    assert "/health" in Early.asked
    assert not [p for p in Early.asked if "models" in p]


def test_an_engine_that_hangs_is_no_answer(tmp_path: Path) -> None:
    record(tmp_path)
    with socket.socket() as quiet:
        quiet.bind(("127.0.0.1", 0))
        quiet.listen()
        seen = look(tmp_path, quiet.getsockname()[1], "--http", "0.3")
    assert seen.health is not None
    assert seen.health.status is None
    assert "timed out" in seen.health.error.lower()


def test_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    text = b"key " + SECRET.encode() + b"\nnext\n\xff the end\n"
    (tmp_path / "log" / "engine.log").write_bytes(b"x" * 5000 + text)
    seen = look(tmp_path, free(), "--log-bytes", str(len(text) - 8))
    assert seen.log_size == 5000 + len(text)
    # The line that the limit cuts is left out: half a secret would not be masked.
    assert seen.log_tail == "next\n\ufffd the end\n"
    whole = look(tmp_path, free(), "--log-bytes", "100000")
    assert whole.log_tail.startswith("xxx")
    assert SECRET in whole.log_tail


@pytest.mark.parametrize(
    "text", ["", '{"pid": 1', "[]", "7", "null", "{}", '{"pid": "1"}', "\x00\x00", '"pid"']
)
def test_a_record_that_cannot_be_read_is_no_engine_that_is_down(tmp_path: Path, text: str) -> None:
    """The engine that it tells of may serve: silence and garbage are never `down`."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "launch.json").write_text(text)
    seen = look(tmp_path, free())
    assert (seen.engine, seen.launch) == (State.UNKNOWN, None)
    assert seen.engine_why.startswith("run/launch.json cannot be read: ")


def test_a_record_of_another_kind_is_not_read_as_no_record(tmp_path: Path) -> None:
    (tmp_path / "run" / "launch.json").mkdir(parents=True)
    assert look(tmp_path, free()).engine is State.UNKNOWN
