"""The sizes of a trained pair, and its target: grouped queries, or latent attention (MLA)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm


@dataclass(frozen=True, slots=True)
class Latent:
    """Widths of latent attention; a token's cache row has `rank + rope_dim` numbers."""

    query_rank: int = 128
    rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    value_dim: int = 128


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and time limits; `tiny()` is for trying the script on a CPU.

    With `latent` the target has DeepSeek's attention; the drafter keeps grouped queries.
    """

    megabytes: float = 60
    held_out: int = 50
    vocabulary: int = 4096
    hidden: int = 256
    inner: int = 768
    layers: int = 10
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    latent: Latent | None = None
    rows: int = 128
    length: int = 512
    target_s: float = 90
    answers_s: float = 30
    answer_rows: int = 4096
    answer: int = 128
    prompts: tuple[int, ...] = (32, 64, 96, 128)
    draft_s: float = 120
    draft_layers: int = 3
    draft_rows: int = 128
    draft_blocks: int = 12
    block: int = 8
    captured: tuple[int, ...] = (1, 3, 5, 7, 8)
    lr: float = 2e-3
    draft_lr: float = 1.5e-3
    check_rows: int = 256

    def mla(self) -> Plan:
        """Heads of DeepSeek-V3's shape (576 in the cache, 192 and 128 in prefill), few of them.

        SGLang has a kernel of its own for widths that are a multiple of 256: 320 is none.
        """
        return replace(
            self, hidden=320, layers=6, latent=Latent(), target_s=60, answers_s=15,
            answer_rows=2048, draft_s=70, captured=(0, 1, 2, 3, 4), check_rows=128,
        )  # fmt: skip

    def tiny(self) -> Plan:
        small = self.latent and Latent(
            query_rank=32, rank=32, nope_dim=16, rope_dim=16, value_dim=16
        )
        return replace(
            self.untrained(), vocabulary=1024, hidden=64, inner=128, layers=4, head_dim=16,
            latent=small, target_s=20, answers_s=6, answer_rows=48, draft_s=20, draft_layers=2,
            captured=(0, 1, 2), lr=5e-3, draft_lr=1e-2, check_rows=16,
        )  # fmt: skip

    def untrained(self) -> Plan:
        """The same shapes after one step each: what an engine compiles for them."""
        return replace(
            self, megabytes=0.6, held_out=5, rows=8, length=128, target_s=0.01, answers_s=0.01,
            answer_rows=16, answer=32, prompts=(16, 24), draft_s=0.01, draft_rows=16,
            draft_blocks=4, check_rows=8,
        )  # fmt: skip


def qwen3(plan: Plan) -> Qwen3Config:
    """The target's own configuration, and what the drafter's is made of, which is never MLA."""
    return Qwen3Config(**_common(plan), num_key_value_heads=plan.kv_heads, head_dim=plan.head_dim)


def deepseek_v3(plan: Plan) -> DeepseekV3Config:
    """Every layer dense. SGLang asks of the layer after the last one too whether it has experts."""
    latent = plan.latent or Latent()
    return DeepseekV3Config(
        **_common(plan),
        num_key_value_heads=plan.heads,
        q_lora_rank=latent.query_rank,
        kv_lora_rank=latent.rank,
        qk_nope_head_dim=latent.nope_dim,
        qk_rope_head_dim=latent.rope_dim,
        v_head_dim=latent.value_dim,
        first_k_dense_replace=plan.layers + 1,
        moe_layer_freq=1,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=plan.inner,
        num_mtp_layers=0,
    )


def _common(plan: Plan) -> dict[str, Any]:
    return {
        "vocab_size": plan.vocabulary,
        "hidden_size": plan.hidden,
        "intermediate_size": plan.inner,
        "num_hidden_layers": plan.layers,
        "num_attention_heads": plan.heads,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": None,
    }


def model(plan: Plan) -> PreTrainedModel:
    if plan.latent is None:
        return Qwen3ForCausalLM(qwen3(plan))
    return DeepseekV3ForCausalLM(deepseek_v3(plan))


def fuse_norms() -> None:
    """The library's own norms cast to float32 and back, in five passes."""

    def fused(self: Any, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.variance_epsilon)

    Qwen3RMSNorm.forward = fused
    DeepseekV3RMSNorm.forward = fused
