"""The visit `mla`: DDTREE on a target with latent attention, trained in the visit if need be.

Training is three minutes of one Python process, and a server's start is mostly compilers. So
servers of an untrained pair of the same shapes start meanwhile: what they compile lies on disk when
the trained pair's servers ask for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import serve_parts as parts
import serve_plans as plans
import serve_proofs as proofs
from serve_fleet import Spec

#: The untrained pair's servers are ended by this second, and training has failed after that one.
WARM_BY, TRAINED_BY = 200, 270
#: How long the trained pair's servers may take to start.
START_S = 150
#: Answers that are compared with the library's own forward pass, and that come from the cache.
COMPARED, CACHED = 24, 48
#: From 8 requests on SGLang decodes MLA with a kernel whose programs wait for each other, tuned for
#: another vendor's machines; in float32 it does not fit. Verify passes never use it, so only the
#: server without speculation would, and that is the reference.
ENV = {"SGLANG_DISABLE_LEAN_ATTENTION": "1"}


def mla(visit: Any, folder: Path) -> None:
    """Greedy answers, what the library says of them, graphs and masks; the same in float32."""
    visit.part("gpu", 20, lambda: parts.gpu(visit))
    home = folder / "mla"
    if not (home / "pair.tar").exists():
        home = trained(visit)
    models = plans.unpacked(home)
    prompts = plans.prompts_of(home)
    tokens = 24 if visit.cpu else 128
    pair = specs(models, "pair", (8,) if visit.cpu else plans.BUDGETS)
    visit.fleet.start(*pair)
    names = visit.ready(*(s.name for s in pair), by=visit.now + START_S, vital=False)
    if "pair-ar" not in names:
        raise visit.stop("the server without speculation is not up, and all are held against it")
    exact = () if visit.cpu else floats(models, "f32", ("ar", "dflash", "ddtree8", "ddtree15"))
    visit.fleet.start(*exact)  # they compile while the others are proved: nothing is timed here
    if parts.greedy(visit, names, prompts, tokens, (1, 2) if visit.cpu else (1, 8)):
        visit.part("agreement", 40, lambda: agreement(visit, models, prompts))
        parts.detect(visit, names, prompts)
        cached(visit, names, "pair-ddtree8", prompts, tokens)
    visit.pack_caches()
    ready = visit.ready(*(s.name for s in exact), by=visit.now + 20, vital=False)
    parts.floats(visit, ready, prompts[:CACHED], 96)
    if "f32-ar" in ready:
        cached(visit, ready, "f32-ddtree8", prompts, 96)
    parts.graphs(visit, names, prompts, tokens)


def specs(models: Path, prefix: str, budgets: tuple[int, ...]) -> list[Spec]:
    return [replace(s, env=ENV) for s in plans.specs(models, prefix, budgets).values()]


def floats(models: Path, prefix: str, names: tuple[str, ...]) -> list[Spec]:
    """Those of the float32 servers whose names end so."""
    return [
        replace(s, name=f"{prefix}-{s.name.removeprefix('f32-')}", env={**s.env, **ENV})
        for s in plans.float_specs(models)
        if s.name.removeprefix("f32-") in names
    ]


def cached(visit: Any, ready: list[str], name: str, prompts: list[list[int]], tokens: int) -> None:
    """Answers over rows of the cache that a tree wrote and the worker moved."""
    wanted = visit.kept[:CACHED]
    if name in ready and wanted:
        visit.part(f"cached {name}", 30, lambda: proofs.pages(
            visit.fleet[name], wanted, prompts[: len(wanted)], tokens))  # fmt: skip


def trained(visit: Any) -> Path:
    """The folder of a pair trained here, which also goes to the visit's results."""
    home: Path = visit.scratch / "mla"
    training = start(visit, home, "train-mla.log")
    try:
        warm = visit.part("untrained pair", 60, lambda: untrained(visit))
        if warm is not None:
            models = plans.unpacked(Path(warm))
            servers = specs(models, "warm", (8,))
            if not visit.cpu:
                servers += floats(models, "warm-f32", ("ar", "ddtree8"))
            visit.fleet.start(*servers)
            visit.ready(*(s.name for s in servers), by=WARM_BY, vital=False)
            visit.fleet.end_all({s.name for s in servers})
        if visit.part("trained", 90, lambda: finished(visit, training, home)) is None:
            raise visit.stop("there is no trained pair: see train-mla.log")
    finally:
        if training.poll() is None:
            training.kill()
    return home


def start(visit: Any, out: Path, log: str, *flags: str) -> subprocess.Popen[bytes]:
    """`train_pair.py` as `visit.sh train` runs it: with the machine's own libraries."""
    words = [sys.executable, str(plans.HERE / "train_pair.py"), "--out", str(out), "--mla", *flags]
    with (visit.out / log).open("wb") as file:
        return subprocess.Popen(
            [*words, *(["--tiny"] if visit.cpu else [])], stdout=file, stderr=subprocess.STDOUT,
            env=_own_env(),
        )  # fmt: skip


def untrained(visit: Any) -> str:
    out: Path = visit.scratch / "mla-untrained"
    _wait(visit, start(visit, out, "untrained-mla.log", "--untrained"), "untrained-mla.log", 90)
    return str(out)


def finished(visit: Any, training: subprocess.Popen[bytes], home: Path) -> dict[str, Any]:
    """Wait for the pair, and bring it home: a later visit need not train."""
    _wait(visit, training, "train-mla.log", TRAINED_BY - visit.now)
    for name in ("pair.tar", "pair.json", "prompts.json"):
        stem, suffix = name.split(".")
        shutil.copy(home / name, visit.out / f"{stem}-mla.{suffix}")
    report = json.loads((home / "pair.json").read_text())
    kept = ("loss_train", "loss_held_out", "sha256", "bytes", "seconds")
    drafted = report["commit"]["held_out, T=0.0"]["tokens_per_step"]
    return {**{k: report[k] for k in kept}, "tokens_per_step": drafted}


def agreement(visit: Any, models: Path, prompts: list[list[int]]) -> dict[str, Any]:
    """What the library's own forward pass says of the reference's answers."""
    rows = [
        {"prompt": p, "said": a["output_ids"],
         "logprobs": [x[0] for x in a["meta_info"]["output_token_logprobs"]]}
        for p, a in zip(prompts[:COMPARED], visit.kept, strict=False)
    ]  # fmt: skip
    file = visit.scratch / "answers.json"
    file.write_text(json.dumps(rows))
    words = [sys.executable, str(plans.HERE / "pair_agree.py"), str(models / "target"), str(file)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=90, check=False, env=_own_env()
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-800:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _own_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def _wait(visit: Any, process: subprocess.Popen[bytes], log: str, seconds: float) -> None:
    try:
        code = process.wait(max(1, min(seconds, visit.left - 30)))
    except subprocess.TimeoutExpired:
        process.kill()
        code = "too late"
    if code:
        tail = (visit.out / log).read_text(errors="replace")[-1500:]
        raise RuntimeError(f"train_pair.py: {code}\n{tail}")
