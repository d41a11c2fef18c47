"""The end of the drafter's captured graph: its candidates, and the trees that are made of them.

A replay drafts, builds the trees and writes the target's mask, for one launch by the host.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.eagle_utils import TreeMaskMode
from torch import Tensor

from sglang_ddtree.args import TreeConfig
from sglang_ddtree.topk_head import candidates, drafted_rows
from sglang_ddtree.tree import build_tree, write_mask_tail
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

    `mask` is the target's own buffer, which the graphs write into for good. A step compares it with
    the buffer of the day, and lays the mask out itself where they differ: a backend may own none.
    """

    def __init__(self, lm_head: Any, tree: TreeConfig, *, backend: Any) -> None:
        """`backend` is the target's, whose graphs are captured already."""
        self._lm_head, self._tree, self._backend = lm_head, tree, backend
        self.mask: Tensor | None = None
        self._room: Room | None = None
        self._runner: Any = None
        self._prefix_lens: Tensor | None = None

    def begin(self, runner: Any, forward_batch: Any) -> None:
        """Before each pass that is captured, the first time before a warm-up: where things lie.

        The sizes are those that the runner captures: fewer than the configured ones where the
        engine holds fewer requests. Another runner is another capture: the target has captured
        again too, with another mask.
        """
        self._prefix_lens = forward_batch.seq_lens
        if runner is not self._runner:
            self._runner = runner
            tree, most = self._tree, int(runner.max_bs)
            device = forward_batch.seq_lens.device
            self._room = Room.of(most, tree.block - 1, tree.topk, tree.width, device)
            self.mask = mask_in_graph(self._backend, most)

    def __call__(self, hidden_states: Tensor, input_ids: Tensor) -> None:
        """hidden_states [bs * block, H]; input_ids [bs * block], each block's first is its root."""
        if self._room is None or self._prefix_lens is None:
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

    def trees(self, prefix_lens: Tensor, flat: Tensor | None) -> TreeBatch:
        """What the last replay left: the next one overwrites it, in the order of the stream.

        `flat` is the mask that this step's target reads; None where it reads the trees' own cells.
        """
        if self._room is None:
            raise RuntimeError("DDTREE: the drafter replayed a graph that was not captured here")
        trees = self._room.trees(prefix_lens.shape[0], self._tree.depth)
        if flat is not None and flat is not self.mask:
            write_mask_tail(trees, prefix_lens, flat)
        return trees
