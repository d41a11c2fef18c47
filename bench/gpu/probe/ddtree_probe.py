"""A plugin for SGLang that looks into a server from the inside, for the visits of bench/gpu.

Off unless `DDTREE_PROBE` names a folder. What it does is switched by files in that folder, so that
one server serves measurements and proofs alike:

    eager   decode and verify passes run without their graphs
    steps   DDTREE's own step log is written (the server needs DDTREE_STEP_LOG); reading waits
    times   CUDA events around the parts of each decode step
    step    CUDA events around the whole step alone, which costs every worker the same
    detect  one captured graph is replayed with other masks and tokens (see ddtree_detect.py)
    report  counts.json and times.json are written, then the file is removed

With tensor parallelism rank 0 alone does this; the other ranks get a folder of their own inside,
which nobody looks into. `DDTREE_PROBE_TREES=1` has every rank write a hash of each step's trees and
paths to `trees.txt` in its folder.

`DDTREE_PROBE_NO_MASK=1` has the drafter's graph write no mask, as with a backend that owns none:
each step lays its own out. `DDTREE_PROBE_BUG` puts one of the four bugs back.
`DDTREE_PROBE_KEEP_DTYPE=1` lets a pair run in float32: SGLang casts a drafter's input to bfloat16,
and the kernel package that travels has no float32 norm, so norms, activations and rotations run in
SGLang's own torch form.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

#: Seconds between two looks at the switches, and event pairs kept at most.
LOOK_S, KEEP = 0.02, 60_000


class Probe:
    """Counters, event pairs and switches of one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.spans: dict[tuple[str, int], list[tuple[Any, Any]]] = defaultdict(list)
        self.kept = 0
        self._on: dict[str, bool] = {}
        self._next_look = 0.0
        self._started = False

    def on(self, switch: str) -> bool:
        now = time.monotonic()
        if now >= self._next_look:
            names = ("eager", "steps", "times", "step", "detect")
            self._on = {name: (self.folder / name).exists() for name in names}
            self._next_look = now + LOOK_S
        return self._on[switch]

    def start(self) -> None:
        """Answer to `report` from a thread: a server without traffic would never look."""
        if not self._started:
            self._started = True
            if rank := _rank():  # known by now: each rank is a process with a folder of its own
                self.folder = self.folder / f"rank{rank}"
                self.folder.mkdir(exist_ok=True)
            threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        asked = self.folder / "report"
        while True:
            time.sleep(0.05)
            if asked.exists():
                self._write("counts.json", dict(self.counts))
                self._write("times.json", self._times())
                asked.unlink()

    def _times(self) -> list[dict[str, Any]]:
        """Milliseconds of each part by batch size; read once, then forgotten."""
        spans, self.spans, self.kept = self.spans, defaultdict(list), 0
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        rows = []
        for (name, bs), pairs in sorted(spans.items()):
            times = sorted(_milliseconds(a, b) for a, b in pairs)
            tenth = len(times) // 10
            rows.append({
                "part": name, "bs": bs, "n": len(times), "median_ms": statistics.median(times),
                "p10_ms": times[tenth], "p90_ms": times[len(times) - 1 - tenth],
            })  # fmt: skip
        return rows

    def _write(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1)
        part = self.folder / (name + ".part")
        part.write_text(text)
        part.replace(self.folder / name)

    def append(self, name: str, row: dict[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def timed(self, name: str, bs: int, work: Callable[[], Any]) -> Any:
        asked = self.on("times") or (name == "step" and self.on("step"))
        if not asked or self.kept >= KEEP:
            return work()
        begin = _mark()
        result = work()
        self.spans[name, bs].append((begin, _mark()))
        self.kept += 1
        return result


def _mark() -> Any:
    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _milliseconds(begin: Any, end: Any) -> float:
    if isinstance(begin, float):
        return float((end - begin) * 1000)
    return float(begin.elapsed_time(end))


_probe: Probe | None = None


def register() -> None:
    """Called by SGLang in each of its processes."""
    global _probe
    folder = os.environ.get("DDTREE_PROBE", "")
    if not folder or _probe is not None:
        return
    _probe = Probe(Path(folder))
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    around = {
        "sglang.srt.model_executor.model_runner.ModelRunner.forward": forward,
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation": plain_step,
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.init_cuda_graphs": wrap_worker,
    }
    runner = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
    if torch.cuda.is_available():
        around |= {f"{runner}.can_run_graph": can_run_graph, f"{runner}.execute": execute}
    if bug := os.environ.get("DDTREE_PROBE_BUG"):
        import ddtree_bugs

        around |= ddtree_bugs.hooks(bug)
    if os.environ.get("DDTREE_PROBE_NO_MASK"):
        around["sglang_ddtree.draft_graph.mask_in_graph"] = no_mask_in_graph
    if os.environ.get("DDTREE_PROBE_KEEP_DTYPE"):
        target = "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs"
        HookRegistry.register(target, keep_dtype, HookType.AFTER)
        layers = "sglang.srt.layers"
        around |= {
            f"{layers}.layernorm.RMSNorm.forward_cuda": norm_in_torch,
            f"{layers}.activation.SiluAndMul.forward_cuda": activation_in_torch,
            f"{layers}.rotary_embedding.base.RotaryEmbedding.forward_cuda": rotary_in_torch,
            "sglang.srt.models.utils.can_use_fused_inplace_qknorm": fused_norm_of,
        }
    for target, hook in around.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def no_mask_in_graph(original: Callable[..., Any], backend: Any, bs: int) -> None:
    del original, backend, bs


def norm_in_torch(
    original: Callable[..., Any], op: Any, x: Any, residual: Any = None, added: Any = None,
    *args: Any, **kw: Any,
) -> Any:  # fmt: skip
    """The kernel packages that travel have no float32; SGLang's own torch form has."""
    if x.dtype != torch.float32:
        return original(op, x, residual, added, *args, **kw)
    return op.forward_native(x, residual, added)


def fused_norm_of(original: Callable[..., bool], head_dim: int, dtype: torch.dtype) -> bool:
    """Its kernel has no float32, which SGLang finds out by compiling for half a minute."""
    return dtype != torch.float32 and original(head_dim, dtype)


def activation_in_torch(original: Callable[..., Any], op: Any, x: Any) -> Any:
    return op.forward_native(x) if x.dtype == torch.float32 else original(op, x)


def rotary_in_torch(
    original: Callable[..., Any], op: Any, positions: Any, query: Any, *args: Any, **kw: Any
) -> Any:
    way = op.forward_native if query.dtype == torch.float32 else functools.partial(original, op)
    return way(positions, query, *args, **kw)


def forward(
    original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kw: Any
) -> Any:
    """Count each pass by model, mode, rows a request and whether a graph replayed; time it."""
    assert _probe is not None
    _probe.start()
    mode = forward_batch.forward_mode
    model = "draft" if runner.is_draft_worker else "target"
    bs = int(forward_batch.batch_size)
    run = functools.partial(original, runner, forward_batch, *args, **kw)
    if not (mode.is_target_verify() or mode.is_decode()):
        return run()
    rows = int(forward_batch.input_ids.shape[0]) // max(bs, 1)
    out = _probe.timed(f"{model} pass", bs, run)
    how = "graph" if out.can_run_graph else "eager"
    _probe.counts[f"{model} {mode.name} {rows} {how}"] += 1
    return out


def plain_step(original: Callable[..., Any], worker: Any, batch: Any, *a: Any, **kw: Any) -> Any:
    """Time a decode step of a server without speculation; its sampler belongs to it."""
    assert _probe is not None
    run = functools.partial(original, worker, batch, *a, **kw)
    if batch is None or not batch.forward_mode.is_decode():
        return run()
    return _probe.timed("step", len(batch.reqs), run)


def can_run_graph(original: Callable[..., bool], runner: Any, forward_batch: Any) -> bool:
    assert _probe is not None
    return original(runner, forward_batch) and not _probe.on("eager")


def execute(
    original: Callable[..., Any], runner: Any, forward_batch: Any, *a: Any, **kw: Any
) -> Any:
    assert _probe is not None
    run = functools.partial(original, runner, forward_batch, *a, **kw)
    verifies = forward_batch.forward_mode.is_target_verify()
    if runner.model_runner.is_draft_worker or not verifies or not _probe.on("detect"):
        return run()
    import ddtree_detect

    found, out = ddtree_detect.detect(run, forward_batch, runner.attn_backend)
    _probe.append("detect.jsonl", found)
    return out


def wrap_worker(original: Callable[..., Any], worker: Any, *args: Any, **kw: Any) -> Any:
    """Time a speculative worker's whole step, and DDTREE's own parts by name."""
    assert _probe is not None
    probe = _probe
    result = original(worker, *args, **kw)
    step = worker.forward_batch_generation

    def timed_step(batch: Any, *a: Any, **k: Any) -> Any:
        run = functools.partial(step, batch, *a, **k)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return run()
        with torch.profiler.record_function("ddtree-visit: step"):
            return probe.timed("step", len(batch.reqs), run)

    worker.forward_batch_generation = timed_step
    if hasattr(worker, "steps"):
        hashed = os.environ.get("DDTREE_PROBE_TREES")
        worker.steps = TreeHashes() if hashed else SwitchedLog(worker.steps)
        _wrap_tree()
    return result


def _rank() -> int:
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().tp_rank)


class TreeHashes:
    """What a rank drafted and accepted at each step, in a line each. Reading it waits."""

    def record(self, tree: Any, result: Any) -> None:
        assert _probe is not None
        seen = [
            one.tolist()
            for one in (tree.tokens, tree.parents, result.accept_index, result.next_token_ids)
        ]
        line = hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]
        with (_probe.folder / "trees.txt").open("a") as file:
            file.write(line + "\n")


class SwitchedLog:
    """DDTREE's step log, written while the switch is on."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def record(self, *args: Any, **kw: Any) -> None:
        assert _probe is not None
        if _probe.on("steps"):
            self._log.record(*args, **kw)


def _wrap_tree() -> None:
    """The worker's functions that make a tree and its mask; one that is gone is counted."""
    assert _probe is not None
    probe = _probe
    from sglang_ddtree import worker as module

    for name in ("build_tree", "tree_mask", "verify_input"):
        function = getattr(module, name, None)
        if function is None:
            probe.counts[f"absent: {name}"] += 1
            continue

        def timed(*a: Any, _f: Any = function, _n: str = name, **k: Any) -> Any:
            first = a[0]
            bs = int(first.shape[0] if hasattr(first, "shape") else first.tokens.shape[0])
            return probe.timed(_n, bs, functools.partial(_f, *a, **k))

        setattr(module, name, timed)


def keep_dtype(kwargs: dict[str, Any], runner: Any, batch: Any, *a: Any, **k: Any) -> None:
    """SGLang casts a drafter's embeddings to bfloat16 whatever --dtype says."""
    if batch.input_embeds is not None:
        kwargs["input_embeds"] = batch.input_embeds.to(runner.dtype)
