"""Sampling along a draft tree so that what is committed has the target's distribution exactly.

The tree is deterministic (best-first, no drafter sample in it), so no drafter probability enters.
One uniform coin stands at each node the walk reaches. Going through its children in link order, the
walk adds up their target probabilities and takes the first child whose running sum exceeds the
coin: inversion sampling with the children's tokens put first. If no child is taken, the rest is
drawn from the target's distribution without the rejected children. Siblings must be distinct.
The conventions are those of SGLang's `tree_speculative_sampling_target_only` with thresholds 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_ddtree.tree import at
from sglang_ddtree.tree_types import TreeBatch, Walk


def target_only_walk(
    tree: TreeBatch, target_probs: Tensor, coins: Tensor, final_coins: Tensor
) -> Walk:
    """The sampled path and the token after it.

    target_probs [bs, Q, V], the target's distribution after each node, temperature and truncation
    applied; coins [bs, Q] and final_coins [bs] uniform in [0, 1).
    """
    last = torch.zeros_like(tree.active)
    length = torch.zeros_like(tree.active)
    alive = torch.ones_like(last, dtype=torch.bool)
    path = [last]
    for _ in range(tree.max_depth):
        child = _taken(tree, target_probs, coins, last)
        alive = alive & (child >= 0)
        last = torch.where(alive, child, last)
        length = length + alive
        path.append(child.masked_fill(~alive, -1))
    return Walk(torch.stack(path, dim=1), length, _rest(tree, target_probs, final_coins, last))


def _taken(tree: TreeBatch, probs: Tensor, coins: Tensor, node: Tensor) -> Tensor:
    """The child [bs] that the coin of `node` picks, or -1."""
    coin = at(coins, node)
    row = torch.arange(node.shape[0], device=node.device)
    child = at(tree.next_token, node)
    found = torch.full_like(child, -1)
    mass = torch.zeros_like(coin, dtype=probs.dtype)
    for _ in range(tree.width - 1):
        seen = child >= 0
        single = torch.where(seen, probs[row, node, at(tree.tokens, child)], 0)
        mass = mass + single
        hit = seen & (found < 0) & (single > 0) & (coin < mass)
        found = torch.where(hit, child, found)
        child = torch.where(seen, at(tree.next_sibling, child), child)
    return found


def _rest(tree: TreeBatch, probs: Tensor, final_coins: Tensor, node: Tensor) -> Tensor:
    """A token [bs] drawn from the distribution after `node` without the tokens of its children."""
    row = torch.arange(node.shape[0], device=node.device)
    left = probs[row, node].clone()
    rejected = (tree.parents == node.unsqueeze(1)) & (tree.parents >= 0)
    drop = torch.zeros_like(left).scatter_add_(1, tree.tokens, rejected.to(left.dtype))
    left = left.masked_fill(drop > 0, 0)
    total = left.cumsum(1)
    bar = final_coins.to(total.dtype).unsqueeze(1) * total[:, -1:]
    picked = (total <= bar).sum(1)
    ladder = torch.arange(left.shape[1], device=left.device)
    top = torch.where(left > 0, ladder, torch.full_like(ladder, -1)).amax(1)
    top = torch.where(top < 0, torch.full_like(top, left.shape[1] - 1), top)
    return torch.minimum(picked, top)
