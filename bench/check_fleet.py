#!/usr/bin/env python3
"""64 recorded hosts in one command: `ddops probe` and `ddops check` of a whole lab.

All hosts, their sshd and their collectors share this machine, so the time is that of 64 collectors
on its cores and not of a fleet; memory is the controller's own. Everything here is `simulated`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from measure import report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddops-bench-"))
    (folder / "ddops.toml").write_text("")
    rows: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    try:
        ddops(folder, "lab", "up", "--gpu", "pcie", "--hosts", str(args.hosts))
        for _ in range(args.n):
            for count, target in ((1, "pcie"), (args.hosts, "lab-gpu")):
                for verb in ("probe", "check"):
                    took, peak = ddops(folder, verb, target)
                    rows.setdefault(f"{verb}, {count} hosts", []).append(took)
                    memory.setdefault(f"{verb}, {count} hosts", []).append(peak)
    finally:
        ddops(folder, "lab", "down")
        shutil.rmtree(folder)
    report("probe and check of recorded hosts", rows, "s", args.json)
    report("peak memory of the controller", memory, "MiB", None)


def ddops(folder: Path, *argv: str) -> tuple[float, float]:
    """Seconds, and the peak memory of the process in MiB."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "ddops", *argv], cwd=folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"ddops {' '.join(argv)}: {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
