"""Four searches, one tree: the batched one, a priority queue, a fixed table, and level by level."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, settings
from hypothesis import given as when

from sglang_ddtree import tree_kernels, tree_ref, tree_torch
from sglang_ddtree.tree import build_tree, tail_rows
from sglang_ddtree.tree_ref import Ranks
from sglang_ddtree.tree_types import Room
from tests.ddtree.candidates import Given, givens, make, named


def total(cost: torch.Tensor, ranks: Ranks) -> float:
    out = torch.zeros((), dtype=torch.float32)
    for depth, rank in enumerate(ranks):
        out = out + cost[depth, rank]
    return float(out)


@when(givens())
def test_the_search_takes_the_nodes_of_the_priority_queue_in_its_order(given: Given) -> None:
    tree = tree_torch.search(*given.tensors, given.budget, given.width)
    for n in range(len(given.roots)):
        assert named(tree, given, n) == tree_ref.heap(given.cost(n), given.budget)


@settings(max_examples=60)
@when(givens(most=16))
def test_staircase_and_levels_find_trees_of_the_same_cost(given: Given) -> None:
    for n in range(len(given.roots)):
        cost = given.cost(n)
        best = tree_ref.heap(cost, given.budget)
        stairs = tree_ref.staircase(cost, given.budget)
        levels = tree_ref.levels(cost, given.budget)
        wanted = sorted(total(cost, r) for r in best)
        for other in (stairs, levels):
            assert sorted(total(cost, r) for r in other) == wanted
            assert all(r[:-1] in other for r in other if len(r) > 1), "a node without its parent"
        if len(set(wanted)) == len(wanted) and len(best) == given.budget:
            worst = sorted(total(cost, r) for r in tree_ref.heap(cost, given.budget + 1))
            if worst[-1] > wanted[-1]:  # no tie at the edge either: then there is one best tree
                assert stairs == levels == set(best)


@when(givens())
def test_no_tree_of_the_same_size_is_more_probable(given: Given) -> None:
    """Each node left out costs at least as much as the dearest one taken."""
    cost = given.cost(0)
    taken = tree_ref.heap(cost, given.budget)
    assume(len(taken) == given.budget)
    inside, dearest = set(taken), max(total(cost, r) for r in taken)
    edge = [
        (*r[:-1], r[-1] + 1) for r in taken if r[-1] + 1 < cost.shape[1]
    ] + [(*r, 0) for r in taken if len(r) < cost.shape[0]]  # fmt: skip
    assert all(total(cost, r) >= dearest for r in edge if r not in inside)


@pytest.mark.parametrize(
    ("depth", "k", "budget", "size"),
    [(7, 4, 8, 43), (7, 8, 8, 53), (7, 4, 16, 189), (7, 16, 16, 285), (15, 4, 8, 44)],
)
def test_the_fixed_table_has_its_size(depth: int, k: int, budget: int, size: int) -> None:
    assert len(tree_ref.stairs(depth, k, budget)) == size


@pytest.mark.parametrize("kind", ["plain", "ties", "repeats", "broken"])
@pytest.mark.parametrize(("budget", "topk", "bs"), [(1, 1, 1), (7, 4, 2), (9, 8, 3), (15, 3, 2)])
def test_the_kernel_is_the_search_bit_for_bit(kind: str, budget: int, topk: int, bs: int) -> None:
    given = make(budget * topk + bs, bs, 7, topk, budget, kind, spare=budget % 3)
    wanted = tree_torch.search(*given.tensors, given.budget, given.width)
    rows = given.width * (given.prefix + given.width)
    tail = torch.full((int(rows.sum()),), 7, dtype=torch.uint8)
    got = tree_kernels.search(*given.tensors, given.budget, given.width, tail=tail)
    for field in ("tokens", "parents", "depths", "positions", "next_token", "next_sibling", "mask",
                  "active"):  # fmt: skip
        assert torch.equal(getattr(got, field), getattr(wanted, field)), field
    assert got.max_depth == wanted.max_depth
    cells = tail_rows(given.prefix, given.width).unsqueeze(2) + torch.arange(given.width)
    assert torch.equal(tail[cells].bool(), wanted.mask)
    untouched = torch.ones_like(tail, dtype=torch.bool)
    untouched[cells.flatten()] = False
    assert bool((tail[untouched] == 7).all()), "prefix cells were written"


@pytest.mark.parametrize("search", [tree_kernels.search, "torch"])
def test_trees_in_a_room_lie_where_they_lay_before(search: object) -> None:
    """A captured graph writes them at one place, for batches of up to its size."""
    room = Room.of(5, 7, 4, 9, torch.device("cpu"))
    for plane in (room.nodes, room.mask, room.active, room.cost, room.ident):
        plane.fill_(7)
    for seed, bs in ((1, 3), (2, 5), (3, 1)):
        given = make(seed, bs, 7, 4, 8)
        wanted = tree_torch.search(*given.tensors, 8, 9)
        if callable(search):
            got = search(*given.tensors, 8, 9, room=room)
        else:
            got = build_tree(*given.tensors, budget=8, width=9, room=room)
        assert got.tokens.data_ptr() == room.nodes.data_ptr()
        later = room.trees(bs, got.max_depth)
        for field in ("tokens", "parents", "depths", "positions", "next_token", "next_sibling",
                      "mask", "active"):  # fmt: skip
            assert torch.equal(getattr(got, field), getattr(wanted, field)), field
            assert getattr(later, field).data_ptr() == getattr(got, field).data_ptr()


def test_an_empty_batch_is_an_empty_tree() -> None:
    given = make(0, 0, 7, 4, 8)
    assert tree_kernels.search(*given.tensors, 8, 9).tokens.shape == (0, 9)


def test_more_rows_than_the_kernel_has_bits_for_are_refused() -> None:
    given = make(0, 1, 7, 4, 140)
    with pytest.raises(ValueError, match="at most 128"):
        tree_kernels.search(*given.tensors, 140, 141)
