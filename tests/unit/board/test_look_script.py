"""The script that looks at a host: run for real, against an engine and an nvidia-smi of the test.

To see it fail: let `service` in hostside/board.py hand on `internal_states` as they came.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddops.board.look import parse_look
from ddops.board.model import HostLook
from ddops.command import ALONE
from ddops.hostside import joined
from ddops.model import State
from tests.unit.board.looks import launch

SECRET = "canary-5518-otter"
METRICS = """# HELP sglang:gen_throughput x
sglang:gen_throughput{engine_type="unified",model_name="a \\"b\\"",tp_rank="0"} 812.5
sglang:num_running_reqs{tp_rank="0"} 3.0
sglang:num_queue_reqs{tp_rank="0"} nonsense
sglang:realtime_tokens_total{mode="prefill_compute"} 9000
sglang:realtime_tokens_total{mode="decode"} 1200
sglang:other{tp_rank="0"} 1
"""
SMI = """#!/bin/sh
case "$1" in *power.draw*) echo 'Field "power.draw" is not a valid field to query.'; exit 2;; esac
echo '0, NVIDIA B300, 87, 120000, 275040, 1100.00, 61, 0x0000000000000004'
echo '1, NVIDIA B300, [N/A], 0, 275040, 1100.00, 30, 0x0000000000000001'
"""


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers what SGLang answers, and more than it should."""

    asked: list[str]
    hang = threading.Event()

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        if self.path == "/health" and not self.hang.is_set():
            self.hang.wait(5)
        state = {"last_gen_throughput": 700, "avg_spec_accept_length": 3.5, "api_key": SECRET}
        info = {"weight_version": launch()["weight_version"], "internal_states": [state],
                "api_key": SECRET}  # fmt: skip
        body = METRICS.encode() if self.path == "/metrics" else json.dumps(info).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        return


@pytest.fixture
def engine() -> Iterator[int]:
    Engine.asked = []
    Engine.hang.set()
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made.server_address[1]
    Engine.hang.set()
    made.shutdown()
    made.server_close()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's engine folder, with a service that this very process is the engine of."""
    where = tmp_path / ".ddops/services/k26"
    for name in ("run", "log", "releases"):
        (where / name).mkdir(parents=True)
    ticks = int(Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19])
    made = {**launch(), "pid": os.getpid(), "guard_pid": os.getppid(), "start_ticks": ticks,
            "started": time.time()}  # fmt: skip
    (where / "run/launch.json").write_text(json.dumps(made))
    (where / "committed").symlink_to(f"releases/{launch()['release']}")
    (where / "current").symlink_to(f"releases/{launch()['release']}")
    own = 'INFO: 127.0.0.1:4 - "GET /health HTTP/1.1" 200 OK\n'
    (where / "log/engine.log").write_text("first\n" + own * 50 + "last\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(SMI)
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tmp_path


def raw(host: Path, port: int, http_s: float = 5.0) -> dict[str, Any]:
    spec = {"engine_dir": str(host), "services": {"k26": port}, "http_s": http_s, "log_bytes": 400}
    done = subprocess.run(
        [sys.executable, *ALONE, "-", json.dumps(spec)], input=joined("observe", "board"),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert SECRET not in done.stdout
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def seen(host: Path, port: int, http_s: float = 5.0) -> HostLook:
    return parse_look(raw(host, port, http_s))


def test_one_answer_holds_the_whole_host(host: Path, engine: int) -> None:
    found = seen(host, engine)
    one = found.services["k26"]
    assert one.observation.engine is State.UP
    assert one.observation.port.owned
    assert one.committed == launch()["release"]
    load = one.load
    assert (load.running, load.queued, load.gen_tps) == (3.0, None, 812.5)
    assert load.decoded == 1200, "prefill is not output"
    assert (load.last_tps, load.lifetime_accept) == (700.0, 3.5)
    assert one.observation.log_tail == "first\nlast\n", "being looked at is not the engine's news"
    assert found.gpus is not None
    first, second = found.gpus
    assert (first.util_pct, first.used_mb, first.power_w, first.throttle) == (
        87.0,
        120000.0,
        None,
        4,
    )
    assert second.util_pct is None


def test_an_engine_that_hangs_is_asked_one_thing(host: Path, engine: int) -> None:
    Engine.hang.clear()
    began = time.monotonic()
    one = seen(host, engine, http_s=0.5).services["k26"].observation
    assert one.health is not None
    assert one.health.status is None
    assert (one.engine, one.model_info) == (State.UP, None)
    assert Engine.asked == ["/health"]
    assert time.monotonic() - began < 10


def test_a_host_that_serves_nothing_loads_next_to_nothing(tmp_path: Path) -> None:
    spec = {"engine_dir": str(tmp_path), "services": {"a": 1}, "http_s": 5, "log_bytes": 400}
    tell = "\nsys.stderr.write(' '.join(sys.modules))\n"
    text = joined("observe", "board").replace("sys.exit(main(sys.argv[1:]))", "main(sys.argv[1:])")
    done = subprocess.run(
        [sys.executable, *ALONE, "-", json.dumps(spec)], input=text + tell,
        capture_output=True, text=True, timeout=60, check=True, env={"PATH": str(tmp_path)},
    )  # fmt: skip
    assert json.loads(done.stdout)["gpus"]["rows"] is None
    heavy = {"argparse", "subprocess", "socket", "http.client", "concurrent.futures", "threading"}
    assert not heavy & set(done.stderr.split())


def test_what_lies_in_the_users_home_is_not_taken_for_the_library(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not the library')\n")
    spec = {"engine_dir": str(tmp_path), "services": {}, "http_s": 5, "log_bytes": 400}
    done = subprocess.run(
        [sys.executable, *ALONE, "-", json.dumps(spec)], input=joined("observe", "board"),
        capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(done.stdout)["schema"] == "ddops.look/1"


def test_a_host_that_was_never_provisioned(tmp_path: Path) -> None:
    found = seen(tmp_path / "nothing", 1)
    assert not found.provisioned
    assert found.services["k26"].observation.launch is None
    assert found.held is None


def test_the_locks_token_stays_on_the_host(host: Path) -> None:
    lock = host / ".ddops/lock"
    lock.mkdir()
    owner = {"token": SECRET, "who": "ann", "where": "desk", "pid": 7, "purpose": "deploy",
             "at": "now", "process": ""}  # fmt: skip
    (lock / "owner.json").write_text(json.dumps(owner))
    (lock / "heartbeat").touch()
    held = seen(host, 1).held
    assert held is not None
    assert held.owner is not None
    assert (held.owner.who, held.stale) == ("ann", False)
    (lock / "owner.json").write_text("{")
    held = seen(host, 1).held
    assert held is not None
    assert held.owner is None


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "NVIDIA-SMI has failed"),
        ("echo 'a, b'", "unexpected line"),
        ("exit 3", "ended with 3"),
    ],
)
def test_gpus_that_cannot_be_seen_are_not_none_of_them(host: Path, script: str, why: str) -> None:
    (host / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    found = seen(host, 1)
    assert found.gpus is None
    assert why in found.gpus_why
