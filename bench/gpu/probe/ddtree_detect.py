"""Does a captured graph read the tree's mask? One graph, one batch, other masks and other tokens.

A verify pass of a live server is replayed four times:
  1. as it is;
  2. with the mask of a chain: the logits of every row that then sees other rows must change, and
     those of a row that sees the same ancestors, which see the same, must not, to the last bit;
  3. with the first leaf's token changed: only its own row may change. A row of another branch that
     changes has seen it, as every later row does in a causal pass;
  4. as it was: bit for bit the first result. It also puts back what 2 and 3 wrote to the cache.
A graph captured without a mask (bug 4) answers 2 with no change at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.tree import tail_rows


def detect(run: Callable[[], Any], batch: Any, backend: Any) -> tuple[dict[str, Any], Any]:
    """What the four replays showed, and the last one's output, which the step goes on with."""
    bs = int(batch.batch_size)
    width = int(batch.input_ids.shape[0]) // bs
    flat = backend.verify_mask.buffer
    cells = tail_rows(batch.seq_lens[:bs], width).unsqueeze(2) + torch.arange(
        width, device=flat.device
    )
    first = logits_of(run(), bs, width)
    tree = flat[cells].bool()
    chain = torch.ones_like(tree).tril()
    flat[cells.view(-1)] = chain.view(-1).to(flat.dtype)
    as_chain = logits_of(run(), bs, width)
    flat[cells.view(-1)] = tree.view(-1).to(flat.dtype)
    leaf = first_leaf(tree)
    ids = batch.input_ids.view(bs, width)
    before = ids.clone()
    ids.scatter_(1, leaf.unsqueeze(1), other_token(ids.gather(1, leaf.unsqueeze(1))))
    as_other = logits_of(run(), bs, width)
    ids.copy_(before)
    out = run()
    again = logits_of(out, bs, width)
    return {"bs": bs, "width": width, "prefix": batch.seq_lens[:bs].tolist(),
            **judge(first, as_chain, as_other, again, tree, leaf)}, out  # fmt: skip


def judge(
    first: Tensor, as_chain: Tensor, as_other: Tensor, again: Tensor, tree: Tensor, leaf: Tensor
) -> dict[str, Any]:
    """Rows counted: logits [bs, Q, V] of the four replays, masks [bs, Q, Q], changed leaf [bs]."""
    sees_same = (tree == torch.ones_like(tree).tril()).all(2)  # [bs, Q]
    # A row is the same only if every row it sees, over all layers, is the same too.
    same = ~((tree & ~sees_same.unsqueeze(1)).any(2)) & sees_same
    moved = (first != as_chain).any(2)
    is_leaf = torch.zeros_like(same).scatter_(1, leaf.unsqueeze(1), True)
    stirred = (first != as_other).any(2)
    return {
        "rows_to_change": int((~same).sum()),
        "rows_changed": int((moved & ~same).sum()),
        "rows_changed_that_must_not": int((moved & same).sum()),
        "leaves_changed": int((stirred & is_leaf).sum()),
        "other_rows_stirred": int((stirred & ~is_leaf).sum()),
        "restored": bool(torch.equal(first, again)),
    }


def first_leaf(tree: Tensor) -> Tensor:
    """The first row of each tree [bs] that no other row sees: rows of other branches follow it."""
    return (tree.sum(1) == 1).long().argmax(1)


def other_token(token: Tensor) -> Tensor:
    return torch.where(token > 100, token - 1, token + 1)


def logits_of(out: Any, bs: int, width: int) -> Tensor:
    """A copy [bs, Q, V]: a graph's output is overwritten by its next replay."""
    return out.next_token_logits[: bs * width].view(bs, width, -1).clone()
