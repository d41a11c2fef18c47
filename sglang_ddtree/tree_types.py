"""What a tree builder returns and what a walk over a tree returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """Trees of one batch, all of the same width Q. Nodes that no search filled are *inactive*.

    Node 0 is the root: the current token, whose key and value this step's verify pass writes. Live
    nodes follow in the order in which best-first search took them, so a parent has a smaller index
    than its children, and siblings stand in falling probability. An inactive node carries the
    root's token at depth 1, has parent -1, sees the root and itself, and no link leads to it: it
    costs a row of the verify pass and can never be committed.
    """

    tokens: Tensor  #: [bs, Q] int64; column 0 is the root
    parents: Tensor  #: [bs, Q] int64; -1 for the root and for inactive nodes
    depths: Tensor  #: [bs, Q] int64; 0 for the root
    positions: Tensor  #: [bs, Q] int64; prefix length + depth
    next_token: Tensor  #: [bs, Q] int64; the most probable child, or -1
    next_sibling: Tensor  #: [bs, Q] int64; the next child of the same parent, or -1
    mask: Tensor  #: [bs, Q, Q] bool; row i is true at i and at the ancestors of i
    active: Tensor  #: [bs] int64; live nodes, the root counted
    max_depth: int  #: no live node is deeper: min(positions drafted, budget)

    @property
    def width(self) -> int:
        return int(self.tokens.shape[1])


@dataclass(frozen=True, slots=True)
class Room:
    """Where a builder writes: the trees of up to `bs` requests, and their sorted candidates."""

    nodes: Tensor  #: [6, bs, Q] int64; tokens, parents, depths, positions, next_token, next_sibling
    mask: Tensor  #: [bs, Q, Q] bool
    active: Tensor  #: [bs] int64
    cost: Tensor  #: [bs, D, K] float32
    ident: Tensor  #: [bs, D, K] int64

    @classmethod
    def of(cls, bs: int, depth_max: int, k: int, width: int, device: torch.device) -> Room:
        def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            nodes=empty(6, bs, width),
            mask=empty(bs, width, width, dtype=torch.bool),
            active=empty(bs),
            cost=empty(bs, depth_max, k, dtype=torch.float32),
            ident=empty(bs, depth_max, k),
        )

    def put(self, tree: TreeBatch) -> TreeBatch:
        """A copy of `tree` that lies here."""
        kept = self.trees(tree.tokens.shape[0], tree.max_depth)
        for name in ("tokens", "parents", "depths", "positions", "next_token", "next_sibling",
                     "mask", "active"):  # fmt: skip
            getattr(kept, name).copy_(getattr(tree, name))
        return kept

    def trees(self, bs: int, max_depth: int) -> TreeBatch:
        """The first `bs` trees, as views."""
        tokens, parents, depths, positions, next_token, next_sibling = (
            plane[:bs] for plane in self.nodes.unbind(0)
        )
        return TreeBatch(
            tokens=tokens,
            parents=parents,
            depths=depths,
            positions=positions,
            next_token=next_token,
            next_sibling=next_sibling,
            mask=self.mask[:bs],
            active=self.active[:bs],
            max_depth=max_depth,
        )


@dataclass(frozen=True, slots=True)
class Walk:
    """What one verify pass commits: the accepted path and the target's own token after it."""

    accept_index: Tensor  #: [bs, max_depth+1] int64 node indices, root first, -1 beyond the path
    accept_len: Tensor  #: [bs] int64; accepted drafted nodes, the root not counted
    bonus: Tensor  #: [bs] int64; the token that follows the last accepted node
