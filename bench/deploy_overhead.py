#!/usr/bin/env python3
"""What `ddops deploy` adds to the engine's own start, on a lab host with the stand-in engine.

Makes a lab in a scratch folder, provisions it, then alternates two releases, so that every deploy
stops one engine, starts the other and gates it. The engine's own start is the stand-in's, measured
by starting the same command by hand; the stability window is a setting and is shown apart.
Everything here is `sim`: it says nothing about a real engine. Budget: 2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from measure import report

QUIET_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=7)
    parser.add_argument("--json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddops-bench-"))
    (folder / "ddops.toml").write_text(f"[settings]\nready_quiet_s = {QUIET_S}\n")
    rows: dict[str, list[float]] = {
        "engine alone": [],
        "deploy": [],
        "unchanged": [],
        "overhead": [],
    }
    try:
        ddops(folder, "lab", "up", "--engine", "sim")
        ddops(folder, "provision", "lab")
        for i in range(args.n + 1):
            profile = ("tiny-ar", "tiny-dflash")[i % 2]
            took = timed(folder, "deploy", "lab", "--profile", profile)
            alone = engine_alone(folder)
            same = timed(folder, "deploy", "lab", "--profile", profile)
            if i == 0:
                continue  # the first deploy stops nothing
            rows["deploy"].append(took)
            rows["engine alone"].append(alone)
            rows["unchanged"].append(same)
            rows["overhead"].append(took - alone - QUIET_S)
    finally:
        ddops(folder, "lab", "down")
        shutil.rmtree(folder)
    report(f"deploy on a sim host, stability window {QUIET_S} s", rows, "s", args.json)


def ddops(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "ddops", "--project", str(folder), *words]
    subprocess.run(command, check=True, capture_output=True)


def timed(folder: Path, *words: str) -> float:
    began = time.perf_counter()
    ddops(folder, *words)
    return time.perf_counter() - began


def engine_alone(folder: Path) -> float:
    """Seconds from exec to /health 200 of the current release's own command, on another port."""
    host = next((folder / ".ddops/lab/hosts").iterdir())
    spec = json.loads(next(host.glob("engine/.ddops/services/*/current/launch.json")).read_text())
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    argv = list(spec["argv"])
    argv[argv.index("--port") + 1] = str(port)
    began = time.perf_counter()
    engine = subprocess.Popen(
        argv,
        env={**os.environ, **spec["env"]},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(2000):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                    if answer.status == 200:
                        return time.perf_counter() - began
            except OSError:
                time.sleep(0.01)
        raise SystemExit("the engine did not come up")
    finally:
        engine.send_signal(signal.SIGTERM)
        engine.wait(20)


if __name__ == "__main__":
    main()
