#!/usr/bin/env python3
"""How long does it take to judge one host's facts? The first judgement reads the data tables."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from measure import report  # noqa: E402

from ddops.compat import Subject, judge_all  # noqa: E402
from ddops.probe import parse_facts  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("facts", nargs="?", help="kept by ddops probe --save; else a made-up B300")
    parser.add_argument("--json", dest="out")
    args = parser.parse_args()
    if args.facts:
        text = Path(args.facts).read_text(encoding="utf-8")
    else:
        code = (
            "import json; from tests.unit.compat.hosts import host; print(json.dumps(host('b300')))"
        )
        text = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True,
                              capture_output=True, text=True).stdout  # fmt: skip
    times = []
    for _ in range(31):
        began = time.perf_counter()
        judge_all(Subject(parse_facts(text), "nvlink", "sglang"))
        times.append((time.perf_counter() - began) * 1000)
    report("judging one host", {"first": times[:1], "later": times[1:]}, "ms", args.out)


if __name__ == "__main__":
    main()
