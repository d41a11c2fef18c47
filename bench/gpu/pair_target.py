"""The target of a trained pair: Qwen3's grouped queries or DeepSeek-V3's latent attention, MLA."""

from __future__ import annotations

from dataclasses import dataclass
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


def qwen3(plan: Any) -> Qwen3Config:
    """The target's own configuration, and what the drafter's is made of, which is never MLA."""
    return Qwen3Config(**_common(plan), num_key_value_heads=plan.kv_heads, head_dim=plan.head_dim)


def deepseek_v3(plan: Any) -> DeepseekV3Config:
    """Every layer dense. SGLang asks of the layer after the last one too whether it has experts."""
    latent = plan.latent
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


def _common(plan: Any) -> dict[str, Any]:
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


def model(plan: Any) -> PreTrainedModel:
    if plan.latent is None:
        return Qwen3ForCausalLM(qwen3(plan))
    return DeepseekV3ForCausalLM(deepseek_v3(plan))


def fuse_norms() -> None:
    """The library's own norms cast to float32 and back, in five passes."""

    def fused(self: Any, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.variance_epsilon)

    Qwen3RMSNorm.forward = fused
    DeepseekV3RMSNorm.forward = fused
