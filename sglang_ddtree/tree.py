"""The draft tree of one step for a whole batch, and the walk that finds what the target chose."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_ddtree import tree_torch
from sglang_ddtree.tree_types import TreeBatch, Walk

__all__ = ["TreeBatch", "Walk", "build_tree", "child_with", "greedy_walk"]


def build_tree(
    root_tokens: Tensor,
    topk_ids: Tensor,
    topk_logprobs: Tensor,
    prefix_lens: Tensor,
    *,
    budget: int,
    width: int,
) -> TreeBatch:
    """Best-first trees of at most `budget` drafted nodes in rows of `width` nodes.

    root_tokens [bs]; topk_ids and topk_logprobs [bs, D, K], the candidates for each of the D
    positions after the root; prefix_lens [bs], tokens before the root. Candidates of one position
    that repeat a token are dropped but for the most probable one: siblings must be distinct, or the
    sampler is no longer exact. No value is read back to the host.
    """
    _check_shapes(root_tokens, topk_ids, topk_logprobs, prefix_lens, budget, width)
    return tree_torch.search(root_tokens, topk_ids, topk_logprobs, prefix_lens, budget, width)


def _check_shapes(
    root_tokens: Tensor,
    topk_ids: Tensor,
    topk_logprobs: Tensor,
    prefix_lens: Tensor,
    budget: int,
    width: int,
) -> None:
    """Raise ValueError for what a caller got wrong; reads shapes only, never values."""
    if budget < 1 or width < budget + 1:
        raise ValueError(f"budget {budget} needs a node and a width of {budget + 1}, got {width}")
    bs, ids, lps = root_tokens.shape[0], tuple(topk_ids.shape), tuple(topk_logprobs.shape)
    if len(ids) != 3 or ids != lps or ids[0] != bs or min(ids[1:]) < 1:
        raise ValueError(f"candidates must be two [{bs}, D, K] tensors, got {ids} and {lps}")
    if root_tokens.shape != prefix_lens.shape or root_tokens.dim() != 1:
        raise ValueError(
            f"need one prefix length a root, got {tuple(prefix_lens.shape)} for "
            f"{tuple(root_tokens.shape)}"
        )


def child_with(tree: TreeBatch, node: Tensor, wanted: Tensor) -> Tensor:
    """The child of `node` [bs] whose token is `wanted` [bs], or -1. Only links are followed."""
    child = at(tree.next_token, node)
    found = torch.full_like(child, -1)
    for _ in range(tree.width - 1):
        seen = child >= 0
        hit = seen & (found < 0) & (at(tree.tokens, child) == wanted)
        found = torch.where(hit, child, found)
        child = torch.where(seen, at(tree.next_sibling, child), child)
    return found


def greedy_walk(tree: TreeBatch, target_argmax: Tensor) -> Walk:
    """Follow the target's own choices from the root as far as the tree holds them.

    target_argmax [bs, Q]: the target's most probable token after each node.
    """
    last = torch.zeros_like(tree.active)
    length = torch.zeros_like(tree.active)
    alive = torch.ones_like(last, dtype=torch.bool)
    path = [last]
    for _ in range(tree.max_depth):
        child = child_with(tree, last, at(target_argmax, last))
        alive = alive & (child >= 0)
        last = torch.where(alive, child, last)
        length = length + alive
        path.append(child.masked_fill(~alive, -1))
    return Walk(torch.stack(path, dim=1), length, at(target_argmax, last).to(torch.int64))


def at(rows: Tensor, index: Tensor) -> Tensor:
    """rows[b, index[b]]; an index of -1 reads column 0, so the caller masks."""
    return rows.gather(1, index.clamp(min=0).unsqueeze(1)).squeeze(1)
