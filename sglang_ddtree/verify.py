"""The verify pass's input: tokens, links and the tree's mask, in the layouts that SGLang reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_utils import TreeMaskMode, default_tree_mask_mode
from torch import Tensor

from sglang_ddtree.tree_types import TreeBatch

#: SGLang takes a branching factor of 1 as "a chain lies in node order" and skips compaction. A tree
#: of DDTREE has no fixed factor, so what is handed over is only ever "more than 1".
BRANCHING = 2


def full_mask_index(prefix_lens: Tensor, width: int) -> Tensor:
    """Where the tree's cells lie in FULL_MASK: [bs, width, width], on the device, no host read.

    FULL_MASK holds per request `width` rows of `prefix + width` cells, one request after another;
    a row's last `width` cells are the tree's. The stride is the width of the tree, not the block:
    with the block, the second row on would be read from another row's cells.
    """
    prefix = prefix_lens.to(torch.int64)
    row = prefix + width
    start = (width * row).cumsum(0) - width * row
    node = torch.arange(width, device=prefix.device)
    origin = (start + prefix).view(-1, 1, 1)
    return origin + node.view(1, -1, 1) * row.view(-1, 1, 1) + node.view(1, 1, -1)


def place_mask(
    tree: TreeBatch,
    prefix_lens: Tensor,
    mode: Any,
    out: Tensor | None,
    *,
    total_prefix: Callable[[], int],
    fill_prefix: bool,
) -> Tensor:
    """The tree's mask in the layout `mode`, flat; written into `out` where that is given.

    `total_prefix` bounds the sum of prefix lengths from above, and is asked only to allocate.
    """
    bs, width = tree.tokens.shape
    if mode == TreeMaskMode.QLEN_ONLY:
        cells = tree.mask.reshape(-1)
        if out is None:
            return cells.clone()
        out[: cells.numel()].copy_(cells)
        return out
    if mode != TreeMaskMode.FULL_MASK:
        raise NotImplementedError(f"DDTREE writes no mask of layout {mode}")
    if out is None:
        size = width * (total_prefix() + bs * width)
        out = torch.ones(size, dtype=torch.bool, device=tree.mask.device)
    elif fill_prefix:
        out.fill_(1)
    index = full_mask_index(prefix_lens, width)
    out.index_put_((index.view(-1),), tree.mask.reshape(-1).to(out.dtype))
    return out


def tree_mask(tree: TreeBatch, batch: Any, backend: Any, *, fill_prefix: bool) -> Tensor:
    """The mask for this batch: in the backend's own buffer when it has one that fits."""
    owned = backend.verify_mask
    mode = default_tree_mask_mode() if owned is None else owned.mode
    out = owned.buffer if owned is not None and owned.fits(tree.tokens.shape[0]) else None

    def total_prefix() -> int:
        if batch.seq_lens_sum is not None:
            return int(batch.seq_lens_sum)
        return int(tree.tokens.shape[0]) * int(backend.max_context_len)

    return place_mask(
        tree, batch.seq_lens, mode, out, total_prefix=total_prefix, fill_prefix=fill_prefix
    )


def verify_input(tree: TreeBatch, mask: Tensor, plan: Any) -> EagleVerifyInput:
    """SGLang's own verify input, filled from a tree of any shape."""
    bs, width = tree.tokens.shape
    rows = torch.arange(bs * width, device=tree.tokens.device).view(bs, width)
    return EagleVerifyInput(
        draft_token=tree.tokens.reshape(-1),
        custom_mask=mask,
        positions=tree.positions.reshape(-1),
        retrieve_index=rows,
        retrieve_next_token=tree.next_token.contiguous(),
        retrieve_next_sibling=tree.next_sibling.contiguous(),
        retrieve_cum_len=None,
        spec_steps=tree.max_depth,
        topk=BRANCHING,
        draft_token_num=width,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
        prepared_out_cache_loc=plan.write_virtual,
        kv_loc_plan=plan,
    )


def capture_input(custom_mask: Tensor, *, width: int) -> EagleVerifyInput:
    """The verify input that a graph is captured with: its mask is there, so a replay reads one."""
    spec = get_spec()
    return EagleVerifyInput(
        draft_token=None,
        custom_mask=custom_mask,
        positions=None,
        retrieve_index=None,
        retrieve_next_token=None,
        retrieve_next_sibling=None,
        retrieve_cum_len=None,
        spec_steps=int(spec.speculative_dflash_block_size) - 1,
        topk=BRANCHING,
        draft_token_num=width,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )
