"""Make the DFlash drafter of the tiny target, in the checkpoint layout SGLang 0.5.23 reads.

    python lab/models/make/make_draft.py --target lab/models/tiny-qwen3 \\
        --out lab/models/tiny-qwen3-dflash
    python lab/models/make/make_draft.py --target lab/models/tiny-mla --intermediate 128 \\
        --steps 2000 --out lab/models/tiny-mla-dflash

The drafter has no embedding and no head: it borrows the target's. One pass fills a block:
the last accepted token and `block_size - 1` mask tokens look at the target's hidden states
of everything before the block, and at each other. It is trained on the target's own greedy
answers, so that every label is the token the target would really have chosen there.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import corpus
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen3Config

ANSWER = 64


def draft_config(target: dict[str, Any], args: argparse.Namespace, mask_id: int) -> dict[str, Any]:
    """The target's config with the fields of a DFlash drafter laid over it."""
    if max(args.target_layers) >= target["num_hidden_layers"] - 1:
        raise SystemExit("target layers must be below num_hidden_layers - 1")
    return target | {
        "architectures": ["DFlashDraftModel"],
        "intermediate_size": args.intermediate,
        "num_hidden_layers": args.layers,
        "layer_types": ["full_attention"] * args.layers,
        "max_window_layers": args.layers,
        "num_target_layers": target["num_hidden_layers"],
        "block_size": args.block,
        "dflash_config": {
            "mask_token_id": mask_id,
            "mask_token": "<|mask|>",
            "target_layer_ids": args.target_layers,
            "block_size": args.block,
        },
    }


def grouped_queries(target: dict[str, Any]) -> dict[str, Any]:
    """A Qwen3 of the target's size: a drafter has grouped queries, whatever its target has."""
    if target["model_type"] == "qwen3":
        return target
    same = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps",
        "max_position_embeddings", "tie_word_embeddings", "dtype",
        "bos_token_id", "eos_token_id", "pad_token_id",
    )  # fmt: skip
    fields = {k: target[k] for k in same}
    config = Qwen3Config(**fields, num_key_value_heads=2, head_dim=16, rope_theta=10000.0)
    return config.to_diff_dict() | fields


