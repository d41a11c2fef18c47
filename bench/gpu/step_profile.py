"""What one decode step does on the host and waits for, from torch's profile of a server.

The probe (probe/) marks each step of a worker with a `ddtree-visit: step` span. Everything here is
counted inside those spans, on the scheduler's own thread; what the scheduler does between steps is
named apart.
"""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

STEP = "ddtree-visit: step"
#: Calls of CUDA's runtime in which a host waits for the device.
WAITS = (
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy",
    "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize",
)  # fmt: skip
FUNCTIONS = 70
#: The plugin's own kernels: the tree, and the accepted path.
OWN = ("_build", "_accepted")


def profiled(
    server: Any, prompts: Sequence[Sequence[int]], at_once: int, *, stacks: bool, steps: int = 16
) -> dict[str, Any]:
    """A profile of `steps` passes of the scheduler amid greedy answers, and its summary."""
    folder = server.probe / f"profile-{at_once}-{'stacks' if stacks else 'plain'}"
    folder.mkdir(exist_ok=True)
    body = {"output_dir": str(folder), "activities": ["CPU", "GPU"], "with_stack": stacks,
            "start_step": 1, "num_steps": steps}  # fmt: skip
    server.call("POST", "/start_profile", body)
    sampling = {"temperature": 0, "max_new_tokens": 160, "ignore_eos": True}
    server.ask([prompts[i % len(prompts)] for i in range(at_once)], sampling, at_once)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for trace in folder.glob("*.json.gz"):
            try:
                events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
            except (EOFError, ValueError, OSError):  # it is still being written
                continue
            return {"server": server.spec.name, "at_once": at_once, **summary(events)}
        time.sleep(0.5)
    raise RuntimeError(f"{server.spec.name}: no profile came in 60 s")


def summary(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Per step: host time, launches, copies, waits; with stacks also where the host was."""
    whole = [e for e in events if e.get("ph") == "X"]
    spans = sorted(
        (e for e in whole if e["name"] == STEP and e.get("cat") == "user_annotation"),
        key=lambda e: e["ts"],
    )
    # The first may have been compiling or prefilling beside; the last may be cut.
    spans = spans[1:-1]
    if len(spans) < 3:
        raise RuntimeError(f"a profile of {len(spans)} whole steps says nothing")
    thread = spans[0]["tid"]
    begins = [e["ts"] for e in spans]
    ends = [e["ts"] + e["dur"] for e in spans]

    def inside(event: dict[str, Any]) -> bool:
        at = bisect_right(begins, event["ts"]) - 1
        return at >= 0 and event["ts"] < ends[at] and event["tid"] == thread

    calls: Counter[str] = Counter()
    spent: dict[str, float] = defaultdict(float)
    waits: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    ops: Counter[str] = Counter()
    asked: set[int] = set()
    functions: dict[str, float] = defaultdict(float)
    visits: Counter[str] = Counter()
    for event in whole:
        kind, name = event.get("cat", ""), event["name"]
        if kind in ("cuda_runtime", "cuda_driver"):
            within = inside(event)
            if name in WAITS:
                (waits if within else outside)[name] += 1
            if within:
                calls[name] += 1
                spent[name] += event["dur"]
                asked.add(event.get("args", {}).get("correlation", -1))
        elif kind == "cpu_op" and inside(event):
            ops[name] += 1
        elif kind == "python_function" and inside(event):
            functions[name] += event["dur"]
            visits[name] += 1
    copies: Counter[str] = Counter()
    kernels, busy = 0, 0.0
    own: dict[str, float] = defaultdict(float)
    for event in whole:
        if event.get("args", {}).get("correlation", -2) not in asked:
            continue
        if event.get("cat") == "gpu_memcpy":
            copies[event["name"]] += 1
        if event.get("cat") == "kernel":
            kernels += 1
            busy += event["dur"]
            if event["name"] in OWN:
                own[event["name"]] += event["dur"]
    count = len(spans)
    top = sorted(functions, key=lambda n: -functions[n])[:FUNCTIONS]
    gaps = [b - a for a, b in itertools.pairwise(begins)]
    return {
        "steps": count,
        "host_us_in_step": round(statistics.median(e["dur"] for e in spans), 1),
        "us_between_steps": round(statistics.median(gaps), 1),
        "kernels_per_step": round(kernels / count, 1),
        "kernel_us_per_step": round(busy / count, 1),
        "own_kernels_us_per_step": {n: round(own[n] / count, 2) for n in sorted(own)},
        "waits_in_step": dict(waits),
        "waits_between_steps": dict(outside),
        "copies_in_step": {n: round(c / count, 2) for n, c in copies.most_common()},
        "runtime_calls_per_step": {
            n: [round(c / count, 2), round(spent[n] / count, 1)] for n, c in calls.most_common(14)
        },
        "ops_per_step": {n: round(c / count, 2) for n, c in ops.most_common(40)},
        "functions": [
            [short(n), round(visits[n] / count, 2), round(functions[n] / count, 1)] for n in top
        ],
    }


def short(name: str) -> str:
    """`file.py(line): function` without the folders before the file."""
    head, sep, tail = name.partition("(")
    return Path(head).name + sep + tail
