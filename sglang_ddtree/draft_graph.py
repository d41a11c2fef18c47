"""The end of the drafter's captured graph: its candidates, and the trees that are made of them.

A replay drafts, builds the trees and writes the target's mask, for one launch by the host.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.speculative.eagle_utils import TreeMaskMode
from torch import Tensor

from sglang_ddtree.args import TreeConfig
from sglang_ddtree.topk_head import candidates, drafted_rows
from sglang_ddtree.tree import build_tree
from sglang_ddtree.tree_types import Room, TreeBatch


def mask_in_graph(backend: Any, bs: int) -> Tensor | None:
    """The target's mask buffer if a captured graph may write trees of `bs` requests into it."""
    owned = backend.verify_mask
    if owned is None or owned.mode != TreeMaskMode.FULL_MASK or not owned.fits(bs):
        return None
    flat: Tensor = owned.buffer
    return flat


class TreeSampler:
    """What SGLang runs where DFLASH's drafter picks its tokens.

    `mask` is the target's own buffer, which the graph writes into for good: a step must compare it
    with the buffer of the day. Where it is None, the step lays the mask out itself.
    """

    def __init__(
        self, lm_head: Any, tree: TreeConfig, *, max_bs: int, device: Any, mask: Tensor | None
    ) -> None:
        self._lm_head, self._tree, self.mask = lm_head, tree, mask
        self._room = Room.of(max_bs, tree.block - 1, tree.topk, tree.width, torch.device(device))
        self._prefix_lens: Tensor | None = None

    def begin(self, runner: Any, forward_batch: Any) -> None:
        """Before each pass that is captured: where the graph will find the prefix lengths."""
        del runner
        self._prefix_lens = forward_batch.seq_lens

    def __call__(self, hidden_states: Tensor, input_ids: Tensor) -> None:
        """hidden_states [bs * block, H]; input_ids [bs * block], each block's first is its root."""
        if self._prefix_lens is None:
            raise RuntimeError("DDTREE: the drafter's graph is captured without prefix lengths")
        tree = self._tree
        roots = input_ids.view(-1, tree.block)[:, 0]
        shape = (roots.shape[0], tree.block - 1, tree.topk)
        hidden = drafted_rows(hidden_states, tree.block)
        ids, logprobs = candidates(hidden, self._lm_head, tree.topk)
        build_tree(
            roots, ids.view(shape), logprobs.view(shape), self._prefix_lens,
            budget=tree.budget, width=tree.width, mask_tail=self.mask, room=self._room,
        )  # fmt: skip

    def trees(self, bs: int) -> TreeBatch:
        """What the last replay left: the next one overwrites it, in the order of the stream."""
        return self._room.trees(bs, self._tree.depth)
