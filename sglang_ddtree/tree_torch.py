"""Best-first tree search in plain torch: every request of the batch takes its next node at once.

The rule, the same in every builder of this package. A node's cost is the sum of the negative
log-probabilities along its path, added in float32 from the root down. When a node is taken, its
most probable child and its own next sibling join the frontier; the next node taken is the cheapest
of the frontier, and of equally cheap ones that with the smaller `parent * K + rank`. A parent is
never dearer than its child and is always taken first, so every tree is closed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_ddtree.tree_types import TreeBatch

#: Cost of a candidate whose log-probability is -inf or NaN: last, but still a legal node.
WORST = 1.0e4


def candidate_costs(ids: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """Costs and ids [bs, D, K], cheapest first; a repeated id costs inf and is never taken."""
    lp = logprobs.to(torch.float32)
    cost = torch.where(lp < 0, -lp, torch.zeros_like(lp)).clamp(max=WORST)
    cost = cost.masked_fill(torch.isnan(lp), WORST)
    cost, order = torch.sort(cost, dim=-1, stable=True)
    ids = ids.to(torch.int64).gather(-1, order)
    k = ids.shape[-1]
    earlier = torch.ones(k, k, dtype=torch.bool, device=ids.device).tril(-1)
    repeated = ((ids.unsqueeze(-1) == ids.unsqueeze(-2)) & earlier).any(-1)
    cost, order = torch.sort(cost.masked_fill(repeated, torch.inf), dim=-1, stable=True)
    return cost, ids.gather(-1, order)


def search(
    root_tokens: Tensor,
    topk_ids: Tensor,
    topk_logprobs: Tensor,
    prefix_lens: Tensor,
    budget: int,
    width: int,
) -> TreeBatch:
    """Trees of at most `budget` nodes beyond the root; shapes as in `tree.build_tree`."""
    cost, ids = candidate_costs(topk_ids, topk_logprobs)
    bs, depth_max, _ = cost.shape
    parents, ranks, depths = _take(cost, budget, width)
    live = parents >= 0
    row = torch.arange(bs, device=ids.device).unsqueeze(1)
    drafted = ids[row, (depths - 1).clamp(min=0), ranks]
    root = root_tokens.to(torch.int64).unsqueeze(1)
    tokens = torch.where(live, drafted, root)
    depths = torch.where(live, depths, torch.ones_like(depths))
    depths[:, 0] = 0
    next_token, next_sibling = _links(parents)
    return TreeBatch(
        tokens=tokens,
        parents=parents,
        depths=depths,
        positions=prefix_lens.to(torch.int64).unsqueeze(1) + depths,
        next_token=next_token,
        next_sibling=next_sibling,
        mask=_mask(parents, min(depth_max, budget)),
        active=live.sum(1) + 1,
        max_depth=min(depth_max, budget),
    )


def _take(cost: Tensor, budget: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Parent, rank and depth of each node [bs, width]; parent -1 where no node was left to take.

    A frontier entry lives in a slot: what a taken node pushes first (its child) replaces it, what
    it pushes second (its sibling) goes to the slot numbered like the node.
    """
    bs, depth_max, k = cost.shape
    row = torch.arange(bs, device=cost.device)
    shape = (bs, width)
    parents = torch.full(shape, -1, dtype=torch.int64, device=cost.device)
    ranks, depths = torch.zeros_like(parents), torch.zeros_like(parents)
    total = torch.full(shape, torch.inf, dtype=torch.float32, device=cost.device)
    above = torch.zeros_like(total)  # cost of the entry's parent
    key = torch.zeros_like(parents)  # parent * K + rank
    level = torch.ones_like(parents)  # depth of the entry
    total[:, 0] = cost[:, 0, 0]
    last = torch.iinfo(torch.int64).max
    for node in range(1, budget + 1):
        best = total.min(1, keepdim=True).values
        slot = key.masked_fill(total != best, last).argmin(1)
        here, up = best.squeeze(1), above[row, slot]
        k_here, d = key[row, slot], level[row, slot]
        alive = here < torch.inf
        parent, rank = k_here // k, k_here % k
        parents[:, node] = torch.where(alive, parent, -1)
        ranks[:, node] = torch.where(alive, rank, 0)
        depths[:, node] = torch.where(alive, d, 0)
        child = here + cost[row, d.clamp(max=depth_max - 1), 0]
        total[row, slot] = torch.where(alive & (d < depth_max), child, torch.inf)
        above[row, slot], key[row, slot], level[row, slot] = (
            here,
            torch.full_like(k_here, node * k),
            d + 1,
        )
        beside = up + cost[row, d - 1, (rank + 1).clamp(max=k - 1)]
        total[:, node] = torch.where(alive & (rank + 1 < k), beside, torch.inf)
        above[:, node], key[:, node], level[:, node] = up, k_here + 1, d
    return parents, ranks, depths


def _links(parents: Tensor) -> tuple[Tensor, Tensor]:
    """First child and next sibling of each node [bs, Q], -1 where there is none."""
    width = parents.shape[1]
    index = torch.arange(width, device=parents.device)
    later = index.unsqueeze(0) > index.unsqueeze(1)  # [i, j]: j after i
    child = parents.unsqueeze(1) == index.unsqueeze(1)  # [b, i, j]: j hangs below i
    same = (parents.unsqueeze(1) == parents.unsqueeze(2)) & (parents >= 0).unsqueeze(2) & later
    return _first(child, index), _first(same, index)


def _first(hits: Tensor, index: Tensor) -> Tensor:
    found = torch.where(hits, index, torch.full_like(index, index.shape[0])).amin(-1)
    return torch.where(found < index.shape[0], found, torch.full_like(found, -1))


def _mask(parents: Tensor, depth_max: int) -> Tensor:
    """Ancestor-or-self [bs, Q, Q], row = the node that looks; inactive nodes see the root too."""
    bs, width = parents.shape
    above = parents.clamp(min=0)
    seen = (
        torch.eye(width, dtype=torch.bool, device=parents.device).expand(bs, width, width).clone()
    )
    node = torch.arange(width, device=parents.device).expand(bs, width)
    for _ in range(depth_max):
        node = above.gather(1, node)
        seen.scatter_(2, node.unsqueeze(2), True)
    return seen
