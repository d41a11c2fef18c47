"""Asking the golden prompts on the host: one failure decides, and costs one time limit."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from ddops import hostside

SCRIPT = Path(hostside.__file__).with_name("golden.py")


def test_an_engine_that_hangs_is_asked_once(tmp_path: Path) -> None:
    prompts = [{"id": str(n), "input_ids": [1], "output_ids": [2]} for n in range(20)]
    golden = tmp_path / "golden.json"
    golden.write_text(json.dumps({"schema": "ddops.golden/1", "prompts": prompts}))
    with socket.socket() as quiet:
        quiet.bind(("127.0.0.1", 0))
        quiet.listen(32)
        began = time.monotonic()
        port = str(quiet.getsockname()[1])
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path), port, str(golden), "1"],
            capture_output=True, check=True, timeout=60,
        )  # fmt: skip
    rows = json.loads(done.stdout)["rows"]
    assert [r["id"] for r in rows] == ["0"]
    assert "timed out" in rows[0]["error"]
    assert time.monotonic() - began < 15
