"""Asking the golden prompts on the host: one failure decides, and costs one time limit."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
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


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers 5 6 9 to everything, and scores 7 and 9 alike where it is asked for one token."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)  # type: ignore[attr-defined]
        meta = {"weight_version": "w"}
        if body.get("return_logprob"):
            meta["output_top_logprobs"] = [[[-0.7, 9, None], [-0.71, 7, None]]]  # type: ignore[assignment]
        data = json.dumps({"output_ids": [5, 6, 9], "meta_info": meta}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


def test_where_an_answer_leaves_the_reference_the_scores_are_asked_for(tmp_path: Path) -> None:
    prompts = [
        {"id": "same", "input_ids": [1], "output_ids": [5, 6, 9]},
        {"id": "other", "input_ids": [2, 3], "output_ids": [5, 6, 7]},
    ]
    golden = tmp_path / "golden.json"
    golden.write_text(json.dumps({"schema": "ddops.golden/1", "prompts": prompts}))
    server = http.server.HTTPServer(("127.0.0.1", 0), Engine)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    words = [sys.executable, str(SCRIPT), str(tmp_path), str(server.server_port), str(golden), "5"]
    try:
        done = subprocess.run([*words, "--ties"], capture_output=True, check=True, timeout=60)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    rows = json.loads(done.stdout)["rows"]
    assert "tie" not in rows[0]
    assert rows[1]["tie"] == {"at": 2, "top": [[-0.7, 9], [-0.71, 7]]}
    last = server.asked[-1]  # type: ignore[attr-defined]
    assert last["input_ids"] == [2, 3, 5, 6]
    assert last["sampling_params"]["max_new_tokens"] == 1
