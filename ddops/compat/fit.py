"""Do weights and KV cache fit the GPUs? An estimate that says what it leaves out.

Weights are split by tensor and pipeline parallel alike; a quantised file is as big in memory as on
disk. Activations, CUDA graphs and communication buffers are not counted: they need room on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Split:
    """How one launch is cut: tensor and pipeline parallel sizes, bytes of a KV element."""

    tensor: int
    pipeline: int
    kv_bytes: int


def kv_bytes_per_token(sizes: Mapping[str, int], split: Split) -> int | None:
    """Bytes of KV cache one token takes on one GPU; None when config.json does not say.

    MLA keeps one latent for all heads, which tensor parallel does not cut; GQA keeps heads, cut
    down to one a GPU.
    """
    layers = sizes.get("num_hidden_layers")
    if not layers:
        return None
    layers = -(-layers // split.pipeline)
    latent, rope = sizes.get("kv_lora_rank"), sizes.get("qk_rope_head_dim")
    if latent and rope:
        return layers * (latent + rope) * split.kv_bytes
    heads = sizes.get("num_key_value_heads") or sizes.get("num_attention_heads")
    width = sizes.get("head_dim")
    if width is None and sizes.get("hidden_size") and sizes.get("num_attention_heads"):
        width = sizes["hidden_size"] // sizes["num_attention_heads"]
    if not heads or not width:
        return None
    return 2 * layers * -(-heads // split.tensor) * width * split.kv_bytes


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes on one GPU. `tokens` is how many the rest holds, None when that is not known."""

    weights: int
    memory: int
    tokens: int | None

    @property
    def room(self) -> int:
        return self.memory - self.weights

    @property
    def words(self) -> str:
        kv = "" if self.tokens is None else f", {self.tokens:,} tokens of KV cache"
        return (
            f"{self.weights / GIB:.1f} GiB of weights in {self.memory / GIB:.1f} GiB a GPU leave"
            f" {self.room / GIB:.1f} GiB{kv}; activations and graphs come on top"
        )


def fit(
    weights: int, draft: int, memory_mib: int, share: float, sizes: Mapping[str, int], split: Split
) -> Fit:
    """The target cut by tensor and pipeline, its drafter by tensor; `share` is of the memory."""
    each = weights // (split.tensor * split.pipeline) + draft // split.tensor
    memory = int(memory_mib * MIB * share)
    one = kv_bytes_per_token(sizes, split)
    return Fit(each, memory, max(memory - each, 0) // one if one else None)
