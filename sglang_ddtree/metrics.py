"""What each step committed, for tuning and for tests. Off unless `DDTREE_STEP_LOG` names a file.

One JSON object a step: `width` (rows a request), `budget`, and one value a request of `commit`
(tokens committed), `spine` (what the tree's own most probable branch alone would have committed)
and `path` (the accepted nodes in order, counted from 1 as the search took them). Reading them waits
for the device, so a server that is measured runs without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.args import TreeConfig
from sglang_ddtree.tree_types import TreeBatch


class StepLog:
    """Appends steps to a file, or does nothing."""

    def __init__(self, path: Path | None, tree: TreeConfig) -> None:
        self._path, self._tree = path, tree

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], tree: TreeConfig) -> StepLog:
        name = environ.get("DDTREE_STEP_LOG", "").strip()
        return cls(Path(name) if name else None, tree)

    def record(self, tree: TreeBatch, result: Any) -> None:
        if self._path is None:
            return
        row = {
            "width": tree.width,
            "budget": self._tree.budget,
            "commit": result.accept_lens.tolist(),
            "spine": spine_commit(tree, result.accept_index).tolist(),
            "path": accepted_nodes(result.accept_index, tree.width),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def accepted_nodes(accept_index: Tensor, width: int) -> list[list[int]]:
    """Drafted nodes of each accepted path, without the root, which is no guess.

    accept_index [bs, max_depth + 1] as in `spine_commit`. Node n is the n-th that the best-first
    search took, so a tree of a smaller budget has the nodes up to that number.
    """
    return [
        [row - request * width for row in rows if row > request * width]
        for request, rows in enumerate(accept_index.tolist())
    ]


def spine_commit(tree: TreeBatch, accept_index: Tensor) -> Tensor:
    """Tokens [bs] that the accepted path shares with the first-child branch, the bonus counted.

    accept_index [bs, max_depth + 1]: accepted rows of the whole batch, -1 beyond the path.
    """
    bs, width = tree.tokens.shape
    start = torch.arange(bs, device=accept_index.device).view(bs, 1) * width
    path = torch.where(accept_index < 0, -1, accept_index - start)
    node = torch.zeros_like(tree.tokens[:, 0])
    same = torch.ones_like(node, dtype=torch.bool)
    shared = torch.zeros_like(node)
    for column in path.unbind(1):
        same = same & (column == node) & (column >= 0)
        shared = shared + same
        node = tree.next_token.gather(1, node.clamp(min=0).unsqueeze(1)).squeeze(1)
    return shared
