#!/usr/bin/env python3
"""How far the measuring client is from the truth: TTFT, arrivals, intervals, open-loop rate.

    bench/load_accuracy.py --streams 64,256,512 --repeats 5 --json FILE

One mock core, one client core. The truth is what the mock wrote down for each answer, so its own
lateness cancels. An error is the client's value minus the truth of the very same request.

The truth of TTFT runs from the stamp that the mock's kernel gave the request (`came`) to the mock's
look at its clock right before it handed the first chunk to the kernel. `queued` is what a request
then waited until the mock's program read it: to a client this is time of the server, and
`ttft_read_p99_ms` is the error if one counts from there.

A repeat is marked `disturbed` when the mock itself was late (p99 above 5 ms) or a spinning probe
lost more than 2 % before it; all repeats are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from measure import machine

from ddops.bench.answer import Sample, parse_load
from ddops.bench.figures import per_token_ns, tpot_ns, ttft_ns
from ddops.bench.plan import LoadPlan, Request, Where, text_body
from ddops.bench.prompts import constant_schedule

HERE = Path(__file__).parent
SIDE = HERE.parent / "ddops" / "hostside"
LATE_NS, NOISE = 5_000_000, 0.02
#: From the mock's look at its clock to the segment's stamp, where nothing comes between.
SLACK_NS = 200_000


class Server:
    """The mock in a process of its own."""

    def __init__(self, port: int, **options: float) -> None:
        self.port = port
        self.folder = tempfile.TemporaryDirectory(prefix="ddops-load-")
        self.truth = Path(self.folder.name) / "truth.json"
        words = [f"--{k.replace('_', '-')}={v}" for k, v in options.items()]
        cores = sorted(os.sched_getaffinity(0))
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "load_mock.py"), str(port), str(self.truth),
             f"--core={cores[-1]}", *words],
        )  # fmt: skip
        for _ in range(200):
            try:
                self.reset()
                return
            except OSError:
                time.sleep(0.02)
        raise SystemExit("the mock did not start")

    def reset(self) -> dict[str, Any]:
        """What was answered since the last call."""
        url = f"http://127.0.0.1:{self.port}/truth"
        urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=10).read()
        found: dict[str, Any] = json.loads(self.truth.read_text())
        return found

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.folder.cleanup()


def client(plan: LoadPlan) -> Any:
    """The client as a host runs it, on the first core."""
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(core), sys.executable, "-m", "load"], input=plan.dump(),
        capture_output=True, check=True, timeout=300, env={**os.environ, "PYTHONPATH": str(SIDE)},
    )  # fmt: skip
    return parse_load(done.stdout)


def plan_for(port: int, streams: int, route: str = "chat", **changes: Any) -> LoadPlan:
    count = changes.pop("count", 2 * streams)
    base: dict[str, Any] = {
        "where": Where(host="127.0.0.1", port=port, model="mock"), "route": route,
        "common": {"model": "mock", "stream": True, "stream_options": {"include_usage": True}},
        "requests": [
            Request(id=f"r{n}", body=text_body(route, f"r{n}")) for n in range(count)
        ],
        "concurrency": streams, "timeout_s": 60.0, "deadline_s": 120.0, "noise_s": 0.3,
        "sample_s": 0.0, "idle_budget_s": 2.0,
    }  # fmt: skip
    return LoadPlan(**{**base, **changes})


def quantile(values: list[float], q: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(q * len(ranked)))] if ranked else float("nan")


def matched(load: Any, truth: dict[str, Any]) -> list[tuple[Sample, dict[str, Any]]]:
    """Each sample with the mock's row of the very request, known by its prompt."""
    rows = {r["asked"]: r for r in truth["answers"]}
    return [(s, rows[s.prompt]) for s in load.samples if s.ok]


