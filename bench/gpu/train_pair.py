"""Train a target and its DFlash drafter on one GPU, from text that lies on the machine.

    python bench/gpu/train_pair.py --out OUT            # about 6 minutes on one H200
    python bench/gpu/train_pair.py --out OUT --mla      # a target with latent attention, 4 minutes
    python bench/gpu/train_pair.py --out OUT --mla --untrained    # its shapes alone
    python bench/gpu/train_pair.py --out OUT --tiny     # a minute on a CPU: only that it runs

Writes OUT/pair.tar (see pair_pack.py), OUT/pair.json (losses, commit lengths) and OUT/prompts.json
(token ids cut from files that no training step saw). Training stops by the clock, so two runs give
two pairs: what was measured with a pair belongs to its `sha256`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pair_corpus
import pair_eval
import pair_pack
import pair_plan
import torch
import torch.nn.functional as F
from pair_plan import Plan
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab/models/make"))
from make_draft import Drafter, draft_config


class PairDrafter(Drafter):
    """The lab's drafter with norms that run fused under autocast."""

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.w[name + ".weight"].to(x.dtype), self.eps)


class Clock:
    """Learning rate over a stretch of wall time: a short rise, then down to a twentieth."""

    def __init__(self, seconds: float, peak: float) -> None:
        self.began, self.seconds, self.peak, self.steps = time.monotonic(), seconds, peak, 0

    @property
    def share(self) -> float:
        return (time.monotonic() - self.began) / self.seconds

    @property
    def running(self) -> bool:
        return self.share < 1 or not self.steps

    def rate(self) -> float:
        self.steps += 1
        fall = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, self.share)))
        return self.peak * fall * min(1.0, self.steps / 100)


def step(
    optimizer: torch.optim.Optimizer, weights: list[Tensor], loss: Tensor, rate: float
) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def train_target(plan: Plan, stream: Tensor, say: Any) -> PreTrainedModel:
    """Plain next-token training; the weights end on the int8 grid, in bf16."""
    model = pair_plan.model(plan).to(stream.device).train()
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), weight_decay=0.05)
    clock = Clock(plan.target_s, plan.lr)
    span = torch.arange(plan.length + 1, device=stream.device)
    while clock.running:
        rate = clock.rate()
        at = torch.randint(0, len(stream) - plan.length - 1, (plan.rows, 1), device=stream.device)
        rows = stream[at + span].long()
        with torch.autocast(stream.device.type, torch.bfloat16):
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        step(optimizer, weights, loss, rate)
        if clock.steps % 200 == 1:
            say(f"target step {clock.steps} loss {loss.item():.3f}")
    say(
        f"target step {clock.steps} loss {loss.item():.3f}, "
        f"{clock.steps * plan.rows * plan.length} tokens"
    )
    rotary = model.model.rotary_emb
    frequencies = rotary.inv_freq  # in bfloat16 they would be other rotations than a server's
    model = model.to(torch.bfloat16).eval().requires_grad_(False)
    rotary.inv_freq = frequencies
    for weight in model.parameters():
        weight.copy_(pair_pack.on_grid(weight.cpu()).to(weight.device))
    return model


@torch.no_grad()
def loss_on(model: PreTrainedModel, stream: Tensor, length: int) -> float:
    rows = stream[: len(stream) // length * length].view(-1, length)[:64].long()
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float()
    return float(F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))


@torch.no_grad()
def answer(model: PreTrainedModel, prompts: Tensor, count: int, temperature: float) -> Tensor:
    """The prompts with the target's own continuation, greedy at temperature 0."""
    model.generation_config.eos_token_id = None
    how = (
        {"do_sample": False}
        if temperature == 0
        else {"do_sample": True, "temperature": temperature}
    )
    return model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        min_new_tokens=count,
        max_new_tokens=count,
        top_k=None if temperature == 0 else 0,
        top_p=None if temperature == 0 else 1.0,
        **{k: v for k, v in how.items() if k == "do_sample" or temperature > 0},
    )


def slices(stream: Tensor, count: int, length: int) -> Tensor:
    at = torch.randint(0, len(stream) - length, (count, 1), device=stream.device)
    return stream[at + torch.arange(length, device=stream.device)].long()


def answers(
    model: PreTrainedModel, plan: Plan, stream: Tensor, say: Any
) -> list[tuple[int, Tensor]]:
    """Prompt length and rows; two thirds greedy, one third sampled at temperature 1."""
    began, pools, n = time.monotonic(), [], 0
    while time.monotonic() - began < plan.answers_s or n < len(plan.prompts):
        length = plan.prompts[n % len(plan.prompts)]
        prompts = slices(stream, plan.answer_rows, length)
        pools.append((length, answer(model, prompts, plan.answer, 1.0 if n % 3 == 2 else 0.0)))
        n += 1
    say(f"{n * plan.answer_rows} answers of {plan.answer} tokens")
    return pools


