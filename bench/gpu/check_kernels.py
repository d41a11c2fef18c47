"""The tree kernel and the sampler on a GPU: equal to the oracles, fast enough, no host sync.

    python bench/gpu/check_kernels.py --out OUT            # about 3 minutes on one H200
    python bench/gpu/check_kernels.py --out OUT --tiny     # on a CPU, with TRITON_INTERPRET=1

With SGLang on the path (see engine.sh) its own kernels judge too: links and positions rebuilt from
our masks, the greedy walk, and the tree sampler. Writes OUT/kernels.json and prints a summary.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "tests/ddtree")]
import law  # noqa: E402

from sglang_ddtree import tree_kernels, tree_torch  # noqa: E402
from sglang_ddtree.sampling import target_only_walk  # noqa: E402
from sglang_ddtree.tree import greedy_walk  # noqa: E402
from sglang_ddtree.tree_types import TreeBatch, Walk  # noqa: E402

DEPTH = 7
SEEDS = (11, 12, 13, 14, 15)


def inputs(bs: int, topk: int, kind: str, seed: int, depth: int = DEPTH) -> tuple[Tensor, ...]:
    """Roots, candidate ids, log-probabilities and prefix lengths, on the CPU."""
    random = torch.Generator().manual_seed(seed)
    lp = (2 * torch.randn(bs, depth, 64, generator=random)).log_softmax(-1)
    values, ids = lp.topk(topk, -1)
    if kind == "nan":
        values = torch.where(torch.rand(values.shape, generator=random) < 0.2, torch.nan, values)
    if kind == "repeats":
        values = torch.where(torch.rand(values.shape, generator=random) < 0.2, -torch.inf, values)
        ids = torch.randint(0, 3, ids.shape, generator=random)
    if kind == "ties":
        values = (2 * values).round() / 2
    roots = torch.randint(0, 64, (bs,), generator=random)
    return roots, ids, values, torch.randint(0, 300, (bs,), generator=random)


def differing(ours: TreeBatch, oracle: TreeBatch) -> list[str]:
    """Names of the fields that are not the same bit for bit."""
    return [
        f.name
        for f in dataclasses.fields(oracle)
        if isinstance(getattr(oracle, f.name), Tensor)
        and not torch.equal(getattr(ours, f.name).cpu(), getattr(oracle, f.name))
    ]


def check_equal(device: str, budgets: range, batches: tuple[int, ...]) -> dict[str, Any]:
    """Every budget, topk, batch and kind of input against the torch search on the CPU."""
    wrong: list[str] = []
    tried = 0
    for budget in budgets:
        for topk in (1, 2, 3, 4, 8):
            for bs in batches:
                kind = ("plain", "nan", "repeats", "ties")[tried % 4]
                given = inputs(bs, topk, kind, seed=tried)
                width = max(budget + 1, 8) + tried % 3
                oracle = tree_torch.search(*given, budget, width)
                there = [t.to(device) for t in given]
                rows = width * (given[3] + width)
                tail = torch.full((int(rows.sum()),), 7, dtype=torch.uint8, device=device)
                ours = tree_kernels.search(*there, budget, width, tail=tail)  # type: ignore[misc]
                bad = differing(ours, oracle) + tail_faults(tail.cpu(), oracle, given[3])
                if bad:
                    wrong.append(f"budget {budget} topk {topk} bs {bs} {kind}: {bad}")
                tried += 1
    return {"compared": tried, "different": wrong}


def tail_faults(flat: Tensor, tree: TreeBatch, prefix: Tensor) -> list[str]:
    """Walks the flat mask request by request: prefix cells untouched, tails equal to the masks."""
    at, faults = 0, []
    for n, length in enumerate(prefix.tolist()):
        block = flat[at : at + tree.width * (length + tree.width)].view(tree.width, -1)
        at += block.numel()
        if not bool((block[:, :length] == 7).all()):
            faults.append(f"prefix of request {n}")
        if not torch.equal(block[:, length:].bool(), tree.mask[n]):
            faults.append(f"tail of request {n}")
    return faults


def device_us(work: Callable[[], object], inner: int = 20, rounds: int = 30) -> dict[str, float]:
    """Device time of one call in microseconds: CUDA events around replays of a graph of many."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            work()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / inner)
    cut = statistics.quantiles(times, n=10)
    return {"median": statistics.median(times), "p10": cut[0], "p90": cut[-1]}


