"""Attention of a TARGET_VERIFY batch on the torch_native backend, tree masks included.

SGLang 0.5.23's torch_native backend (srt/layers/attention/torch_native_backend.py:279) has no such
mode: it reads extend_* fields that a verify batch leaves empty and ignores the tree mask. A wrong
mask silently used changes the output, so every layout that is not understood raises.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class MaskLayoutError(ValueError):
    """A tree mask's type, size or content fits neither of SGLang's layouts."""


class MaskLayout(Enum):
    """Layouts of `spec_info.custom_mask`, flat bool, True = may attend.

    Upstream: kernels/ops/speculative/spec_tree.py:46.

    Of request i with prefix p_i: FULL_MASK holds [n, p_i + n], the requests one after another;
    QLEN_ONLY [n, n], the prefix being visible. SGLang makes QLEN_ONLY on a CPU
    (srt/speculative/eagle_utils.py:135, ngram_worker.py:355), FULL_MASK elsewhere.
    """

    FULL_MASK = 0
    QLEN_ONLY = 1


class VerifyInput(Protocol):
    """What is read of a verify batch's `spec_info`."""

    draft_token_num: int
    custom_mask: Tensor | None


def mask_layout(
    numel: int, prefix_lens: list[int], n: int, declared: int | None = None
) -> MaskLayout:
    """Tell the layout by size, and check it against the declared one where there is one.

    `declared` is a TreeMaskMode value. Only an exact size passes: SGLang's own backends pad or
    over-allocate, which would hide a mask built for other lengths.
    """
    sizes = {
        MaskLayout.FULL_MASK: sum(n * (prefix + n) for prefix in prefix_lens),
        MaskLayout.QLEN_ONLY: n * n * len(prefix_lens),
    }
    fitting = [layout for layout, size in sizes.items() if size == numel]
    if declared is not None:
        fitting = [layout for layout in fitting if layout.value == declared]
    if not fitting:
        expected = ", ".join(f"{layout.name} {size}" for layout, size in sizes.items())
        raise MaskLayoutError(
            f"tree mask of {numel} cells (declared mode {declared}); "
            f"{n} nodes on prefixes {prefix_lens} need {expected}"
        )
    return fitting[0]  # both fit only when every prefix is empty, and are then the same


def tree_masks(
    custom_mask: Tensor, prefix_lens: list[int], n: int, declared: int | None = None
) -> list[Tensor]:
    """Split a custom mask into one [n, prefix + n] bool mask per request."""
    if custom_mask.dtype != torch.bool:
        raise MaskLayoutError(f"tree mask is {custom_mask.dtype}, not bool")
    flat = custom_mask.reshape(-1)
    layout = mask_layout(flat.numel(), prefix_lens, n, declared)
    masks, offset = [], 0
    for prefix in prefix_lens:
        columns = n if layout is MaskLayout.QLEN_ONLY else prefix + n
        mask = flat[offset : offset + n * columns].view(n, columns)
        offset += n * columns
        _check_block(mask[:, columns - n :], f"{layout.name}, prefix {prefix}, {n} nodes")
        masks.append(_with_visible_prefix(mask, prefix) if layout is MaskLayout.QLEN_ONLY else mask)
    return masks


def _check_block(block: Tensor, where: str) -> None:
    """Refuse what no tree gives: a mask read at a wrong offset, or transposed, hardly ever passes.

    SGLang numbers a node after its ancestors (kernels/ops/speculative/reconstruct_tree.py:23).
    """
    if not bool(block.diagonal().all()):
        raise MaskLayoutError(f"tree mask hides a node from itself ({where})")
    if bool(block.triu(1).any()):
        raise MaskLayoutError(f"tree mask shows a node a later one ({where})")


def _with_visible_prefix(block: Tensor, prefix: int) -> Tensor:
    return torch.cat([block.new_ones(block.shape[0], prefix), block], dim=1)