class Drafter:
    """The drafter's forward pass over named tensors, several blocks of one text at a time."""

    def __init__(self, config: dict[str, Any], embed: torch.Tensor, head: torch.Tensor) -> None:
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head_dim: int = config["head_dim"]
        self.block: int = config["block_size"]
        self.mask_id: int = config["dflash_config"]["mask_token_id"]
        self.eps: float = config["rms_norm_eps"]
        self.embed, self.head = embed, head
        theta = config["rope_parameters"]["rope_theta"]
        self.inverse = theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        features = len(config["dflash_config"]["target_layer_ids"]) * hidden
        self.w: dict[str, torch.Tensor] = {
            "fc.weight": self._matrix(hidden, features),
            "hidden_norm.weight": torch.ones(hidden),
            "norm.weight": torch.ones(hidden),
        }
        for i in range(self.layers):
            p, q, kv = f"layers.{i}.", self.heads * self.head_dim, self.kv_heads * self.head_dim
            self.w |= {
                p + "self_attn.q_proj.weight": self._matrix(q, hidden),
                p + "self_attn.k_proj.weight": self._matrix(kv, hidden),
                p + "self_attn.v_proj.weight": self._matrix(kv, hidden),
                p + "self_attn.o_proj.weight": self._matrix(hidden, q),
                p + "self_attn.q_norm.weight": torch.ones(self.head_dim),
                p + "self_attn.k_norm.weight": torch.ones(self.head_dim),
                p + "input_layernorm.weight": torch.ones(hidden),
                p + "post_attention_layernorm.weight": torch.ones(hidden),
                p + "mlp.gate_proj.weight": self._matrix(inner, hidden),
                p + "mlp.up_proj.weight": self._matrix(inner, hidden),
                p + "mlp.down_proj.weight": self._matrix(hidden, inner),
            }
        for tensor in self.w.values():
            tensor.requires_grad_()

    @staticmethod
    def _matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns) * 0.6 / math.sqrt(columns)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.w[name + ".weight"], self.eps)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.w[name + ".weight"])

    def _rope(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angle = positions[..., None].float() * self.inverse
        cos, sin = angle.cos().unsqueeze(-2), angle.sin().unsqueeze(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def _heads(self, x: torch.Tensor, name: str, heads: int) -> torch.Tensor:
        return self._linear(x, name).view(*x.shape[:2], heads, self.head_dim)

    def __call__(
        self, features: torch.Tensor, ids: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """Logits [N, A, block, vocabulary] for A blocks that begin at `starts` [N, A].

        `features` [N, L, ids * hidden] are the target's hidden states. A block sees the
        features before its start and the whole of itself, never another block.
        """
        n, length, _ = features.shape
        count = starts.shape[1]
        size = count * self.block
        tokens = torch.full((n, count, self.block), self.mask_id)
        tokens[:, :, 0] = ids.gather(1, starts)
        offsets = torch.arange(self.block)
        at_block = (starts[:, :, None] + offsets).view(n, size)
        at_context = torch.arange(length).expand(n, length)
        first = starts.repeat_interleave(self.block, 1)
        owner = torch.arange(count).repeat_interleave(self.block)
        sees_context = at_context[:, None, :] < first[:, :, None]
        sees_block = (owner[:, None] == owner[None, :]).expand(n, size, size)
        mask = torch.cat([sees_context, sees_block], -1)[:, None]

        context = self._norm(self._linear(features, "fc"), "hidden_norm")
        x = self.embed[tokens.view(n, size)]
        for i in range(self.layers):
            p, a = f"layers.{i}.", f"layers.{i}.self_attn."
            h = self._norm(x, p + "input_layernorm")
            q = self._norm(self._heads(h, a + "q_proj", self.heads), a + "q_norm")
            keys, values = [], []
            for source, positions in ((context, at_context), (h, at_block)):
                k = self._norm(self._heads(source, a + "k_proj", self.kv_heads), a + "k_norm")
                keys.append(self._rope(k, positions))
                values.append(self._heads(source, a + "v_proj", self.kv_heads))
            out = F.scaled_dot_product_attention(
                self._rope(q, at_block).transpose(1, 2),
                torch.cat(keys, 1).transpose(1, 2),
                torch.cat(values, 1).transpose(1, 2),
                attn_mask=mask,
                enable_gqa=True,
            )
            x = x + self._linear(out.transpose(1, 2).reshape(n, size, -1), a + "o_proj")
            h = self._norm(x, p + "post_attention_layernorm")
            gate = F.silu(self._linear(h, p + "mlp.gate_proj"))
            x = x + self._linear(gate * self._linear(h, p + "mlp.up_proj"), p + "mlp.down_proj")
        logits = F.linear(self._norm(x, "norm"), self.head)
        return logits.view(n, count, self.block, -1)


@torch.no_grad()
def answers(model: PreTrainedModel, prompts: torch.Tensor) -> torch.Tensor:
    """The prompts [N, P] with the target's `ANSWER` greedy tokens after them."""
    return model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        max_new_tokens=ANSWER,
    )


def prompts_of(ids: torch.Tensor, count: int, length: int, chat: list[list[int]]) -> torch.Tensor:
    """Random slices of the text; every eighth is wrapped in the chat template."""
    user, assistant = (torch.tensor(x) for x in chat)
    rows = []
    for n in range(count):
        wrap = n % 8 == 7 and length >= 24
        need = length - (len(user) + len(assistant)) * wrap
        start = int(torch.randint(0, len(ids) - need, (1,)))
        row = ids[start : start + need]
        rows.append(torch.cat([user, row, assistant]) if wrap else row)
    return torch.stack(rows)


@torch.no_grad()
def features_of(model: PreTrainedModel, ids: torch.Tensor, layers: list[int]) -> torch.Tensor:
    """What SGLang captures for the drafter: the output of each named target layer."""
    hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    return torch.cat([hidden[layer + 1] for layer in layers], -1)


@torch.no_grad()
def accept_length(
    drafter: Drafter, model: PreTrainedModel, rows: torch.Tensor, prompt: int, layers: list[int]
) -> float:
    """Tokens per verification, walking each answer the way the engine does.

    A verification yields the accepted drafts and one token of the target's own.
    """
    starts = torch.arange(prompt, rows.shape[1] - drafter.block).expand(len(rows), -1)
    guesses = drafter(features_of(model, rows, layers), rows, starts)[:, :, 1:].argmax(-1)
    truth = rows.unfold(1, drafter.block, 1)[:, prompt : prompt + starts.shape[1], 1:]
    accepted = (guesses == truth).long().cumprod(-1).sum(-1)
    tokens = verifications = 0
    for row in accepted.tolist():
        at = 0
        while at < len(row):
            tokens += row[at] + 1
            at += row[at] + 1
            verifications += 1
    return tokens / verifications


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--intermediate", type=int, default=256)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--target-layers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--answers", type=int, default=512, help="greedy answers per prompt length")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=8, help="blocks trained per row")
    parser.add_argument("--lr", type=float, default=1.5e-2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    model = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # always ANSWER tokens
    model.requires_grad_(False)
    target = grouped_queries(json.loads((args.target / "config.json").read_text()))
    config = draft_config(target, args, tokenizer.mask_token_id)
    layers = args.target_layers
    drafter = Drafter(config, model.get_input_embeddings().weight, model.lm_head.weight)

    train = torch.tensor(tokenizer("\n".join(corpus.read(corpus.TRAIN))).input_ids)
    held = torch.tensor(tokenizer("\n".join(corpus.read(corpus.HELD_OUT))).input_ids)
    chat = [
        tokenizer(t).input_ids
        for t in ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
    ]
    began = time.monotonic()
    lengths = (12, 24, 48, 96, 192)
    data = []
    for length in lengths:
        prompts = prompts_of(train, args.answers, length, chat)
        rows = torch.cat([answers(model, p) for p in prompts.split(256)])
        data.append((length, rows, features_of(model, rows, layers)))
    print(f"{args.answers * len(lengths)} answers, {time.monotonic() - began:.1f}s", flush=True)
    checks = {
        "fresh slices of training modules": answers(model, prompts_of(train, 64, 40, chat)),
        "held-out modules": answers(model, prompts_of(held, 64, 40, chat)),
    }

    optimizer = torch.optim.AdamW(
        list(drafter.w.values()), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 50) * (1.02 - s / args.steps)
    )
    weight = 0.7 ** torch.arange(args.block - 1).float()
    began = time.monotonic()
    for step in range(args.steps):
        length, pool, features = data[int(torch.randint(0, len(data), (1,)))]
        chosen = torch.randint(0, len(pool), (args.rows,))
        rows = pool[chosen]
        last = rows.shape[1] - args.block + 1
        starts = torch.randint(length, last, (args.rows, args.blocks))
        logits = drafter(features[chosen], rows, starts)[:, :, 1:]
        where = starts[:, :, None] + torch.arange(1, args.block)
        labels = rows.gather(1, where.view(args.rows, -1)).view_as(where)
        loss = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
        loss = (loss.view(-1, args.block - 1) * weight).sum(-1).mean() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(drafter.w.values()), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == args.steps - 1:
            print(f"{step=} loss={loss.item():.3f} {time.monotonic() - began:.1f}s", flush=True)

    tensors = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in drafter.w.items()}
    drafter.w = {k: v.float() for k, v in tensors.items()}  # measure what is written
    for name, rows in checks.items():
        value = accept_length(drafter, model, rows, 40, layers)
        print(f"accept length (at most {args.block}), {name}: {value:.2f}")
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    (args.out / "model.safetensors").chmod(0o644)
    (args.out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
