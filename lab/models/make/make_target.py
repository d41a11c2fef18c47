"""Make a tiny target: tokenizer, weights, config. Grouped queries, or latent attention (MLA).

    python lab/models/make/make_target.py --out lab/models/tiny-qwen3
    python lab/models/make/make_target.py --mla --steps 900 --out lab/models/tiny-mla
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import corpus
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE whose first ids are the special tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        mask_token="<|mask|>",
        model_max_length=2048,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, *, mla: bool) -> PreTrainedModel:
    """Random weights: 4 layers, hidden size 64.

    Latent attention turns its positions as Kimi K2 and DeepSeek do (YaRN), and no two of its
    widths are equal, so that one read for another does not fit. Every layer is dense; SGLang asks
    of the layer after the last one too whether it has experts.
    """
    common = {
        "vocab_size": 1024,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if not mla:
        grouped = {"num_key_value_heads": 2, "head_dim": 16, "rope_theta": 10000.0}
        config = Qwen3Config(**common, **grouped, intermediate_size=128)
        return Qwen3ForCausalLM(config).float()
    latent = {
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16,
        "v_head_dim": 20,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    }
    dense = {
        "first_k_dense_replace": 5,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 96,
        "num_nextn_predict_layers": 0,
    }
    config = DeepseekV3Config(
        **common, **latent, **dense, intermediate_size=96, num_key_value_heads=4
    )
    return DeepseekV3ForCausalLM(config).float()


def batch(
    ids: torch.Tensor, rows: int, length: int, user: list[int], assistant: list[int]
) -> torch.Tensor:
    """Random slices of the text; a quarter of the rows are cut in two by the chat template.

    The chat rows only keep the template's tokens from being untrained noise.
    """
    out = []
    for _ in range(rows):
        start = int(torch.randint(0, len(ids) - length, (1,)))
        row = ids[start : start + length]
        if torch.rand(1) < 0.25:
            cut = int(torch.randint(4, length // 2, (1,)))
            pieces = [torch.tensor(user), row[:cut], torch.tensor(assistant), row[cut:]]
            row = torch.cat(pieces)[:length]
        out.append(row)
    return torch.stack(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mla", action="store_true", help="latent attention, as DeepSeek's")
    parser.add_argument("--steps", type=int, default=1900)
    parser.add_argument("--rows", type=int, default=9)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)

    texts = corpus.read(corpus.TRAIN)
    tokenizer = make_tokenizer(texts, 1020)
    model = make_model(tokenizer, mla=args.mla).train()
    ids = torch.tensor(tokenizer("\n".join(texts)).input_ids)
    held = torch.tensor(tokenizer("\n".join(corpus.read(corpus.HELD_OUT))).input_ids)
    user = tokenizer("<|im_start|>user\n").input_ids
    assistant = tokenizer("<|im_end|>\n<|im_start|>assistant\n").input_ids
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(tokenizer)} tokens in the vocabulary, {len(ids)} in the text, {parameters=}")
    print(f"corpus sha256 {corpus.fingerprint(texts)}")

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(1.0, (s + 1) / 50) * (0.02 + 0.49 * (1 + math.cos(math.pi * s / args.steps))),
    )
    began = time.monotonic()
    for step in range(args.steps):
        rows = batch(ids, args.rows, args.length, user, assistant)
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == args.steps - 1:
            print(f"{step=} loss={loss.item():.3f} {time.monotonic() - began:.1f}s", flush=True)

    model.eval()
    with torch.no_grad():
        rows = held[: len(held) // args.length * args.length].view(-1, args.length)
        print(f"loss on held-out modules {model(input_ids=rows, labels=rows).loss.item():.3f}")
    model.to(torch.bfloat16).save_pretrained(args.out)
    (args.out / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
