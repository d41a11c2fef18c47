"""How long do `ddops report` and `ddops recommend` take over a big ledger, and how much memory?

    .venv/bin/python bench/report_scale.py [--runs 1000] [--samples 1000000] [--repeats 3]

Rows are made up (tests/ledgers.py), of device class `sim`. Each command is a process of its own,
timed from its start to its end, imports included; memory is its peak resident set. CPU time stands
beside: on a busy machine the wall says little. Goals: 10 s and 300 MB for the page.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.measure import report
from tests.ledgers import make_ledger

COMMANDS = {
    "recommend": ("recommend", "--json"),
    "report, Markdown": ("report", "--format", "md"),
    "report, HTML": ("report", "--format", "html"),
}


def ddops(folder: Path, *argv: str) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds, and peak MiB of one process."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "ddops", *argv], cwd=folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit((child.stderr.read() if child.stderr else b"").decode())
    wall = time.perf_counter() - began
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of a report.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="make the ledger here, or use it if there")
    parser.add_argument("--json", help="keep the times here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        (folder / ".ddops").mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "ddops.toml").touch()
        path = folder / ".ddops" / "ledger.db"
        if not path.exists():
            make_ledger(path, runs=args.runs, samples=args.samples)
        times: dict[str, list[float]] = {}
        memory: dict[str, list[float]] = {}
        for name, argv in COMMANDS.items():
            found = [ddops(folder, *argv) for _ in range(args.repeats)]
            times[name] = [wall for wall, _, _ in found]
            times[name + " (CPU)"] = [cpu for _, cpu, _ in found]
            memory[name] = [peak for _, _, peak in found]
        title = f"{args.runs} runs, {args.samples} samples"
        report(f"time over {title}", times, "s", args.json)
        report(f"peak memory over {title}", memory, "MiB", None)


if __name__ == "__main__":
    main()
