#!/usr/bin/env python3
"""A rolling update of 4 replicas behind SGLang's router, under traffic of a constant rate.

    bench/rolling_update.py [-n ROUNDS] [--rate 4] [--seconds 2] [--json FILE]

Makes a lab of stand-ins with their router, then alternates in each round: an update with draining,
and the same update of the same service without its [router] table, one host after the other, while
the router runs on. Four streams, then a whole answer; nothing is tried twice by the client. The
engines are told to wait for no request when they stop. Everything here is `sim`, on one machine: it
says nothing about a real engine's load, only whether requests are lost, and what draining costs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measure import machine, report

from tests.lab.harness import Project
from tests.lab.steady import steady
from tests.lab.test_router import NAMES, Fleet, two_ports

STEP_MS = 50
#: Traffic before and behind each update, in seconds.
AROUND_S = 3.0


@dataclass(frozen=True, slots=True)
class Round:
    """One update. `in_flight` and `waited_s` are the replicas', in the order of their names."""

    how: str
    took_s: float
    sent: int
    failed: int
    streams_failed: int
    slowest_s: float
    in_flight: tuple[int, ...]
    waited_s: tuple[float, ...]


def update(fleet: Fleet, how: str, profile: str, rate: float, tokens: int) -> Round:
    drained = how == "drained"
    fleet.write(routed=drained)
    with steady(fleet.port, rate, tokens) as client:
        time.sleep(AROUND_S)
        began = time.monotonic()
        fleet.project.ok("deploy", "tiny", "--profile", profile, "--batch", "1")
        took = time.monotonic() - began
        time.sleep(AROUND_S)
    found = [fleet.evidence(n, "drained") for n in NAMES] if drained else []
    return Round(
        how, round(took, 2), len(client.sent), len(client.failed),
        sum(s.streamed for s in client.failed), round(max(s.seconds for s in client.sent), 2),
        tuple(int(e["in_flight"]) for e in found), tuple(float(e["waited_s"]) for e in found),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=5)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long one request takes")
    parser.add_argument("--json")
    args = parser.parse_args()
    tokens = max(1, round(args.seconds * 1000 / STEP_MS))
    project = Project(Path(tempfile.mkdtemp(prefix="ddops-bench-")) / "p").make()
    rounds: list[Round] = []
    where = machine()
    try:
        project.ok("lab", "up", "--engine", "sim", "--hosts", str(len(NAMES)))
        for name in ("one", "two"):
            project.profile(name, f"step_ms={STEP_MS},commit=1,drain_s=0")
        fleet = Fleet(project, *two_ports())
        fleet.write()
        project.ok("provision", "lab")
        project.ok("deploy", "tiny")
        for n in range(2 * args.n):
            how, profile = (("drained", "two"), ("not drained", "one"))[n % 2]
            one = update(fleet, how, profile, args.rate, tokens)
            rounds.append(one)
            print(f"round {n // 2 + 1}: {one}", flush=True)
    finally:
        project.run("lab", "down")
    print(f"load when it began: {where['load_1m']}; {args.rate:g} requests/s of {args.seconds:g} s")
    for how in ("drained", "not drained"):
        mine = [r for r in rounds if r.how == how]
        failed, sent = sum(r.failed for r in mine), sum(r.sent for r in mine)
        print(f"{how}: {failed} of {sent} requests failed in {len(mine)} updates")
    rows = {
        f"update, {h}": [r.took_s for r in rounds if r.how == h] for h in ("drained", "not drained")
    }
    rows["drain of one replica"] = [w for r in rounds for w in r.waited_s]
    report("A rolling update of 4 replicas (sim)", rows, "s", None)
    if args.json:
        Path(args.json).write_text(
            json.dumps({"machine": where, "rounds": [asdict(r) for r in rounds]}, indent=1)
        )


if __name__ == "__main__":
    main()