def request_masks(
    spec_info: VerifyInput, prefix_lens: list[int], *, bidirectional: bool
) -> list[Tensor]:
    """The [n, prefix + n] mask of each request of a verify batch.

    A given tree mask is always used. Without one the nodes must be a chain by their own word
    (topk 1), and are causal. `bidirectional` is the DFlash drafter's block (an encoder layer),
    which never has a tree mask.
    """
    n = int(spec_info.draft_token_num)
    if getattr(spec_info, "ragged_verify_layout", None) is not None:
        raise NotImplementedError("a ragged verify batch is not available on the CPU engine")
    if bidirectional:
        if spec_info.custom_mask is not None:
            raise MaskLayoutError("a bidirectional draft block came with a tree mask")
        return [torch.ones(n, prefix + n, dtype=torch.bool) for prefix in prefix_lens]
    if spec_info.custom_mask is not None:
        return tree_masks(
            spec_info.custom_mask, prefix_lens, n, getattr(spec_info, "tree_mask_mode", None)
        )
    topk = getattr(spec_info, "tree_topk", getattr(spec_info, "topk", None))
    if topk != 1:
        raise MaskLayoutError(
            f"verify batch of {type(spec_info).__name__} has topk {topk} and no tree mask"
        )
    chain = torch.ones(n, n, dtype=torch.bool).tril()
    return [_with_visible_prefix(chain, prefix) for prefix in prefix_lens]


def verify_attention(
    backend: TorchNativeAttnBackend,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    layer: RadixAttention,
    forward_batch: ForwardBatch,
    save_kv_cache: bool = True,
) -> Tensor:
    """Masked attention of n nodes per request over its cache; [bs * n, heads * head_dim].

    q [bs * n, heads * head_dim]; forward_batch.seq_lens [bs] are the committed prefixes, without
    the nodes.
    """
    from sglang.srt.layers.radix_attention import AttentionType
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    _refuse_unsupported(layer)
    spec_info = forward_batch.spec_info
    prefix_lens = forward_batch.seq_lens.tolist()
    n = int(spec_info.draft_token_num)
    slots = _block_slots(backend, forward_batch, prefix_lens, n)
    masks = request_masks(
        spec_info, prefix_lens, bidirectional=layer.attn_type == AttentionType.ENCODER_ONLY
    )
    if save_kv_cache and k is not None and v is not None:
        backend.token_to_kv_pool.set_kv_buffer(
            layer, KVWriteLoc(forward_batch.out_cache_loc, backend.swa_out_cache_loc), k, v
        )

    queries = q.view(len(prefix_lens), n, layer.tp_q_head_num, layer.qk_head_dim)
    keys = backend.token_to_kv_pool.get_key_buffer(layer.layer_id)
    values = backend.token_to_kv_pool.get_value_buffer(layer.layer_id)
    outputs = [
        scaled_dot_product_attention(
            query.movedim(0, 1).unsqueeze(0),
            keys[rows].movedim(0, 1).unsqueeze(0).to(q.dtype),
            values[rows].movedim(0, 1).unsqueeze(0).to(q.dtype),
            attn_mask=mask,
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )
        .squeeze(0)
        .movedim(0, 1)
        for query, rows, mask in zip(queries, slots, masks, strict=True)
    ]
    return torch.cat(outputs).reshape(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)


def _refuse_unsupported(layer: RadixAttention) -> None:
    """Kinds of attention that were never tried here raise rather than run without their rule."""
    if layer.is_cross_attention:
        raise NotImplementedError("verify with cross attention is not available on the CPU engine")
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
        raise NotImplementedError("verify with a sliding window is not available on the CPU engine")
    if layer.logit_cap:
        raise NotImplementedError("verify with capped logits is not available on the CPU engine")


def _block_slots(
    backend: TorchNativeAttnBackend, forward_batch: ForwardBatch, prefix_lens: list[int], n: int
) -> list[Tensor]:
    """Cache rows [prefix + n] of each request, checked to end in those that are written."""
    pool = backend.req_to_token_pool.req_to_token
    rows = [
        pool[request, : prefix + n].long()
        for request, prefix in zip(
            forward_batch.req_pool_indices.tolist(), prefix_lens, strict=True
        )
    ]
    attended = torch.cat([row[-n:] for row in rows])
    if not torch.equal(attended, forward_batch.out_cache_loc.long()):
        raise RuntimeError(
            "verify batch writes other cache rows than it attends to: "
            "its seq_lens are not the committed prefixes"
        )
    return rows
