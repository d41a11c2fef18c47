"""The detector of bench/gpu/probe on a model small enough to hold here.

The stand-in for a captured graph is one layer of attention over the flat mask of SGLang's layout. A
graph that was captured without a mask is causal, whatever the buffer holds.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ddtree_detect import detect, first_leaf  # type: ignore[import-not-found]
from torch import Tensor

from sglang_ddtree import tree_torch
from sglang_ddtree.tree import tail_rows, write_mask_tail
from tests.ddtree.candidates import make

WIDTH, BS = 9, 3


class Graph:
    """Reads `ids` and the flat mask at each replay, as a captured verify pass does."""

    def __init__(self, ids: Tensor, prefix: Tensor, flat: Tensor, *, reads_mask: bool) -> None:
        random = torch.Generator().manual_seed(0)
        self.embed = torch.randn(256, 16, generator=random)
        self.ids, self.prefix, self.flat, self.reads_mask = ids, prefix, flat, reads_mask
        self.out = torch.empty(BS * WIDTH, 256)

    def __call__(self) -> Any:
        x = self.embed[self.ids].view(BS, WIDTH, -1)
        mask = torch.ones(BS, WIDTH, WIDTH).tril().bool()
        if self.reads_mask:
            rows = tail_rows(self.prefix, WIDTH).unsqueeze(2) + torch.arange(WIDTH)
            mask = self.flat[rows].bool()
        for _ in range(2):  # two layers: a row changes with what the rows it sees have seen
            scores = (x @ x.transpose(1, 2) / 32).masked_fill(~mask, -torch.inf)
            x = x + scores.softmax(-1) @ x
        self.out.copy_((x @ self.embed.T).view(-1, 256))
        return SimpleNamespace(next_token_logits=self.out)


def run(*, reads_mask: bool, topk: int) -> tuple[dict[str, Any], Tensor, Tensor]:
    given = make(4, BS, 7, topk, WIDTH - 1 if topk > 1 else 7, spare=0 if topk > 1 else 1)
    tree = tree_torch.search(*given.tensors, given.budget, WIDTH)
    flat = torch.ones(int((WIDTH * (given.prefix + WIDTH)).sum()), dtype=torch.uint8)
    write_mask_tail(tree, given.prefix, flat)
    ids, before = tree.tokens.reshape(-1).clone(), flat.clone()
    batch = SimpleNamespace(batch_size=BS, input_ids=ids, seq_lens=given.prefix)
    backend = SimpleNamespace(verify_mask=SimpleNamespace(buffer=flat))
    found, out = detect(Graph(ids, given.prefix, flat, reads_mask=reads_mask), batch, backend)
    assert torch.equal(flat, before), "the mask was not put back"
    assert torch.equal(ids, tree.tokens.reshape(-1)), "the tokens were not put back"
    return found, out.next_token_logits, tree.mask


def test_a_graph_that_reads_the_tree_is_told_from_one_that_does_not() -> None:
    good, _, mask = run(reads_mask=True, topk=4)
    assert good["rows_to_change"] > 5
    assert good["rows_changed"] == good["rows_to_change"]
    assert good["rows_changed_that_must_not"] == 0
    assert good["other_rows_stirred"] == 0
    assert good["leaves_changed"] == BS
    assert good["restored"]
    bad, _, _ = run(reads_mask=False, topk=4)
    assert bad["rows_to_change"] == good["rows_to_change"]
    assert bad["rows_changed"] == 0
    assert bad["other_rows_stirred"] > 0
    assert bool((mask.sum(1).gather(1, first_leaf(mask).unsqueeze(1)) == 1).all())


@pytest.mark.parametrize("reads_mask", [True, False])
def test_a_chain_needs_no_mask_but_for_its_inactive_row(reads_mask: bool) -> None:
    found, _, _ = run(reads_mask=reads_mask, topk=1)
    assert found["rows_to_change"] == BS  # the row beyond the chain sees the root and itself
    assert found["rows_changed"] == (BS if reads_mask else 0)
