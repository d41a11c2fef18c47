"""Oracles of the tree search, one request at a time: three ways to the same tree.

Slow and plain on purpose: the builders that serve are judged by them. All of them work on costs as
`tree_torch.candidate_costs` makes them (negative log-probabilities, cheapest first, a repeated
token infinite) and add them in float32 from the root down, so that ties fall alike everywhere.

A node is named by its ranks, one a depth: (0, 2) is the third best child of the best first token.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

#: Ranks from the root down; the root itself is ().
Ranks = tuple[int, ...]


def heap(cost: Tensor, budget: int) -> list[Ranks]:
    """Best-first search with a priority queue, nodes in the order in which they are taken.

    cost [D, K] float32. Equally cheap nodes: the smaller `parent * K + rank` first.
    """
    rows, k = _rows(cost), cost.shape[1]
    taken: list[Ranks] = []
    # (cost, parent * K + rank, ranks, cost of the parent)
    queue: list[tuple[float, int, Ranks, float]] = [(rows[0][0], 0, (0,), 0.0)]
    while queue and len(taken) < budget:
        total, key, ranks, above = heapq.heappop(queue)
        if total == float("inf"):
            break
        taken.append(ranks)
        depth, rank = len(ranks), ranks[-1]
        if depth < len(rows):
            below = _add(total, rows[depth][0])
            heapq.heappush(queue, (below, len(taken) * k, (*ranks, 0), total))
        if rank + 1 < k:
            beside = _add(above, rows[depth - 1][rank + 1])
            heapq.heappush(queue, (beside, key + 1, (*ranks[:-1], rank + 1), above))
    return taken


@cache
def stairs(depth: int, k: int, budget: int) -> tuple[Ranks, ...]:
    """All nodes that can be in a best tree of `budget`, whatever the probabilities.

    A node whose ranks are all at most those of a prefix of another is never dearer than it. Their
    number, itself counted, is the sum over prefixes of the products of (rank + 1): a node with more
    than `budget` of them is beaten by enough others.
    """
    found: list[Ranks] = []

    def grow(ranks: Ranks, product: int, total: int) -> None:
        if len(ranks) == depth:
            return
        for rank in range(k):
            wider = product * (rank + 1)
            if total + wider > budget:
                return
            found.append((*ranks, rank))
            grow((*ranks, rank), wider, total + wider)

    grow((), 1, 0)
    return tuple(found)


def staircase(cost: Tensor, budget: int) -> set[Ranks]:
    """The best tree from the fixed table of `stairs`: sums, and one choice of the cheapest.

    Equally cheap nodes: the one with fewer and smaller ranks first, which keeps a tree closed.
    """
    rows = _rows(cost)
    totals = []
    for ranks in stairs(cost.shape[0], cost.shape[1], budget):
        total = 0.0
        for depth, rank in enumerate(ranks):
            total = _add(total, rows[depth][rank])
        if total < float("inf"):
            totals.append((total, len(ranks), ranks))
    return {ranks for *_, ranks in sorted(totals)[:budget]}


def levels(cost: Tensor, budget: int) -> set[Ranks]:
    """The best tree level by level: the `budget` cheapest nodes of each depth grow on, and the
    cheapest of all levels together are the tree."""
    rows = _rows(cost)
    totals: list[tuple[float, int, Ranks]] = []
    front: list[tuple[float, Ranks]] = [(0.0, ())]
    for depth, row in enumerate(rows, 1):
        grown = [
            (_add(total, step), (*ranks, rank))
            for total, ranks in front
            for rank, step in enumerate(row)
        ]
        front = sorted(item for item in grown if item[0] < float("inf"))[:budget]
        totals += [(total, depth, ranks) for total, ranks in front]
    return {ranks for *_, ranks in sorted(totals)[:budget]}


def ranks_of(parents: Sequence[int], own: Sequence[int]) -> list[Ranks]:
    """The names of a tree's nodes, from parent and own rank of each; node 0 is the root."""
    names: list[Ranks] = [()]
    for parent, rank in zip(parents[1:], own[1:], strict=True):
        if parent >= 0:
            names.append((*names[parent], rank))
    return names[1:]


def _rows(cost: Tensor) -> list[list[float]]:
    rows: list[list[float]] = cost.to(torch.float32).tolist()
    return rows


def _add(a: float, b: float) -> float:
    """The sum as float32 has it."""
    return float(torch.tensor(a, dtype=torch.float32) + torch.tensor(b, dtype=torch.float32))
