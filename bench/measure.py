"""Shared by the measuring scripts: the machine in words, medians and spread."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path


def machine() -> dict[str, object]:
    """What a figure must be read with."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")),
        platform.processor(),
    )  # fmt: skip
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def report(title: str, rows: Mapping[str, Sequence[float]], unit: str, out: str | None) -> None:
    """Print and keep. Spread is minimum to maximum: with few samples a percentile says nothing."""
    where = machine()
    print(f"# {title}: {', '.join(f'{k} {v}' for k, v in where.items())}")
    print(f"{'':28} {'n':>3} {'median':>9} {'min':>9} {'max':>9}  {unit}")
    for name, values in rows.items():
        print(f"{name:28} {len(values):>3} {statistics.median(values):>9.3f}"
              f" {min(values):>9.3f} {max(values):>9.3f}")  # fmt: skip
    if out:
        Path(out).write_text(
            json.dumps(
                {"title": title, "unit": unit, "machine": where, "samples": dict(rows)}, indent=1
            )
        )
