"""What the visits of serve_visit.py do, in order of importance."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import serve_parts as parts
import serve_proofs as proofs
import serve_table as table
import step_profile
import two_samples
from serve_fleet import Spec

REPO = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUDGETS = (7, 8, 15)
ROUNDS = 5
#: How often the parts of a step are measured, the servers in turns.
STEP_ROUNDS = 16
#: No server is waited for beyond this second of the first visit.
START_S = 300


def specs(models: Path, prefix: str, budgets: tuple[int, ...] = BUDGETS) -> dict[str, Spec]:
    """AR, DFLASH and one DDTREE server a budget; names end in the budget."""
    named = [Spec(f"{prefix}-ar", models), Spec(f"{prefix}-dflash", models, "DFLASH")]
    named += [Spec(f"{prefix}-ddtree{b}", models, "DDTREE", budget=b) for b in budgets]
    return {s.name: s for s in named}


def float_specs(models: Path) -> list[Spec]:
    """The pair in float32; names begin with f32."""
    exact = {"TRITON_F32_DEFAULT": "ieee", "DDTREE_PROBE_KEEP_DTYPE": "1"}
    flags = ("--dtype", "float32", "--cuda-graph-bs-decode", "8")
    tree = Spec("x", models, "DDTREE", flags=flags, env=exact)
    return [
        Spec("f32-ar", models, flags=flags, env=exact),
        Spec("f32-dflash", models, "DFLASH", flags=flags, env=exact),
        *(replace(tree, name=f"f32-ddtree{b}", budget=b) for b in (8, 15)),
    ]


def bugs(models: Path) -> list[Spec]:
    """Budget 15 with block 8: where the bugs confuse the two, they differ."""
    base = Spec("bug", models, "DDTREE", budget=15)
    return [replace(base, name=f"bug{n}", env={"DDTREE_PROBE_BUG": str(n)}) for n in (1, 2, 4)]


def prompts_of(folder: Path) -> list[list[int]]:
    file = folder / "prompts.json"
    if file.exists():
        ids: list[list[int]] = json.loads(file.read_text())["token_ids"]
        return ids
    return [[(7 * n + 3 * i) % 900 + 60 for i in range(48)] for n in range(96)]


def models_of(visit: Any, folder: Path) -> Path:
    """The pair, unpacked beside its archive; on a CPU the lab's toy models."""
    if visit.cpu:
        toy = visit.scratch / "models"
        toy.mkdir(parents=True, exist_ok=True)
        for name, there in (("target", "tiny-qwen3"), ("draft", "tiny-qwen3-dflash")):
            if not (toy / name).exists():
                (toy / name).symlink_to(REPO / "lab/models" / there)
        return toy
    return unpacked(folder)


def unpacked(folder: Path) -> Path:
    if not (folder / "target/model.safetensors").exists():
        words = [sys.executable, str(HERE / "pair_pack.py"), "unpack", str(folder / "pair.tar")]
        subprocess.run([*words, str(folder)], check=True, timeout=60)
    return folder


def kernels(visit: Any) -> subprocess.Popen[bytes]:
    """The kernel checks run while the servers import: timings first, before anything computes."""
    with (visit.out / "kernels.log").open("wb") as log:
        words = [sys.executable, str(HERE / "check_kernels.py"), "--out", str(visit.out)]
        return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)


