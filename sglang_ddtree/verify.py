"""The verify pass's input: tokens, links and the tree's mask, in the layouts that SGLang reads."""

from __future__ import annotations

from functools import lru_cache
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


def full_mask(batch: Any, backend: Any, width: int, *, fill_prefix: bool) -> Tensor | None:
    """The flat FULL_MASK for this batch, which the tree builder writes its cells into.

    It is the backend's own buffer when it has one that fits. The prefix cells are set where
    `fill_prefix` says that they are read; a new one has them set. None where the backend reads the
    trees' cells alone (QLEN_ONLY).
    """
    bs, owned = len(batch.seq_lens), backend.verify_mask
    mode = default_tree_mask_mode() if owned is None else owned.mode
    if mode == TreeMaskMode.QLEN_ONLY:
        return None
    if mode != TreeMaskMode.FULL_MASK:
        raise NotImplementedError(f"DDTREE writes no mask of layout {mode}")
    if owned is not None and owned.fits(bs):
        if fill_prefix:
            owned.buffer.fill_(1)
        flat: Tensor = owned.buffer
        return flat
    known = batch.seq_lens_sum
    prefixes = bs * int(backend.max_context_len) if known is None else int(known)
    size = width * (prefixes + bs * width)
    return torch.ones(size, dtype=torch.bool, device=batch.seq_lens.device)


def mask_of(tree: TreeBatch, flat: Tensor | None, backend: Any) -> Tensor:
    """What the verify input carries: the mask that was written, or the trees' cells alone."""
    if flat is not None:
        return flat
    cells, owned = tree.mask.reshape(-1), backend.verify_mask
    if owned is None or not owned.fits(tree.tokens.shape[0]):
        return cells.clone()
    buffer: Tensor = owned.buffer
    buffer[: cells.numel()].copy_(cells)
    return buffer


@lru_cache(maxsize=256)
def node_rows(bs: int, width: int, device: torch.device) -> Tensor:
    """The row of each node in the whole batch [bs, width]; never written."""
    return torch.arange(bs * width, device=device).view(bs, width)


def verify_input(tree: TreeBatch, mask: Tensor, plan: Any) -> EagleVerifyInput:
    """SGLang's own verify input, filled from a tree of any shape."""
    bs, width = tree.tokens.shape
    return EagleVerifyInput(
        draft_token=tree.tokens.reshape(-1),
        custom_mask=mask,
        positions=tree.positions.reshape(-1),
        retrieve_index=node_rows(bs, width, tree.tokens.device),
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
