#!/usr/bin/env python3
"""The measuring client beside other load generators: the same mock, the same load, each in turn.

    bench/load_peers.py --streams 256,512 --repeats 5 \\
        --sglang PYTHON --aiperf AIPERF --tokenizer lab/models/tiny-qwen3 --json FILE

Tools that are not named are left out and said to be. Runs are interleaved (A B C, A B C, ..). What
each tool reports is compared with what the mock wrote down in that very run: the percentile of the
server's own times, so the mock's lateness cancels. The mock runs on the last core; `--pin` keeps
the tools on the first, as one client core and one mock core; without it they have the machine.
Every repeat is printed. Failures to start are results too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from load_accuracy import NOISE, SIDE, Server, plan_for, quantile
from measure import machine

from ddops.bench.answer import parse_load
from ddops.bench.figures import ttft_ns
from ddops.hostside.load.around import stall_fraction

Report = dict[str, float | str | None]
TOKENS = 200
LIMIT_S = 400


def pinned(args: argparse.Namespace, words: list[str]) -> list[str]:
    return ["taskset", "-c", str(min(os.sched_getaffinity(0))), *words] if args.pin else words


def run(words: list[str], env: dict[str, str] | None = None, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        words, input=stdin, capture_output=True, check=False, timeout=LIMIT_S,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).decode("utf-8", "replace")[-400:])
    return done.stdout


def ours(args: argparse.Namespace, streams: int, connections: str) -> Report:
    plan = plan_for(args.port, streams, connections=connections, noise_s=0.0)
    out = run(pinned(args, [sys.executable, "-m", "load"]), {"PYTHONPATH": str(SIDE)}, plan.dump())
    load = parse_load(out)
    values = [t / 1e6 for s in load.samples if (t := ttft_ns(s)) is not None]
    tokens = sum(s.tokens or 0 for s in load.samples)
    return {
        "ttft_p50": quantile(values, 0.5), "ttft_p99": quantile(values, 0.99),
        "tokens": float(tokens), "tps": tokens / (load.end / 1e9),
    }  # fmt: skip


def sglang(args: argparse.Namespace, streams: int, *more: str) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        words = [
            args.sglang, "-m", "sglang.benchmark.serving", "--backend", "sglang-oai-chat",
            "--host", "127.0.0.1", "--port", str(args.port), "--model", "mock",
            "--tokenizer", args.tokenizer, "--dataset-name", "random-ids",
            "--random-input-len", "8", "--random-output-len", str(TOKENS),
            "--random-range-ratio", "1", "--num-prompts", str(2 * streams),
            "--max-concurrency", str(streams), "--output-file", str(out), "--disable-tqdm", *more,
        ]  # fmt: skip
        run(pinned(args, words), {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
        found = json.loads(out.read_text().splitlines()[-1])
    return {
        "ttft_p50": found["median_ttft_ms"], "ttft_p99": found["p99_ttft_ms"],
        "tokens": float(found["total_output_tokens"]), "tps": found["output_throughput"],
    }  # fmt: skip


def aiperf(args: argparse.Namespace, streams: int) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            args.aiperf, "profile", "--model", "mock", "--url", f"http://127.0.0.1:{args.port}",
            "--endpoint-type", "chat", "--streaming", "--concurrency", str(streams),
            "--request-count", str(2 * streams), "--tokenizer", args.tokenizer,
            "--isl", "8", "--osl", str(TOKENS), "--use-server-token-count",
            "--artifact-dir", folder, "--ui", "none",
        ]  # fmt: skip
        run(pinned(args, words))
        found = json.loads(next(Path(folder).rglob("profile_export_aiperf.json")).read_text())
    ttft, tokens = found["time_to_first_token"], found.get("output_sequence_length", {})
    return {
        "ttft_p50": ttft["p50"], "ttft_p99": ttft["p99"],
        "tokens": float(tokens.get("avg", 0.0)) * 2 * streams,
        "tps": found["output_token_throughput"]["avg"],
    }  # fmt: skip


def measured(
    server: Server, name: str, tool: Callable[[], Report], streams: int, repeat: int
) -> dict[str, Any]:
    noise = stall_fraction(0.3)["fraction"]
    server.reset()
    row: dict[str, Any] = {"tool": name, "streams": streams, "repeat": repeat, "noise": noise}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    try:
        row |= tool()
    except (RuntimeError, OSError, KeyError, ValueError, StopIteration,
            subprocess.TimeoutExpired) as error:  # fmt: skip
        server.reset()
        return row | {"failed": f"{type(error).__name__}: {error}"[:300]}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row["wall_s"] = time.monotonic() - began
    truth = server.reset()
    # A tool's own warm-up comes first; what is measured are the last 2 x streams answers.
    rows = sorted(truth["answers"], key=lambda r: r["arrived"])[-2 * streams :]
    true = [(r["at"][0] - r["arrived"]) / 1e6 for r in rows]
    late = [(r["at"][0] - r["start"]) / 1e6 for r in rows]
    row["ttft_p50_error"] = row["ttft_p50"] - quantile(true, 0.5)
    row["ttft_p99_error"] = row["ttft_p99"] - quantile(true, 0.99)
    row["mock_late_p99"] = quantile(late, 0.99)
    row["delivered"] = truth["most"]
    row["disturbed"] = noise > NOISE or row["mock_late_p99"] > 5
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", default="256,512")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sglang", metavar="PYTHON", help="an interpreter that has sglang")
    parser.add_argument("--aiperf", metavar="PROGRAM")
    parser.add_argument("--tokenizer", default=str(SIDE.parents[1] / "lab/models/tiny-qwen3"))
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--port", type=int, default=18733)
    parser.add_argument("--json")
    args = parser.parse_args()
    tools: dict[str, Callable[[int], Report]] = {
        "ddops warm": lambda n: ours(args, n, "warm"),
        "ddops cold": lambda n: ours(args, n, "cold"),
    }
    if args.sglang:
        tools["sglang python"] = lambda n: sglang(args, n)
        tools["sglang rust"] = lambda n: sglang(args, n, "--rust-client")
    if args.aiperf:
        tools["aiperf"] = lambda n: aiperf(args, n)
    rows: list[dict[str, Any]] = []
    server = Server(args.port, tokens=TOKENS)
    try:
        for repeat in range(args.repeats):
            for streams in (int(n) for n in args.streams.split(",")):
                for name, tool in tools.items():
                    row = measured(server, name, lambda t=tool, n=streams: t(n), streams, repeat)
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr)
    finally:
        server.close()
    show(rows, machine(), args)


def show(rows: list[dict[str, Any]], where: dict[str, object], args: argparse.Namespace) -> None:
    print(f"# {', '.join(f'{k} {v}' for k, v in where.items())}, pinned {args.pin}")
    print(f"{'tool':14} {'streams':>7} {'n':>2} {'quiet':>5} {'p50 err':>9} {'p99 err':>9}"
          f" {'min':>9} {'max':>9} {'tok/s':>8} {'cpu s':>7}  ms")  # fmt: skip
    for tool, streams in dict.fromkeys((r["tool"], r["streams"]) for r in rows):
        mine = [r for r in rows if (r["tool"], r["streams"]) == (tool, streams)]
        good = [r for r in mine if "failed" not in r]
        if not good:
            print(f"{tool:14} {streams:>7} {len(mine):>2}  failed: {mine[0]['failed'][:90]}")
            continue
        p99 = [r["ttft_p99_error"] for r in good]
        print(f"{tool:14} {streams:>7} {len(good):>2} {sum(not r['disturbed'] for r in good):>5}"
              f" {statistics.median(r['ttft_p50_error'] for r in good):>9.2f}"
              f" {statistics.median(p99):>9.2f} {min(p99):>9.2f} {max(p99):>9.2f}"
              f" {statistics.median(r['tps'] for r in good):>8.0f}"
              f" {statistics.median(r['cpu_s'] for r in good):>7.2f}")  # fmt: skip
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": where, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