def judge(load: Any, truth: dict[str, Any]) -> dict[str, float | bool]:
    """Errors of one repeat, ms and us."""
    pairs = matched(load, truth)
    ttft, arrival, token = [], [], []
    queued = [(row["arrived"] - row["came"]) / 1e6 for _, row in pairs]
    shared = sum(s.chunks[0].lo < s.chunks[0].hi for s, _ in pairs)
    behind = [(s.sent - s.scheduled) / 1e6 for s, _ in pairs if s.sent is not None]
    inside = chunks = 0
    for sample, row in pairs:
        value = ttft_ns(sample)
        assert value is not None
        ttft.append((value - (row["at"][0] - row["came"])) / 1e6)
        for chunk, at in zip(sample.chunks, row["at"], strict=True):
            arrival.append((chunk.hi + load.t0_unix_ns - at) / 1e3)
            # The mock looks at its clock before it writes: the chunk came a little after `at`.
            written = at - load.t0_unix_ns
            inside += chunk.lo - SLACK_NS <= written <= chunk.hi
            chunks += 1
        later = (sample.tokens or 0) - (sample.chunks[0].tokens or 0)
        true_mean = (row["at"][-1] - row["at"][0]) / max(1, later)
        mine = tpot_ns(sample)
        assert mine is not None
        token.append(abs(mine / true_mean - 1))
        assert len(per_token_ns(sample)) == len(sample.chunks) - 1
    late = [(at - (row["start"])) for _, row in pairs for at in row["at"][:1]]
    span = (max(r["at"][-1] for _, r in pairs) - min(r["at"][0] for _, r in pairs)) / 1e9
    count = sum(len(r["at"]) for _, r in pairs)
    return {
        "ttft_p50_ms": quantile(ttft, 0.5), "ttft_p99_ms": quantile(ttft, 0.99),
        "ttft_read_p99_ms": quantile([e + q for e, q in zip(ttft, queued, strict=True)], 0.99),
        "queued_p99_ms": quantile(queued, 0.99), "first_events_sharing_a_read": float(shared),
        "sent_behind_p99_ms": quantile(behind, 0.99),
        "arrival_p50_us": quantile(arrival, 0.5), "arrival_p99_us": quantile(arrival, 0.99),
        "inside_bound": inside / max(1, chunks),
        "tpot_error_mean": statistics.fmean(token), "tpot_error_p99": quantile(token, 0.99),
        "events_s": count / span, "client_cpu_s": load.client["cpu_s"],
        "reads_per_cpu_s": load.client["capacity_reads_s"],
        "mock_late_p99_ms": quantile(late, 0.99) / 1e6, "noise": load.noise_before,
        "kernel": load.client["kernel_stamps"],
        "disturbed": quantile(late, 0.99) > LATE_NS or load.noise_before > NOISE,
    }  # fmt: skip


def streams(args: argparse.Namespace, out: list[dict[str, object]]) -> None:
    server = Server(args.port)
    try:
        for repeat in range(args.repeats):
            for count in (int(n) for n in args.streams.split(",")):
                server.reset()
                load = client(plan_for(args.port, count, connections=args.connections))
                row = {"what": f"{count} streams {args.connections}", "repeat": repeat,
                       **judge(load, server.reset())}  # fmt: skip
                out.append(row)
                print(json.dumps(row), file=sys.stderr)
    finally:
        server.close()


def per_chunk(args: argparse.Namespace, out: list[dict[str, object]]) -> None:
    for each in (1, 2, 4, 8, 16):
        server = Server(args.port, each=each, tokens=192)
        try:
            for repeat in range(args.repeats):
                server.reset()
                load = client(plan_for(args.port, 16))
                row = {"what": f"{each} tokens a chunk", "repeat": repeat,
                       **judge(load, server.reset())}  # fmt: skip
                out.append(row)
                print(json.dumps(row), file=sys.stderr)
        finally:
            server.close()


def open_loop(args: argparse.Namespace, out: list[dict[str, object]]) -> None:
    server = Server(args.port, tokens=10, gap_ms=5, ttft_ms=5)
    rate, seconds = 200.0, args.seconds
    at = constant_schedule(rate, int(rate * seconds))
    try:
        for repeat in range(args.repeats):
            server.reset()
            plan = plan_for(args.port, 1, count=len(at), concurrency=None, at_ns=at,
                            max_connections=256)  # fmt: skip
            load, truth = client(plan), server.reset()
            arrived = sorted(r["arrived"] for r in truth["answers"])
            late = [(s.sent - s.scheduled) / 1e6 for s in load.samples if s.sent is not None]
            got = (len(arrived) - 1) / ((arrived[-1] - arrived[0]) / 1e9)
            row: dict[str, object] = {
                "what": f"open loop {rate:g}/s {seconds:g} s", "repeat": repeat,
                "rate_error": got / rate - 1, "send_late_p99_ms": quantile(late, 0.99),
                "client_cpu_s": load.client["cpu_s"], "noise": load.noise_before,
                "disturbed": load.noise_before > NOISE,
            }  # fmt: skip
            out.append(row)
            print(json.dumps(row), file=sys.stderr)
    finally:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", default="64,128,256,512")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--connections", choices=("warm", "cold"), default="warm")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", choices=("streams", "chunks", "open"))
    parser.add_argument("--port", type=int, default=18731)
    parser.add_argument("--json")
    args = parser.parse_args()
    out: list[dict[str, object]] = []
    for name, part in (("streams", streams), ("chunks", per_chunk), ("open", open_loop)):
        if args.only in (None, name):
            part(args, out)
    where = machine()
    print(f"# {', '.join(f'{k} {v}' for k, v in where.items())}")
    for what in dict.fromkeys(str(r["what"]) for r in out):
        mine = [r for r in out if r["what"] == what]
        quiet = [r for r in mine if not r["disturbed"]]
        print(f"{what}: {len(mine)} repeats, {len(quiet)} undisturbed")
        for key in mine[0]:
            values = [float(str(r[key])) for r in mine if isinstance(r[key], float)]
            if values:
                print(f"    {key:18} median {statistics.median(values):10.4f}"
                      f"  min {min(values):10.4f}  max {max(values):10.4f}")  # fmt: skip
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": where, "rows": out}, indent=1))


if __name__ == "__main__":
    main()
