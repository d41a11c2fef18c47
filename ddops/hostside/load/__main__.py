"""Reads a plan, runs it, prints what came of it. See the package."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zlib

from . import around
from .http1 import request_bytes
from .loop import Loop
from .parse import sample
from .stamps import Warm

PLAN, ANSWER = "ddops.load-plan/1", "ddops.load/1"
PATHS = {"generate": "/generate", "completions": "/v1/completions", "chat": "/v1/chat/completions"}


def main():
    try:
        plan = json.loads(sys.stdin.buffer.read())
        schema = plan["schema"]
    except (ValueError, KeyError, TypeError) as error:
        print("not a plan: %s: %s" % (type(error).__name__, error), file=sys.stderr)
        return 64
    if schema != PLAN:
        print("not a plan: schema %r, want %r" % (schema, PLAN), file=sys.stderr)
        return 64
    allow_connections()
    answer = perform(plan)
    sys.stdout.buffer.write(zlib.compress(json.dumps(answer).encode("ascii"), 1))
    sys.stdout.buffer.flush()
    return 0


def allow_connections():
    """As many open files as this process may have: a session's own limit is often 1024, and each
    request under way has a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # what it has is enough for most loads
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def perform(plan):
    """The whole run: looks before, the load, looks after."""
    key = api_key(plan.get("service_dir"))
    server = around.Server(plan["host"], plan["port"], key)
    wish = plan["around"]
    out = {"schema": ANSWER, "before": look(server, plan), "after": {}, "samples": []}
    if not fit(out["before"], plan, out):
        return out
    out["machine"] = around.machine()
    out["idle"] = around.wait_idle(server, wish["quiet_s"], wish["idle_budget_s"])
    out["flushed"] = server.flush() if wish["flush"] else None
    out["before"]["counters"] = server.counters()
    out["noise_before"] = around.stall_fraction(wish["noise_s"])
    warm = Warm()
    try:
        loop, out["conditions"] = load(plan, key, warm.works)
    finally:
        warm.close()
    out["noise_after"] = around.stall_fraction(wish["noise_s"])
    out["after"] = look(server, plan)
    out["after"]["counters"] = server.counters()
    out["client"] = client(loop, warm)
    out["t0"], out["end"] = loop.t0, loop.end - loop.t0
    requests = plan["requests"]
    loop.exchanges.sort(key=lambda e: e.n)
    for exchange in loop.exchanges:
        one = sample(exchange, requests[exchange.n], plan["route"], loop.t0, plan["keep"])
        out["samples"].append(one)
        exchange.raw = bytearray()  # what is parsed is no longer needed
    return out


def look(server, plan):
    seen = server.identity()
    folder = plan.get("service_dir")
    seen["process"] = around.process_of(folder) if folder else None
    if seen["process"]:
        seen["environment"] = around.engine_environment(seen["process"]["pid"])
    return seen


def fit(before, plan, out):
    """Whether the server is the one that is meant; nothing is sent to another."""
    want = plan.get("weight_version")
    if want is not None and before["weight_version"] != want:
        out["refused"] = "the server says it is %r, not %r" % (before["weight_version"], want)
        return False
    return True


def load(plan, key, stamped):
    close = plan["connections"] == "cold"
    common = plan.get("common", {})
    payloads = [
        request_bytes(
            PATHS[plan["route"]],
            json.dumps({**common, **r["body"]}).encode("ascii"),
            plan["host"], plan["port"], key, close,
        )
        for r in plan["requests"]
    ]  # fmt: skip
    loop = Loop((plan["host"], plan["port"]), payloads, plan["mode"], plan, stamped)
    loop.wall_before = offset()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: loop.stop("signal"))
    watcher = start_sampler(plan, key)
    began = resource.getrusage(resource.RUSAGE_SELF)
    try:
        loop.run()
    finally:
        conditions = end_sampler(watcher)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    loop.cpu_s = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    loop.step_ns = offset() - loop.wall_before
    for row in conditions:
        row["at"] -= loop.t0
    loop.look_every_s = plan["around"]["sample_s"] or None
    loop.unlooked_s = unlooked(conditions, loop.end - loop.t0)
    return loop, conditions


def unlooked(conditions, end):
    """The longest time of a run without a look, in seconds; times in ns. One that the GPUs' tool
    did not answer is none."""
    looks = [r["at"] for r in conditions if not any("error" in g for g in r.get("gpus") or ())]
    marks = [0, *(at for at in looks if 0 < at < end), end]
    return max(marks[i + 1] - marks[i] for i in range(len(marks) - 1)) / 1e9


def start_sampler(plan, key):
    period = plan["around"]["sample_s"]
    if not period:
        return None
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # A file and no pipe: nobody reads before the run has ended, and a pipe that is full (at eight
    # GPUs after half a minute) would stop the looks without a word.
    said = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed where it is read
    watcher = subprocess.Popen(
        [sys.executable, "-m", "load.sampler", str(period)],
        stdin=subprocess.PIPE, stdout=said, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": folder},
    )  # fmt: skip
    where = {"host": plan["host"], "port": plan["port"], "key": key}
    assert watcher.stdin is not None  # noqa: S101 - a pipe was asked for
    watcher.stdin.write(json.dumps(where).encode() + b"\n")
    watcher.stdin.flush()
    return watcher, said


def end_sampler(watcher):
    if watcher is None:
        return []
    process, said = watcher
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    with said:
        said.seek(0)
        out = said.read()
    rows = []
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # cut off by the end of the run
    return rows


def offset():
    """CLOCK_REALTIME minus CLOCK_MONOTONIC: it moves when somebody sets the clock."""
    return time.time_ns() - time.monotonic_ns()


def client(loop, warm):
    """How well the client itself did: what a reader needs to trust the times.

    `capacity_reads_s` is what a whole core of it would have done at this run's cost of a read.
    """
    reads = sum(len(e.reads) for e in loop.exchanges)
    return {
        "kernel_stamps": warm.works,
        "why": warm.why,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_s": loop.cpu_s,
        "wall_s": (loop.end - loop.t0) / 1e9,
        "clock_step_ns": loop.step_ns,
        "raw_bytes": loop.raw_bytes,
        "reads": reads,
        "capacity_reads_s": reads / loop.cpu_s if loop.cpu_s > 0 else None,
        "read_delay_ns": spread(loop.late_reads),
        "stopped": loop.stopped,
        "look_every_s": loop.look_every_s,
        "unlooked_s": loop.unlooked_s,
    }


def spread(values):
    """Quantiles of what is too much to keep whole; nearest rank."""
    if not values:
        return None
    ranked = sorted(values)
    last = len(ranked) - 1
    return {"p50": ranked[last // 2], "p99": ranked[last * 99 // 100], "max": ranked[-1]}


def api_key(service_dir):
    if not service_dir:
        return None
    try:
        with open(os.path.join(service_dir, "current", "secret-args.yaml"), encoding="utf-8") as f:
            return json.load(f).get("api-key")
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main())