def timings(device: str) -> list[dict[str, Any]]:
    rows = []
    for budget in (7, 8, 15, 16, 31, 32, 47):
        for topk in (4, 8):
            for bs in (1, 4, 16, 32, 64):
                given = [t.to(device) for t in inputs(bs, topk, "plain", seed=bs)]
                length = budget + 1
                flat = torch.ones(
                    int((length * (given[3] + length)).sum()), dtype=torch.uint8, device=device
                )
                time_us = device_us(lambda: tree_kernels.search(*given, budget, length, tail=flat))  # noqa: B023
                rows.append({"budget": budget, "topk": topk, "bs": bs, **time_us})
    return rows


def no_sync(device: str) -> dict[str, Any]:
    """A build under torch's own sync alarm, and every runtime call a profile of it saw."""
    given = [t.to(device) for t in inputs(16, 4, "plain", seed=1)]
    tree_kernels.search(*given, 15, 16)  # compiled before the alarm is on
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            tree_kernels.search(*given, 15, 16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(20):
            tree_kernels.search(*given, 15, 16)
        torch.cuda.synchronize()
    calls = {
        e.key: e.count
        for e in profile.key_averages()
        if e.key.startswith(("cuda", "cu", "Mem", "_build"))
    }
    copies = [k for k in calls if "memcpy" in k.lower()]
    waits = {k: n for k, n in calls.items() if "ynchronize" in k}
    return {"calls_of_20_builds": calls, "copies": copies, "waits": waits}


def laws(sampler: law.Sampler, device: str, count: int) -> dict[str, Any]:
    """Chi-square over seeds for each temperature, Holm-corrected together."""
    names, found = [], []
    for temperature in (0.0, 0.6, 1.0):
        for seed in SEEDS:
            what = law.make(seed, temperature)
            counts = law.draws(what, sampler, count, seed, budget=8, topk=4, device=device)
            names.append(f"T={temperature} seed={seed}")
            found.append(law.chi_square_p(counts, what))
    rejected = law.holm_rejects(found)
    return {
        "draws": count,
        "p": {n: round(p, 4) for n, p in zip(names, found, strict=True)},
        "rejected": [n for n, r in zip(names, rejected, strict=True) if r],
    }


def sglang_sampler(tree: TreeBatch, probs: Tensor, coins: Tensor, final: Tensor) -> Walk:
    """SGLang's kernel behind our interface."""
    from sglang.kernels.ops.speculative.sampling import tree_speculative_sampling_target_only

    bs, width = tree.tokens.shape
    device = probs.device
    predicts = torch.zeros(bs * width, dtype=torch.int32, device=device)
    path = torch.full((bs, tree.max_depth + 1), -1, dtype=torch.int32, device=device)
    length = torch.zeros(bs, dtype=torch.int32, device=device)
    index = torch.arange(bs * width, device=device).view(bs, width)
    tree_speculative_sampling_target_only(
        predicts, path, length, tree.tokens.contiguous(), index, tree.next_token.contiguous(),
        tree.next_sibling.contiguous(), coins, final, probs.contiguous(), torch.zeros_like(probs),
    )  # fmt: skip
    base = torch.arange(bs, device=device).unsqueeze(1) * width
    nodes = torch.where(path >= 0, path - base, -1)
    last = path.gather(1, length.long().unsqueeze(1)).squeeze(1)
    return Walk(nodes, length.long(), predicts[last.long()].long())


def against_sglang(device: str) -> dict[str, Any]:
    """SGLang's own kernels on our trees: rebuilt links, greedy walk, sampler on the same coins."""
    from sglang.kernels.ops.speculative.tree import (
        reconstruct_indices_from_tree_mask,
        verify_tree_greedy,
    )

    out: dict[str, Any] = {"links_differ": [], "greedy_differ": [], "sampler": {}}
    for budget in (1, 7, 8, 15, 32, 47):
        bs, width = 33, budget + 1
        given = [t.to(device) for t in inputs(bs, 4, "plain", seed=budget)]
        tree = tree_kernels.search(*given, budget, width)  # type: ignore[misc]
        links = torch.full((3, bs, width), -1, dtype=torch.int64, device=device)
        positions = torch.zeros(bs * width, dtype=torch.int64, device=device)
        reconstruct_indices_from_tree_mask(
            tree.mask.reshape(-1), given[3], positions, *links.unbind(0), bs, width
        )
        same = (
            torch.equal(positions.view(bs, width), tree.positions)
            and torch.equal(links[1], tree.next_token)
            and torch.equal(links[2], tree.next_sibling)
        )
        if not same:
            out["links_differ"].append(budget)
        wanted = torch.randint(0, 64, (bs, width), device=device)
        child = tree.next_token.clamp(min=0)
        wanted = torch.where(tree.next_token >= 0, tree.tokens.gather(1, child), wanted)
        predicts = torch.zeros(bs * width, dtype=torch.int32, device=device)
        path = torch.full((bs, tree.max_depth + 1), -1, dtype=torch.int32, device=device)
        length = torch.zeros(bs, dtype=torch.int32, device=device)
        index = torch.arange(bs * width, device=device).view(bs, width)
        verify_tree_greedy(
            predicts, path, length, tree.tokens, index, tree.next_token, tree.next_sibling, wanted
        )
        walk = greedy_walk(tree, wanted)
        theirs = torch.where(path >= 0, path - index[:, :1], -1)
        if not torch.equal(theirs.long(), walk.accept_index) or not torch.equal(
            length.long(), walk.accept_len
        ):
            out["greedy_differ"].append(budget)
    what = law.make(3, 1.0)
    tree = law.tree_of(what, 20_000, 8, 4, device)
    coins, final = torch.rand(tree.tokens.shape, device=device), torch.rand(20_000, device=device)
    probs = law.probabilities(what, tree).contiguous()
    ours, theirs_ = (f(tree, probs, coins, final) for f in (target_only_walk, sglang_sampler))
    out["sampler"] = {
        "steps": 20_000,
        "other_path": int((ours.accept_index != theirs_.accept_index).any(1).sum()),
        "other_token": int((ours.bonus != theirs_.bonus).sum()),
    }
    out["law"] = laws(sglang_sampler, device, 40_000)
    return out


def parts(tiny: bool) -> dict[str, Callable[[], Any]]:
    """What is checked, in the order in which it runs."""
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    budgets, batches = (range(1, 6), (1, 3)) if tiny else (range(1, 49), (1, 3, 64))
    found: dict[str, Callable[[], Any]] = {}
    if gpu:
        found |= {"us": lambda: timings(device), "sync": lambda: no_sync(device)}
    found["equal"] = lambda: check_equal(device, budgets, batches)
    found["law"] = lambda: laws(target_only_walk, device, 4_000 if tiny else 40_000)
    if gpu:
        found["sglang"] = lambda: against_sglang(device)
    return found


def in_a_process(name: str, args: argparse.Namespace) -> Any:
    """One part in a process of its own: a device assert makes a whole CUDA context useless."""
    file = args.out / f"kernels.{name}.json"
    words = [sys.executable, __file__, "--out", str(args.out), "--part", name]
    done = subprocess.run(
        words + ["--tiny"] * args.tiny, capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode:
        return {"error": f"exit {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"}
    result = json.loads(file.read_text())
    file.unlink()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--part", help="run this part here, not each in a process of its own")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known = parts(args.tiny)
    if args.part:
        found = known[args.part]()
        (args.out / f"kernels.{args.part}.json").write_text(json.dumps(found))
        return
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu, interpreted",
        "torch": torch.__version__,
        "triton": tree_kernels.triton.__version__,
    }
    for name in known:
        began = time.monotonic()
        try:
            report[name] = in_a_process(name, args)
        except Exception as error:  # one part must not cost the visit the others
            report[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        (args.out / "kernels.json").write_text(json.dumps(report, indent=1) + "\n")
        shown = report[name]
        if name == "us" and isinstance(shown, list):
            worst = max((r for r in shown if 8 <= r["budget"] <= 32), key=lambda r: r["median"])
            shown = {"rows": len(shown), "slowest of budgets 8 to 32": worst}
        print(f"{name} ({time.monotonic() - began:.1f} s): {json.dumps(shown)[:1500]}", flush=True)


if __name__ == "__main__":
    main()
