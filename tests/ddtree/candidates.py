"""What tests put into a tree builder, and the names of the nodes that come out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from sglang_ddtree.tree_ref import Ranks, ranks_of
from sglang_ddtree.tree_torch import candidate_costs
from sglang_ddtree.tree_types import TreeBatch

VOCABULARY = 64
KINDS = ("plain", "peaked", "ties", "repeats", "broken")


@dataclass(frozen=True, slots=True)
class Given:
    """One call of a builder."""

    roots: Tensor
    ids: Tensor
    logprobs: Tensor
    prefix: Tensor
    budget: int
    width: int

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.roots, self.ids, self.logprobs, self.prefix

    def cost(self, request: int) -> Tensor:
        return candidate_costs(self.ids, self.logprobs)[0][request]


def make(
    seed: int, bs: int, depth: int, topk: int, budget: int, kind: str = "plain", spare: int = 0
) -> Given:
    random = torch.Generator().manual_seed(seed)
    scale = 6.0 if kind == "peaked" else 2.0
    lp = (scale * torch.randn(bs, depth, VOCABULARY, generator=random)).log_softmax(-1)
    values, ids = lp.topk(topk, -1)
    if kind == "ties":
        values = (2 * values).round() / 2
    if kind == "repeats":
        ids = torch.randint(0, 3, ids.shape, generator=random)
    if kind == "broken":
        hit = torch.rand(values.shape, generator=random)
        values = torch.where(hit < 0.2, torch.nan, values)
        values = torch.where((hit > 0.2) & (hit < 0.4), -torch.inf, values)
        values = torch.where(hit > 0.9, 0.5, values)  # a probability above one
    return Given(
        torch.randint(0, VOCABULARY, (bs,), generator=random), ids, values,
        torch.randint(0, 40, (bs,), generator=random), budget, budget + 1 + spare,
    )  # fmt: skip


@st.composite
def givens(draw: st.DrawFn, most: int = 24) -> Given:
    return make(
        seed=draw(st.integers(0, 2**31)),
        bs=draw(st.integers(1, 4)),
        depth=draw(st.integers(1, 7)),
        topk=draw(st.integers(1, 8)),
        budget=draw(st.integers(1, most)),
        kind=draw(st.sampled_from(KINDS)),
        spare=draw(st.integers(0, 3)),
    )


def named(tree: TreeBatch, given: Given, request: int) -> list[Ranks]:
    """The nodes of one tree by their ranks, in the order in which they were taken."""
    ids = candidate_costs(given.ids, given.logprobs)[1][request].tolist()
    cost = given.cost(request).tolist()
    parents, depths = tree.parents[request].tolist(), tree.depths[request].tolist()
    own = []
    for node, token in enumerate(tree.tokens[request].tolist()):
        if parents[node] < 0:
            own.append(0)
            continue
        row = depths[node] - 1
        # A repeated token costs inf and is never taken, so the first finite one is meant.
        own.append(next(r for r, t in enumerate(ids[row]) if t == token and cost[row][r] < 1e30))
    return ranks_of(parents, own)
