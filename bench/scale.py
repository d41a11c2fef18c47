#!/usr/bin/env python3
"""A fleet of 1, 16, 64, 256 hosts through probe, check, status and a batched deploy: time, memory.

    bench/scale.py --hosts 1 16 64 256 --batch 32 --json scale.json

Each size is a lab of its own in a scratch folder: an sshd of its own for each host, on loopback,
and the stand-in engine (`sim`). Every step is a whole command line with the settings as they are
shipped, and runs once. Memory is the highest resident set of the controller's process. All hosts
share this machine with the controller, so time holds their work too, and grows with it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from measure import machine

REPO = Path(__file__).resolve().parents[1]
GOAL_MIB = 400


@dataclass(frozen=True, slots=True)
class Row:
    """One command over one fleet. `cpu_s` is the controller's own, its `ssh -G` children's too."""

    hosts: int
    step: str
    wall_s: float
    cpu_s: float
    peak_mib: float
    load: float
    out_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--limit-s", type=float, default=2400.0, help="Of one command.")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    for hosts in args.hosts:
        for row in fleet(hosts, args.batch, args.limit_s):
            rows.append(row)
            print(f"{row.hosts:>4} {row.step:14} {row.wall_s:8.2f} s {row.cpu_s:7.2f} s of CPU"
                  f" {row.peak_mib:6.0f} MiB  load {row.load:.1f}", flush=True)  # fmt: skip
            if args.json:
                kept = {"machine": machine(), "batch": args.batch}
                kept["rows"] = [asdict(r) for r in rows]
                args.json.write_text(json.dumps(kept, indent=1))
    print(table(rows))


def fleet(hosts: int, batch: int, limit_s: float) -> Iterator[Row]:
    folder = Path(tempfile.mkdtemp(prefix="ddops-scale-"))
    (folder / "ddops.toml").write_text("")
    steps = {
        "provision": ("provision", "lab", "--yes"),
        "probe": ("probe", "lab"),
        "check": ("check", "lab"),
        "status": ("status", "lab"),
        "deploy": ("deploy", "lab", "--yes", "--batch", str(batch)),
        "status, serving": ("status", "lab"),
        "status --json": ("status", "lab", "--json"),
    }
    up = ("lab", "up", "--engine", "sim", "--hosts", str(hosts))
    try:
        run(folder, hosts, "lab up", up, limit_s)
        for step, words in steps.items():
            yield run(folder, hosts, step, words, limit_s)
    finally:
        run(folder, hosts, "lab down", ("lab", "down"), limit_s)
        shutil.rmtree(folder)


def run(folder: Path, hosts: int, step: str, words: tuple[str, ...], limit_s: float) -> Row:
    """Its time and memory; the end of everything when it fails or takes too long."""
    out = folder / "out.txt"
    command = [sys.executable, "-m", "ddops", "--project", str(folder), *words]
    load, began = os.getloadavg()[0], time.perf_counter()
    with out.open("wb") as sink:
        child = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(REPO)}, stdin=subprocess.DEVNULL,
            stdout=sink, stderr=subprocess.STDOUT,
        )  # fmt: skip
        usage = waited(child, began + limit_s)
    took = time.perf_counter() - began
    if child.returncode:
        kept = Path(tempfile.gettempdir()) / f"ddops-scale-{hosts}-failed.txt"
        shutil.copy(out, kept)
        text = out.read_text(errors="replace")[-3000:]
        raise SystemExit(f"{step} of {hosts} hosts: {child.returncode}, all in {kept}\n{text}")
    cpu = usage.ru_utime + usage.ru_stime
    size = out.stat().st_size
    return Row(hosts, step, round(took, 2), round(cpu, 2), usage.ru_maxrss / 1024, load, size)


def waited(child: subprocess.Popen[bytes], until: float) -> resource.struct_rusage:
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return usage
        if time.perf_counter() > until:
            child.kill()
            until = float("inf")
        time.sleep(0.02)


def table(rows: list[Row]) -> str:
    """Time, time a host and memory, a column for each size."""
    sizes = sorted({r.hosts for r in rows})
    out = ["| step | " + " | ".join(f"{n}" for n in sizes) + " |", "|---|" + "---|" * len(sizes)]
    for step in dict.fromkeys(r.step for r in rows):
        cells = []
        for size in sizes:
            one = next((r for r in rows if (r.hosts, r.step) == (size, step)), None)
            cells.append(f"{one.wall_s:.1f} s, {one.peak_mib:.0f} MiB" if one else "")
        out.append(f"| {step} | " + " | ".join(cells) + " |")
    most = max(r.peak_mib for r in rows)
    out.append(f"\nPeak {most:.0f} MiB; the goal of {GOAL_MIB} is"
               f" {'met' if most <= GOAL_MIB else 'NOT met'}.")  # fmt: skip
    return "\n".join(out)


if __name__ == "__main__":
    main()
