"""The hooks on SGLang 0.5.23, each with what it works around. Paths are under sglang/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ddops_sglang_cpu.verify_attention import verify_attention

if TYPE_CHECKING:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.layers.rotary_embedding import RotaryEmbedding
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.models.deepseek_common.attention_forward_methods import AttnForwardMethod
    from sglang.srt.models.deepseek_v2 import DeepseekV2AttentionMLA
    from sglang.srt.models.dflash import DFlashAttention
    from sglang.srt.platforms.interface import SRTPlatform
    from sglang.srt.server_args import ServerArgs


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook: its dotted target, that one's parameters, and what upstream it is for."""

    target: str
    parameters: tuple[str, ...] | None
    kind: Literal["around", "after"]
    function: Callable[..., object]
    upstream: str


class DflashCpuPlatform:
    """The CPU platform, answering for DFLASH as an out-of-tree platform may."""

    def __init__(self, platform: SRTPlatform) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> object:
        return getattr(self._platform, name)

    def is_out_of_tree(self) -> bool:
        return True

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm == "DFLASH"

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return algorithm == "DFLASH" and backend == "torch_native"

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        return "torch_native"


def allow_dflash(original: Callable[[ServerArgs], None], server_args: ServerArgs) -> None:
    """Let DFLASH through the device gate, for this one call, and turn overlap scheduling off.

    The gate asks the platform only when it is out of tree; overlap scheduling of speculation is not
    implemented on a CPU (srt/arg_groups/speculative_hook.py:66), which the in-tree algorithms apply
    themselves.
    """
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.arg_groups.overrides import resolving_view

    if resolving_view(server_args).device != "cpu":
        original(server_args)
        return
    platform = speculative_hook.current_platform
    speculative_hook.current_platform = DflashCpuPlatform(platform)
    try:
        original(server_args)
    finally:
        speculative_hook.current_platform = platform
    speculative_hook._disable_overlap_schedule_for_cpu(server_args)


def forward_extend(
    original: Callable[..., Tensor],
    backend: TorchNativeAttnBackend,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    layer: RadixAttention,
    forward_batch: ForwardBatch,
    save_kv_cache: bool = True,
) -> Tensor:
    """Send verify batches to `verify_attention`, all others to SGLang's own."""
    run = verify_attention if forward_batch.forward_mode.is_target_verify() else original
    return run(backend, q, k, v, layer, forward_batch, save_kv_cache)


def record_stream(original: Callable[..., None], tensor: Tensor, stream: object) -> None:
    """A CPU tensor has no stream to wait for; torch raises on it."""
    if tensor.device.type != "cpu":
        original(tensor, stream)


def keep_embedding_dtype(
    kwargs: dict[str, object], runner: object, forward_batch: ForwardBatch, pp_proxy_tensors: object
) -> dict[str, object]:
    """Give the drafter its block embeddings in their own type, whatever SGLang cast them to."""
    if forward_batch.input_embeds is not None:
        if forward_batch.replace_embeds is not None:
            raise NotImplementedError(
                "input_embeds with replace_embeds is not available on the CPU engine"
            )
        kwargs["input_embeds"] = forward_batch.input_embeds
    return kwargs


def disable_triton_norm_rope(
    result: None, attention: DFlashAttention, *args: object, **kwargs: object
) -> None:
    """Take the torch path for the drafter's norm and rotary embedding."""
    attention.use_table_qk_norm_rope = False


def absorbed(attention: DeepseekV2AttentionMLA, forward_batch: ForwardBatch) -> AttnForwardMethod:
    """Latent attention over the cache itself, in every pass.

    The query is brought to the latent's width, a key is a cache row (latent, then rope), a value
    the row's latent: what torch_native computes over any cache, and the verify pass under a tree.
    """
    from sglang.srt.models.deepseek_common.attention_forward_methods import AttnForwardMethod

    if attention.use_dsa:
        raise NotImplementedError(
            "sparse latent attention (DSA) is not available on the CPU engine. next: a model with "
            "dense latent attention, as DeepSeek-V3 or Kimi K2"
        )
    return AttnForwardMethod.MLA


def mla_handler(
    original: Callable[..., object], registry: type, backend_name: str
) -> Callable[..., object] | object:
    """Torch_native has no handler for latent attention, and gets one; others keep their own."""
    return absorbed if backend_name == "torch_native" else original(registry, backend_name)


def rope_without_scaling(
    original: Callable[..., RotaryEmbedding],
    head_size: int,
    rotary_dim: int,
    max_position: int,
    base: int,
    is_neox_style: bool = True,
    rope_scaling: dict[str, object] | None = None,
    dtype: torch.dtype | None = None,
    partial_rotary_factor: float = 1.0,
    device: str | None = None,
) -> RotaryEmbedding:
    """Plain rotations, which SGLang's own factory makes on any device; YaRN stays with upstream."""
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    shape = (head_size, rotary_dim, max_position, base, is_neox_style)
    if rope_scaling is None:
        return get_rope(*shape, None, dtype, partial_rotary_factor)
    return original(*shape, rope_scaling, dtype, partial_rotary_factor, device)


HOOKS = (
    Hook(
        "sglang.srt.arg_groups.speculative_hook._handle_dflash",
        ("server_args",),
        "around",
        allow_dflash,
        "srt/arg_groups/speculative_hook.py:291 allows DFLASH on cuda, npu and xpu only",
    ),
    Hook(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"),
        "around",
        forward_extend,
        "srt/layers/attention/torch_native_backend.py:279 has neither TARGET_VERIFY nor tree masks",
    ),
    Hook(
        "torch.Tensor.record_stream",
        None,  # a method of C++, without a signature
        "around",
        record_stream,
        "srt/speculative/dflash_worker_v2.py:2481 records a stream on CPU tensors",
    ),
    Hook(
        "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs",
        ("self", "forward_batch", "pp_proxy_tensors"),
        "after",
        keep_embedding_dtype,
        "srt/model_executor/model_runner.py:1772 casts input_embeds to bfloat16",
    ),
    Hook(
        "sglang.srt.models.dflash.DFlashAttention.__init__",
        ("self", "config", "layer_id"),
        "after",
        disable_triton_norm_rope,
        "srt/models/dflash.py:383 calls a triton kernel for bfloat16 on every device",
    ),
    Hook(
        "sglang.srt.models.deepseek_common.attention_backend_handler"
        ".AttentionBackendRegistry.get_handler",
        ("backend_name",),
        "around",
        mla_handler,
        "srt/models/deepseek_common/attention_backend_handler.py:61 gives torch_native Triton's "
        "handler, whose first prefill has queries of other widths than the rows torch_native reads",
    ),
    Hook(
        "sglang.srt.layers.rotary_embedding.factory.get_rope_cpu",
        (
            "head_size",
            "rotary_dim",
            "max_position",
            "base",
            "is_neox_style",
            "rope_scaling",
            "dtype",
            "partial_rotary_factor",
            "device",
        ),
        "around",
        rope_without_scaling,
        "srt/layers/rotary_embedding/factory.py:478 asserts YaRN for latent attention on a CPU",
    ),
)