def widened(visit: Any, models: Path) -> Path:
    """The widened pair, made on the GPU into memory."""
    for base in (Path("/dev/shm"), visit.scratch):  # noqa: S108  (memory: it is read five times)
        out: Path = base / "ddtree-wide"
        words = [sys.executable, str(HERE / "widen_pair.py"), str(models), str(out)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
        if done.returncode == 0:
            visit.put("widened", json.loads(done.stdout.splitlines()[-1]))
            return out
        visit.say(f"widen into {base}: {done.stderr[-400:]}")
    raise RuntimeError("the pair could not be widened")


def first(visit: Any, folder: Path) -> None:
    """Proofs with graphs on the pair, then the tables on the pair and on the widened pair."""
    models = models_of(visit, folder)
    prompts = prompts_of(folder)
    tokens = 24 if visit.cpu else 128
    budgets = (8,) if visit.cpu else BUDGETS
    pair = specs(models, "pair", budgets)
    checks = None
    if not visit.cpu:
        parts.gpu(visit)
        checks = kernels(visit)
    visit.fleet.start(*pair.values())
    wide: dict[str, Spec] = {}
    if checks is not None:
        _until(lambda: _has(visit.out / "kernels.json", "sync"), 50)
        where = visit.part("widen", 100, lambda: str(widened(visit, models)))
        if where:
            wide = specs(Path(where), "wide")
            visit.fleet.start(*wide.values())
    names = visit.ready(*pair, by=START_S)
    if "pair-ar" not in names:
        raise visit.stop("the server without speculation is not up, and all are held against it")
    visit.pack_caches()
    _prove(visit, names, prompts, tokens)
    if checks is not None:
        visit.part("kernels", 20, lambda: _kernels_done(visit, checks))
    ready = visit.ready(*wide, by=max(visit.now + 5, START_S), vital=False) if wide else []
    visit.fleet.end_all(set(wide) - set(ready))  # nothing compiles while something is measured
    _tables(visit, names, "pair", prompts, tokens)
    _tables(visit, ready, "wide", prompts, tokens)
    _sampling(visit, names, prompts, tokens)


def _prove(visit: Any, names: list[str], prompts: list[list[int]], tokens: int) -> None:
    if parts.greedy(visit, names, prompts, tokens, (1, 2) if visit.cpu else (1, 8, 32)):
        parts.detect(visit, names, prompts)
        parts.graphs(visit, names, prompts, tokens)


def _tables(visit: Any, names: list[str], kind: str, prompts: list[list[int]], tokens: int) -> None:
    """First where a step's time goes, then five rounds of throughput, kept after each."""
    if len(names) < 2:
        return
    servers = [visit.fleet[n] for n in names]
    levels = (1, 2) if visit.cpu else table.CONCURRENCY
    for server in servers:  # nothing compiles while it is measured
        visit.part(
            f"warm {server.spec.name}", 30,
            lambda s=server: [table.measure(s, prompts, 16, c)["wall_s"] for c in levels],
        )  # fmt: skip
    split: list[dict[str, Any]] = []
    for server in servers:
        split += visit.part(
            f"parts {server.spec.name}", 20,
            lambda s=server: table.parts(s, prompts, tokens, levels),
        ) or []  # fmt: skip
    visit.put(f"parts {kind}", split)
    rows: list[dict[str, Any]] = []
    taken = iter(table.rounds(servers, prompts, tokens, ROUNDS, levels))
    longest = 10.0
    for number in range(ROUNDS):
        if visit.left < 1.2 * longest:
            visit.results["skipped"].append(f"round {number} of {kind} and later ones")
            break
        began = visit.now
        found = visit.part(f"round {number} of {kind}", 90, lambda: {"rows": next(taken)})
        if found is None:
            break
        rows += visit.results.pop(f"round {number} of {kind}")["rows"]
        longest = max(longest if number else 0, visit.now - began)
        visit.results[f"rows {kind}"] = rows
        visit.put(f"table {kind}", table.summary(rows, f"{kind}-dflash"))


def _sampling(visit: Any, names: list[str], prompts: list[list[int]], tokens: int) -> None:
    """Sampled answers are as probable as the target's own."""
    servers = {n: visit.fleet[n] for n in names}
    plain = servers["pair-ar"]
    few = prompts[:4] if visit.cpu else prompts[:64]
    for temperature in (0.6, 1.0):
        visit.part(
            f"sampled T={temperature}", 40,
            lambda t=temperature: proofs.sampled(servers, plain, few, t, tokens // 2),
        )  # fmt: skip


def second(visit: Any, folder: Path) -> None:
    """The bugs put back, pages, overlap off, other budgets, float32, two servers' samples."""
    models = models_of(visit, folder)
    prompts = prompts_of(folder)
    tree = Spec("x", models, "DDTREE", budget=8)
    plain = Spec("plain", models)
    others = [
        replace(tree, name="page16", flags=("--page-size", "16")),
        replace(tree, name="page64", flags=("--page-size", "64")),
        replace(tree, name="no-overlap", flags=("--disable-overlap-schedule",)),
        replace(tree, name="chunked", flags=("--chunked-prefill-size", "32")),
        *(replace(tree, name=f"budget{b}", budget=b) for b in (1, 32, 47)),
        # Graphs for fewer requests than are configured, and a mask that no graph writes.
        replace(tree, name="requests6", flags=("--max-running-requests", "6")),
        replace(tree, name="mask-by-step", env={"DDTREE_PROBE_NO_MASK": "1"}),
    ]
    trees = [replace(tree, name=f"tree{b}", budget=b) for b in (8, 15)]
    floats = float_specs(models)
    put_back = bugs(models)
    visit.part("gpu", 20, lambda: parts.gpu(visit))
    visit.fleet.start(plain, *put_back, *others, *floats, *trees)
    tokens = 96
    names = visit.ready("plain", *(s.name for s in put_back), by=200, vital=False)
    fleet = visit.fleet
    if "plain" not in names:
        raise visit.stop("the plain server did not start")
    visit.part("reference", 40, lambda: parts.kept(
        visit, proofs.reference(fleet["plain"], prompts[:48], tokens, 8)))  # fmt: skip
    wanted = visit.kept
    for name in [n for n in names if n.startswith("bug")]:
        visit.part(
            f"{name} greedy", 25,
            lambda n=name: proofs.lossless(fleet[n], wanted, prompts[:48], tokens, 8),
        )  # fmt: skip
        visit.part(f"{name} detect", 25, lambda n=name: proofs.detector(fleet[n], prompts))
    for name in visit.ready(*(s.name for s in others), by=visit.now + 25, vital=False):
        visit.part(name, 25, lambda n=name: proofs.pages(fleet[n], wanted, prompts[:48], tokens))
    ready = visit.ready(*(s.name for s in floats), by=visit.now + 60, vital=False)
    parts.floats(visit, ready, prompts[:48], tokens)
    ready = visit.ready(*(s.name for s in trees), by=visit.now + 20, vital=False)
    _triples(visit, "plain", ["plain", *ready], prompts)


#: Samples of one server at one prompt and temperature, and prompts that are looked at for variety.
TRIPLES, LOOKED_AT = 2048, 24


def _triples(visit: Any, reference: str, names: list[str], prompts: list[list[int]]) -> None:
    """First three tokens of each server against the plain one's, where the plain one's vary."""
    plain = visit.fleet[reference]

    def varied() -> list[int]:
        seen = {n: len(proofs.joint(plain, prompts[n], 1.0, 128)) for n in range(LOOKED_AT)}
        return sorted(seen, key=lambda n: -seen[n])[:2]

    for number in visit.part("varied prompts", 40, varied) or ():
        for temperature in (0.6, 1.0):
            label = f"T={temperature} prompt {number}"
            want = visit.part(
                f"triples ar {label}", 20,
                lambda n=number, t=temperature: dict(proofs.joint(plain, prompts[n], t, TRIPLES)),
            )  # fmt: skip
            for name in names if want else ():
                visit.part(
                    f"triples {name} {label}", 20,
                    lambda s=name, n=number, t=temperature, w=want: _same_law(
                        visit.fleet[s], prompts[n], t, w),
                )  # fmt: skip


def steps(visit: Any, folder: Path) -> None:
    """What a step does on the host and what it waits for: DFLASH beside DDTREE, few servers."""
    models = models_of(visit, folder)
    prompts = prompts_of(folder)
    pair = list(specs(models, "pair", (7, 8)).values())
    visit.part("gpu", 20, lambda: parts.gpu(visit))
    visit.fleet.start(*pair)
    where = None if visit.cpu else visit.part("widen", 100, lambda: str(widened(visit, models)))
    wide = list(specs(Path(where), "wide", (7,)).values())[1:] if where else []
    visit.fleet.start(*wide)
    names = visit.ready(*(s.name for s in (*pair, *wide)), by=visit.now + 120)
    if "pair-ar" in names:
        visit.part("reference", 40, lambda: parts.kept(
            visit, proofs.reference(visit.fleet["pair-ar"], prompts[:48], 96, 8)))  # fmt: skip
        for name in [n for n in names if n.startswith("pair")]:
            visit.part(
                f"greedy {name}", 25, lambda n=name: proofs.lossless(
                    visit.fleet[n], visit.kept, prompts[:48], 96, 8),
            )  # fmt: skip
    visit.fleet.end_all({"pair-ar"} & set(names))
    speculate = [n for n in names if n != "pair-ar"]
    for name in speculate:
        server = visit.fleet[name]
        visit.part(f"warm {name}", 20, lambda s=server: table.measure(s, prompts, 16, 1)["wall_s"])
    found: list[dict[str, Any]] = []
    for turn in range(1 if visit.cpu else STEP_ROUNDS):
        at = turn % len(speculate)
        for name in speculate[at:] + speculate[:at]:
            rows = visit.part(
                f"step {name} {turn}", 20,
                lambda n=name: table.parts(visit.fleet[n], prompts, 64, switch="step"),
            )  # fmt: skip
            visit.results.pop(f"step {name} {turn}", None)
            found += [{**row, "round": turn} for row in rows or []]
    visit.put("steps", found)
    for name in speculate:
        for level, stacks in ((1, False), (1, True), (16, False)):
            visit.part(
                f"profile {name} at {level}{' with stacks' if stacks else ''}", 40,
                lambda n=name, c=level, s=stacks: step_profile.profiled(
                    visit.fleet[n], prompts, c, stacks=s),
            )  # fmt: skip


def two(visit: Any, folder: Path) -> None:
    """Two GPUs, tensor parallelism: greedy answers, and the same trees on both ranks."""
    models = models_of(visit, folder)
    prompts = prompts_of(folder)[:48]
    # The kernel package that travels has no all-reduce of its own for this torch.
    both = () if visit.cpu else ("--tp-size", "2", "--disable-custom-all-reduce")
    named = list(specs(models, "tp2", (8,)).values())
    visit.part("gpu", 20, lambda: parts.gpu(visit))
    visit.fleet.start(*(
        replace(s, flags=both, env={"DDTREE_PROBE_TREES": "1"}) for s in named))  # fmt: skip
    names = visit.ready(*(s.name for s in named), by=visit.limit - 40)
    fleet = visit.fleet
    if "tp2-ar" not in names:
        raise visit.stop("the server without speculation is not up, and all are held against it")
    visit.part("reference", 40, lambda: parts.kept(
        visit, proofs.reference(fleet["tp2-ar"], prompts, 96, 8)))  # fmt: skip
    for name in names:
        visit.part(
            f"greedy {name}", 25,
            lambda n=name: proofs.lossless(fleet[n], visit.kept, prompts, 96, 8),
        )  # fmt: skip
    if "tp2-ddtree8" in names:
        visit.part("trees", 10, lambda: proofs.same_trees(fleet["tp2-ddtree8"]))
    servers = {n: fleet[n] for n in names}
    visit.part(
        "sampled T=1.0", 40,
        lambda: proofs.sampled(servers, fleet["tp2-ar"], prompts, 1.0, 48),
    )  # fmt: skip


def _same_law(
    server: Any, prompt: list[int], temperature: float, wanted: dict[str, int]
) -> dict[str, Any]:
    seen = proofs.joint(server, prompt, temperature, sum(wanted.values()))
    p = two_samples.chi_square_p(Counter(wanted), seen)
    return {"samples": sum(seen.values()), "outcomes": len(seen), "p": round(p, 5)}


def _until(done: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.5)


def _has(file: Path, key: str) -> bool:
    return file.exists() and f'"{key}"' in file.read_text()


def _kernels_done(visit: Any, checks: subprocess.Popen[bytes]) -> dict[str, Any]:
    try:
        checks.wait(max(1, min(60, visit.left - 200)))
    except subprocess.TimeoutExpired:
        checks.kill()
    found = json.loads((visit.out / "kernels.json").read_text())
    return {k: ("error" in v if isinstance(v, dict) else len(v)) for k, v in found.items()}


PLANS: dict[str, Callable[[Any, Path], None]] = {
    "first": first, "second": second, "steps": steps, "two": two,
}  # fmt: skip
