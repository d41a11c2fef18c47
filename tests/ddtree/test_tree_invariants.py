"""What every draft tree must be, whoever builds it and whatever the drafter said."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given as when
from hypothesis import settings
from torch import Tensor

from sglang_ddtree import tree_kernels, tree_torch
from sglang_ddtree.tree import build_tree
from sglang_ddtree.tree_types import TreeBatch
from tests.ddtree.candidates import Given, givens, make


def by_torch(given: Given) -> TreeBatch:
    return tree_torch.search(*given.tensors, given.budget, given.width)


def by_triton(given: Given) -> TreeBatch:
    return tree_kernels.search(*given.tensors, given.budget, given.width)


def check(tree: TreeBatch, given: Given) -> None:
    for request in range(tree.tokens.shape[0]):
        _check_one(tree, given, request)


def _check_one(tree: TreeBatch, given: Given, n: int) -> None:
    parents, depths = tree.parents[n].tolist(), tree.depths[n].tolist()
    tokens, live = tree.tokens[n].tolist(), int(tree.active[n])
    assert parents[0] == -1 and depths[0] == 0 and tokens[0] == int(given.roots[n])
    assert 1 <= live <= given.budget + 1
    children: dict[int, list[int]] = {}
    for node in range(1, live):
        assert 0 <= parents[node] < node
        assert depths[node] == depths[parents[node]] + 1
        children.setdefault(parents[node], []).append(node)
    assert max(depths[:live]) <= tree.max_depth == min(given.ids.shape[1], given.budget)
    for below in children.values():
        assert len({tokens[c] for c in below}) == len(below), "siblings with one token"
        assert len(below) <= given.ids.shape[2]
    _check_links(tree, n, children)
    _check_mask(tree, n, live)
    assert torch.equal(tree.positions[n], int(given.prefix[n]) + tree.depths[n])
    for node in range(live, tree.width):  # inactive rows lead nowhere, and nothing leads to them
        assert parents[node] == -1 and depths[node] == 1 and tokens[node] == tokens[0]


def _check_links(tree: TreeBatch, n: int, children: dict[int, list[int]]) -> None:
    first, beside = tree.next_token[n].tolist(), tree.next_sibling[n].tolist()
    seen = []
    for node in range(tree.width):
        at, row = first[node], []
        while at >= 0:
            row.append(at)
            at = beside[at]
        assert row == children.get(node, []), f"children of node {node}"
        seen += row
    assert sorted(seen) == list(range(1, int(tree.active[n]))), "each live node is reached once"


def _check_mask(tree: TreeBatch, n: int, live: int) -> None:
    mask = tree.mask[n]
    assert bool(mask.diagonal().all()), "each row sees itself"
    assert not bool(mask.triu(1).any()), "no row sees a later one"
    sees = mask.long()
    assert torch.equal((sees @ sees > 0), mask), "what a row sees, it sees the ancestors of"
    counts = mask.sum(1)
    assert torch.equal(counts[:live], tree.depths[n][:live] + 1)
    for node in range(live, tree.width):
        assert mask[node].nonzero().flatten().tolist() == [0, node]


@when(givens())
def test_every_tree_of_the_torch_search_is_sound(given: Given) -> None:
    check(by_torch(given), given)


@settings(max_examples=12)
@when(givens(most=9))
def test_every_tree_of_the_kernel_is_sound(given: Given) -> None:
    check(by_triton(given), given)


@pytest.mark.parametrize("build", [by_torch, by_triton])
@pytest.mark.parametrize("depth", [1, 7])
def test_one_candidate_a_position_is_the_chain_bit_for_bit(build: object, depth: int) -> None:
    given = make(5, bs=3, depth=depth, topk=1, budget=depth)
    tree = build(given)  # type: ignore[operator]
    rows = torch.arange(depth + 1)
    assert torch.equal(tree.tokens, torch.cat([given.roots.unsqueeze(1), given.ids[:, :, 0]], 1))
    assert torch.equal(tree.mask, torch.ones(3, depth + 1, depth + 1).tril().bool())
    assert torch.equal(tree.parents, (rows - 1).expand(3, -1))
    assert torch.equal(tree.positions, given.prefix.unsqueeze(1) + rows)
    assert torch.equal(tree.next_token[:, :-1], rows[1:].expand(3, -1))
    assert bool((tree.next_sibling == -1).all())


def test_a_budget_above_all_nodes_takes_them_all_and_leaves_the_rest_inactive() -> None:
    given = make(1, bs=2, depth=2, topk=3, budget=40)
    tree = by_torch(given)
    assert tree.active.tolist() == [1 + 3 + 9] * 2
    check(tree, given)


def test_requests_of_a_batch_do_not_touch_each_other() -> None:
    given = make(8, bs=4, depth=5, topk=4, budget=11, kind="broken")
    together = by_torch(given)
    for n in range(4):
        own = {k: getattr(given, k)[n : n + 1] for k in ("roots", "ids", "logprobs", "prefix")}
        alone = by_torch(dataclasses.replace(given, **own))
        for field in ("tokens", "parents", "mask", "next_token", "next_sibling", "positions"):
            assert torch.equal(getattr(together, field)[n], getattr(alone, field)[0]), field


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"budget": 0}, "budget 0"),
        ({"width": 8}, "width of 9"),
        ({"ids": torch.zeros(2, 0, 4, dtype=torch.int64)}, "candidates"),
        ({"roots": torch.zeros(3, dtype=torch.int64)}, "candidates must be two"),
        ({"prefix": torch.zeros(2, 1, dtype=torch.int64)}, "one prefix length a root"),
    ],
)
def test_wrong_shapes_are_named(change: dict[str, object], said: str) -> None:
    given = dataclasses.replace(make(1, 2, 7, 4, 8), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        build_tree(*given.tensors, budget=given.budget, width=given.width)


def test_a_broken_mask_would_be_noticed() -> None:
    """The checks above fail on the faults that they are there for."""
    given = make(2, bs=1, depth=4, topk=3, budget=8)
    tree = by_torch(given)

    def spoilt(**fields: Tensor) -> TreeBatch:
        return dataclasses.replace(tree, **fields)

    causal = torch.ones_like(tree.mask).tril()
    with pytest.raises(AssertionError):
        check(spoilt(mask=causal), given)
    with pytest.raises(AssertionError):
        check(spoilt(next_sibling=torch.full_like(tree.next_sibling, -1)), given)
    with pytest.raises(AssertionError):
        check(spoilt(positions=tree.positions + 1), given)
