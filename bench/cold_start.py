#!/usr/bin/env python3
"""Wall time of short commands, each in a process of its own. Budget: 150 ms on 2 cores."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from measure import report

COMPLETE = {"_DDOPS_COMPLETE": "bash_complete", "COMP_WORDS": "ddops deploy ", "COMP_CWORD": "2"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=20)
    parser.add_argument("--json")
    args = parser.parse_args()
    ddops = str(Path(sys.executable).parent / "ddops")
    cases: dict[str, tuple[list[str], dict[str, str]]] = {
        "python -c pass": ([sys.executable, "-c", "pass"], {}),
        "python -c 'import click'": ([sys.executable, "-c", "import click"], {}),
        "ddops --help": ([ddops, "--help"], {}),
        "ddops --version": ([ddops, "--version"], {}),
        "ddops deploy --help": ([ddops, "deploy", "--help"], {}),
        "completion of a target": ([ddops], COMPLETE),
        "completion of a command": (
            [ddops],
            {**COMPLETE, "COMP_WORDS": "ddops de", "COMP_CWORD": "1"},
        ),
    }
    rows: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(args.n):  # interleaved, so that a busy moment hits all alike
        for name, (argv, env) in cases.items():
            began = time.perf_counter()
            subprocess.run(argv, env={**os.environ, **env}, capture_output=True, check=True)
            rows[name].append((time.perf_counter() - began) * 1e3)
    report("cold start", rows, "ms", args.json)


if __name__ == "__main__":
    main()
