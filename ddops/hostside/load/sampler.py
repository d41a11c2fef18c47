"""Looks at machine and engine while a run goes on, in a process of its own.

    python3 -m load.sampler PERIOD_S

Reads `{"host", "port", "key"}` from standard input, prints one JSON object a line until its
standard input closes. GPUs through `nvidia-smi`, where there is one.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time

from .around import Server

GPU = (
    "uuid", "clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu",
    "utilization.gpu", "memory.used", "clocks_event_reasons.active",
)  # fmt: skip


def main(argv):
    period = float(argv[0])
    where = json.loads(sys.stdin.readline())
    server = Server(where["host"], where["port"], where.get("key"), timeout=2.0)
    smi = shutil.which("nvidia-smi")
    before = cpu_times()
    due = time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        due = max(due + period, time.monotonic())
        now = cpu_times()
        row: dict[str, object] = {"at": time.time_ns()}
        row["cpu"] = cpu_share(before, now)
        row["load_1m"] = os.getloadavg()[0]
        seen = server.counters() or {}
        row["running"], row["queued"] = seen.get("running"), seen.get("queued")
        row["gpus"] = gpus(smi) if smi else []
        before = now
        print(json.dumps(row), flush=True)
    return 0


def cpu_times():
    """Jiffies of all cores: busy, idle, stolen."""
    try:
        with open("/proc/stat", encoding="ascii") as f:
            words = [int(w) for w in f.readline().split()[1:]]
    except (OSError, ValueError):
        return None
    idle = words[3] + words[4]
    return sum(words[:8]) - idle, idle, words[7] if len(words) > 7 else 0


def cpu_share(before, now):
    if before is None or now is None:
        return None
    busy, idle, stolen = (b - a for a, b in zip(before, now))
    whole = max(1, busy + idle)
    return {"busy": round(busy / whole, 3), "stolen": round(stolen / whole, 3)}


def gpus(smi):
    """One row a GPU; numbers where they are numbers, None where the driver gives none."""
    words = [smi, "--query-gpu=" + ",".join(GPU), "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [{"error": str(error)[:200]}]
    if done.returncode:
        return [{"error": (done.stdout + done.stderr).strip()[:200]}]
    return [row(line) for line in done.stdout.splitlines() if line.strip()]


def row(line):
    cells = [c.strip() for c in line.split(",")]
    out: dict[str, object] = {}
    for name, cell in zip(GPU, cells):
        try:
            out[name] = float(cell)
        except ValueError:
            out[name] = cell if name in ("uuid", "clocks_event_reasons.active") else None
    return out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
