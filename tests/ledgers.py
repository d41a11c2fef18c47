"""Ledgers of any size, by a fixed recipe: what report, board and query tests are built over.

    .venv/bin/python -m tests.ledgers PATH --runs 60 --samples 12000

Every number in them is made up by a formula, none was measured: runs are of device class `sim`
(or `gpu` where a test must see how GPU rows are shown) with the tool `simulated`. The formula has
the shape of the case in docs/case-k26.md: trees win at concurrency 1, the autoregressive server at
128.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ddops.command import Redactor
from ddops.ledger import (
    Cell,
    Device,
    Identity,
    Ledger,
    NewCondition,
    NewRun,
    NewSample,
    RawData,
    Status,
)
from ddops.model import GateResult, Verdict, digest

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Name, algorithm, budget, and the simulated tok/s at concurrency 1 and 128.
STRATEGIES = (
    ("ar", "none", 0, 98.0, 1449.0),
    ("dflash", "DFLASH", 8, 121.0, 1010.0),
    ("ddtree-b8", "DDTREE", 8, 150.0, 786.0),
    ("ddtree-b48", "DDTREE", 48, 101.0, 420.0),
)
BAD_TREE, GOOD_TREE = digest("tree with a mask fault"), digest("tree")


def make_ledger(
    path: Path,
    *,
    runs: int = 60,
    samples: int = 1200,
    device: Device = Device.SIM,
    launches: int = 6,
    seed: int = 1,
    sync: bool = False,
) -> list[str]:
    """Fill a ledger at `path`; answers the ids of its runs, oldest first.

    `samples` is the sum over all runs. Runs go round strategies and levels, each `launches`
    times on another server start. About one in ten is not valid, with a reason, and the first
    launch of each strategy ran on BAD_TREE. The rows are the same for the same arguments but
    for the ids that the ledger makes.
    """
    draw = random.Random(seed)
    per_run = [samples // runs + (1 if i < samples % runs else 0) for i in range(runs)]
    with Ledger.open(path, redactor=Redactor()) as ledger:
        if not sync:
            ledger._conn.execute("PRAGMA synchronous = OFF")
        starts = _starts(ledger, launches)
        ids = []
        for i, count in enumerate(per_run):
            ids.append(_one(ledger, draw, starts, i, count, device))
        return ids


def _starts(ledger: Ledger, launches: int) -> dict[str, list[tuple[str, str, str, str]]]:
    """Launches of each strategy: nonce, its exactness gate, release, tree."""
    ledger.add_host("simhost", {"gpus": ["GPU-sim-0"]})
    for sha in (BAD_TREE, GOOD_TREE):
        ledger.add_tree(sha, upstream="sglang-0.5.23", series="s" + sha[:8], at=START)
    out: dict[str, list[tuple[str, str, str, str]]] = {}
    for name, algorithm, budget, _, _ in STRATEGIES:
        spec = {"argv": ["--speculative-algorithm", algorithm, "--budget", str(budget)]}
        release = digest({"simulated": name})
        ledger.add_release(release, service="sim", spec=spec, upstream="sglang-0.5.23", at=START)
        out[name] = []
        for n in range(launches):
            op, nonce = f"op-{name}-{n}", f"{release[:12]}-{n:04d}"
            at = START + timedelta(minutes=n)
            ledger.add_deployment(
                op, service="sim", release=release, host="simhost", by="simulated", at=at
            )
            ledger.add_launch(nonce, deployment=op, host="simhost", release=release, started=at)
            result = GateResult("exactness", Verdict.PASS, "64 of 64 prompts alike")
            gate = ledger.add_gate(result, deployment=op, launch=nonce, at=at)
            out[name].append((nonce, gate, release, BAD_TREE if n == 0 else GOOD_TREE))
    return out


def _one(
    ledger: Ledger,
    draw: random.Random,
    starts: dict[str, list[tuple[str, str, str, str]]],
    i: int,
    count: int,
    device: Device,
) -> str:
    name, algorithm, budget, low, high = STRATEGIES[i % len(STRATEGIES)]
    level = LEVELS[i // len(STRATEGIES) % len(LEVELS)]
    turn = i // (len(STRATEGIES) * len(LEVELS))
    nonce, gate, release, tree = starts[name][turn % len(starts[name])]
    cell = Cell(
        suite="concurrency",
        vary={"release": release, "algorithm": algorithm, "budget": budget},
        fix={"model": "sim/tiny", "dataset": "simulated", "concurrency": level, "temperature": 0},
        service="sim",
        label=f"{name} C={level}",
        concurrency=level,
    )
    share = (level.bit_length() - 1) / 7
    tps = low * (high / low) ** share * draw.gauss(1, 0.01)
    good = draw.random() >= 0.1
    length = 1.0 if not budget else 4.0 if algorithm == "DDTREE" else 2.2
    began = START + timedelta(hours=1, minutes=i)
    tokens = count * 200
    run = NewRun(
        cell=ledger.add_cell(cell, at=began),
        launch=nonce,
        tree=tree,
        status=Status.VALID if good else Status.INVALID,
        reason="" if good else "simulated: client delay over its bound",
        gates=(gate,),
        identity=Identity.PROVEN,
        device_class=device,
        device="simulated",
        repeat=turn + 1,
        started=began,
        ended=began + timedelta(seconds=30),
        concurrency=level,
        c_eff=float(level),
        requests=max(count, 1),
        output_tokens=tokens,
        window_ms=1000 * tokens / tps,
        output_tps=tps,
        request_tps=tps / 200,
        ttft_p50_ms=40 + level * draw.uniform(0.9, 1.1),
        ttft_p99_ms=90 + 2 * level * draw.uniform(0.9, 1.1),
        tpot_p50_ms=1000 * level / tps,
        tpot_p99_ms=1300 * level / tps,
        commit_tokens=tokens,
        commit_steps=int(tokens / length) or 1,
        tool="simulated",
        by="simulated",
        protocol={"route": "/generate", "own": {"seed": i}},
        window={"rule": "simulated"},
        environment={"simulated": True},
        metrics={"power_w_mean": 600.0},
    )
    looks = [
        NewCondition(n=n, at_ns=n * 10**9, device="GPU-sim-0", sm_mhz=2400, power_w=590.0 + n)
        for n in range(3)
    ]
    raw = [RawData(kind="events", data=draw.randbytes(64), text=False)]
    return ledger.add_run(run, samples_of(draw, count, level, tps, length), looks, raw)


def samples_of(
    draw: random.Random, count: int, level: int, tps: float, length: float
) -> Iterator[NewSample]:
    each = int(200 * 1e9 * level / tps)
    for n in range(count):
        sent = n // level * each
        first = sent + int(draw.uniform(40e6, 60e6))
        yield NewSample(
            n=n,
            prompt=f"prompt-{n % 80}",
            scheduled_ns=sent,
            sent_ns=sent,
            first_byte_ns=first,
            first_token_ns=first,
            last_token_ns=first + each,
            end_ns=first + each + 1000,
            uncertainty_ns=9000,
            prompt_tokens=120,
            cached_tokens=0,
            tokens=200,
            first_tokens=1,
            chunks=int(200 / length),
            verify_ct=int(200 / length),
            correct_drafts=200 - int(200 / length),
            finish="length",
            identity_ok=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    ids = make_ledger(args.path, runs=args.runs, samples=args.samples, seed=args.seed)
    print(f"{args.path}: {len(ids)} simulated runs")


if __name__ == "__main__":
    main()
