"""How long does grading HumanEval take, with the whole preflight?

    .venv/bin/python bench/coding_grade.py [--repeats 5] [--json FILE]

Each repeat grades 164 replies that hold the published solutions, after the preflight: 164 gold
solutions, three stubs for each task, and the hostile programs. Nothing is kept between repeats.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.measure import report
from ddops.bench.coding import Answer, grade
from ddops.bench.coding_tasks import humaneval


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds to grade HumanEval, preflight included.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="keep the samples here")
    args = parser.parse_args()
    tasks = humaneval()
    replies = [Answer(t.id, f"```python\n{t.prompt}{t.gold}\n```") for t in tasks.tasks]
    wall, cpu = [], []
    for _ in range(args.repeats):
        began, used = time.perf_counter(), os.times()
        result = grade(tasks, replies)
        now = os.times()
        wall.append(time.perf_counter() - began)
        cpu.append(sum(now[:4]) - sum(used[:4]))
        assert result.counts == {"passed": 164}, result.counts
    report("HumanEval graded", {"wall": wall, "CPU": cpu}, "s", args.json)


if __name__ == "__main__":
    main()