def train_drafter(
    plan: Plan,
    model: PreTrainedModel,
    config: dict[str, Any],
    pools: list[tuple[int, Tensor]],
    say: Any,
) -> Drafter:
    """Blocks at random places of the answers; every label is what the target really said."""
    device = model.device
    embed = model.get_input_embeddings().weight.float()
    drafter = PairDrafter(config, embed, embed)
    weights = list(drafter.w.values())
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.98), weight_decay=0.01)
    clock = Clock(plan.draft_s, plan.draft_lr)
    fade = 0.8 ** torch.arange(plan.block - 1, device=device).float()
    while clock.running:
        rate = clock.rate()
        length, pool = pools[int(torch.randint(0, len(pools), (1,), device="cpu"))]
        rows = pool[torch.randint(0, len(pool), (plan.draft_rows,), device=device)]
        last = rows.shape[1] - plan.block + 1
        starts = torch.randint(length, last, (plan.draft_rows, plan.draft_blocks), device=device)
        with torch.autocast(device.type, torch.bfloat16):
            features = pair_eval.features_of(model, rows, list(plan.captured))
            logits = drafter(features, rows, starts)[:, :, 1:]
        where = starts[:, :, None] + torch.arange(1, plan.block, device=device)
        labels = rows.gather(1, where.flatten(1)).view_as(where)
        loss = F.cross_entropy(logits.flatten(0, 2).float(), labels.flatten(), reduction="none")
        loss = (loss.view(-1, plan.block - 1) * fade).sum(-1).mean() / fade.sum()
        step(optimizer, weights, loss, rate)
        if clock.steps % 200 == 1:
            say(f"drafter step {clock.steps} loss {loss.item():.3f}")
    say(f"drafter step {clock.steps} loss {loss.item():.3f}")
    drafter.w = {
        k: pair_pack.on_grid(v.detach().cpu()).to(device).float() for k, v in drafter.w.items()
    }
    return drafter


def write(
    plan: Plan, folder: Path, model: Any, drafter: Drafter, config: dict[str, Any], tok: Any
) -> None:
    target, draft = folder / "target", folder / "draft"
    model.generation_config.eos_token_id = 2
    model.save_pretrained(target)
    tok.save_pretrained(target)
    draft.mkdir(parents=True)
    tensors = {k: v.to(torch.bfloat16).cpu().contiguous() for k, v in drafter.w.items()}
    save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
    config = {**config, "dtype": "bfloat16"}  # none said, SGLang takes float16 and its worker dies
    (draft / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save_checked(
    plan: Plan, out: Path, model: Any, drafter: Drafter, config: dict[str, Any], tok: Any
) -> None:
    """Write OUT/pair.tar and read it back; another weight than the trained one is an error."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(plan, folder, model, drafter, config, tok)
        pair_pack.pack({"target": folder / "target", "draft": folder / "draft"}, out / "pair.tar")
        again = folder / "again"
        pair_pack.unpack(out / "pair.tar", again)
        for name in ("target", "draft"):
            a, b = (pair_pack.load_file(f / name / "model.safetensors") for f in (folder, again))
            if a.keys() != b.keys() or not all(torch.equal(a[k], b[k]) for k in a):
                raise SystemExit(f"{name}: what was packed is not what was trained")
            shutil.rmtree(again / name)


def make(plan: Plan, device: torch.device, out: Path, say: Any) -> dict[str, Any]:
    corpus = pair_corpus.read(plan.megabytes, plan.held_out)
    say(f"{len(corpus.train)} files to learn, {len(corpus.held_out)} held out")
    tok = pair_corpus.tokenizer(corpus.train, plan.vocabulary)
    train, held = (
        torch.tensor(pair_corpus.encode(tok, texts), dtype=torch.int16, device=device)
        for texts in (corpus.train, corpus.held_out)
    )
    say(f"{len(train)} tokens to learn, {len(held)} held out")
    model = train_target(plan, train, say)
    report: dict[str, Any] = {
        "plan": asdict(plan),
        "loss_train": loss_on(model, train, plan.length),
        "loss_held_out": loss_on(model, held, plan.length),
    }
    say(f"loss on text it saw {report['loss_train']:.3f}, held out {report['loss_held_out']:.3f}")
    layers = argparse.Namespace(
        target_layers=list(plan.captured), intermediate=plan.inner, layers=plan.draft_layers,
        block=plan.block,
    )  # fmt: skip
    config = draft_config(pair_plan.qwen3(plan).to_dict(), layers, tok.mask_token_id)
    pools = answers(model, plan, train, say)
    drafter = train_drafter(plan, model, config, pools, say)
    save_checked(plan, out, model, drafter, config, tok)
    report["sha256"] = hashlib.sha256((out / "pair.tar").read_bytes()).hexdigest()
    report["bytes"] = (out / "pair.tar").stat().st_size
    say(f"pair.tar {report['bytes'] / 2**20:.1f} MiB, sha256 {report['sha256'][:12]}")
    report["commit"] = {}
    length = max(plan.prompts)
    for name, stream in (("seen", train), ("held_out", held)):
        prompts = slices(stream, plan.check_rows, length)
        for temperature in (0.0, 0.6, 1.0):
            rows = answer(model, prompts, plan.answer, temperature)
            found = pair_eval.commit_lengths(model, drafter, rows, length, list(plan.captured))
            report["commit"][f"{name}, T={temperature}"] = found
            say(f"{name}, T={temperature}: {json.dumps(found['tokens_per_step'])}")
    prompts = slices(held, 96, length).tolist()
    (out / "prompts.json").write_text(json.dumps({"length": length, "token_ids": prompts}))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    parser.add_argument("--mla", action="store_true", help="a target with latent attention")
    parser.add_argument("--untrained", action="store_true", help="shapes alone, one step each")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    plan = Plan().mla() if args.mla else Plan()
    plan = plan.tiny() if args.tiny else plan
    plan = plan.untrained() if args.untrained else plan
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not (args.tiny or args.untrained):
        raise SystemExit("no GPU: this would take hours. next: --tiny")
    torch.manual_seed(args.seed)
    torch.set_default_device(device)
    pair_plan.fuse_norms()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f}s] {text}", flush=True)

    report = make(plan, device, args.out, say)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    report |= {"device": name, "torch": torch.__version__, "seconds": time.monotonic() - began}
    (args.out / "pair.json").write_text(json.dumps(report, indent=1) + "\n")
    say("done")


if __name__ == "__main__":
    main()
