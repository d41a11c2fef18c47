"""The draft tree of one step for a whole batch, and the walk that finds what the target chose."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_ddtree import tree_torch
from sglang_ddtree.tree_types import Room, TreeBatch, Walk

__all__ = [
    "Room",
    "TreeBatch",
    "Walk",
    "build_tree",
    "child_with",
    "greedy_walk",
    "tail_rows",
    "write_mask_tail",
]


def build_tree(
    root_tokens: Tensor,
    topk_ids: Tensor,
    topk_logprobs: Tensor,
    prefix_lens: Tensor,
    *,
    budget: int,
    width: int,
    mask_tail: Tensor | None = None,
    room: Room | None = None,
) -> TreeBatch:
    """Best-first trees of at most `budget` drafted nodes in rows of `width` nodes.

    root_tokens [bs]; topk_ids and topk_logprobs [bs, D, K], the candidates for each of the D
    positions after the root; prefix_lens [bs], tokens before the root. Candidates of one position
    that repeat a token are dropped but for the most probable one: siblings must be distinct, or the
    sampler is no longer exact. `mask_tail`, a flat bool or uint8 tensor in the layout of
    `tail_rows`, receives the masks too. The trees lie in `room`, at the same place each time, or in
    new memory. No value is read back to the host.
    """
    _check_shapes(root_tokens, topk_ids, topk_logprobs, prefix_lens, budget, width)
    given = (root_tokens, topk_ids, topk_logprobs, prefix_lens, budget, width)
    if topk_ids.is_cuda:
        from sglang_ddtree import tree_kernels  # Triton is there on CUDA only

        return tree_kernels.search(*given, tail=mask_tail, room=room)
    tree = tree_torch.search(*given)
    if mask_tail is not None:
        write_mask_tail(tree, prefix_lens, mask_tail)
    return tree if room is None else room.put(tree)


def tail_rows(prefix_lens: Tensor, width: int) -> Tensor:
    """Where row i of each request's tree starts [bs, Q] in a flat attention mask.

    The mask holds, request after request, Q rows of prefix + Q cells. Q is the width of the tree
    that is verified, never the drafter's block: a request that starts at the wrong cell reads a
    neighbour's mask, and its text stays plausible.
    """
    prefix = prefix_lens.to(torch.int64)
    cells = width * (prefix + width)
    start = cells.cumsum(0) - cells + prefix
    row = torch.arange(width, device=prefix.device)
    return start.unsqueeze(1) + row * (prefix + width).unsqueeze(1)


def write_mask_tail(tree: TreeBatch, prefix_lens: Tensor, flat: Tensor) -> None:
    """Write the trees' masks into a flat attention mask; its prefix cells stay as they are."""
    col = torch.arange(tree.width, device=flat.device)
    cells = tail_rows(prefix_lens, tree.width).unsqueeze(2) + col
    flat[cells.reshape(-1)] = tree.mask.reshape(-1).to(flat.dtype)


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
