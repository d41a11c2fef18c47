"""Bug 3: sampling along a tree must keep the target's law exactly, at every temperature.

Each law is a small Markov target whose joint distribution of three tokens is written down in full
and compared by chi-square, over several seeds at once (Holm). The control accepts a drafted token
with probability p/q, as is right for a *sampled* draft and wrong for a best-first tree: the same
test must throw it out.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglang_ddtree.sampling import target_only_walk
from sglang_ddtree.tree import at, greedy_walk
from sglang_ddtree.tree_types import TreeBatch, Walk
from tests.ddtree import law

SEEDS = (11, 12, 13, 14, 15)
DRAWS = 40_000
BUDGET, TOPK = 8, 4


def p_over_q(what: law.Law) -> law.Sampler:
    """Acceptance by the drafter's probability: each child in turn with min(1, p/q); where all are
    rejected, a token of max(p - q, 0). Exact if the children were samples of q. They are not."""

    def walk(tree: TreeBatch, probs: Tensor, coins: Tensor, final: Tensor) -> Walk:
        row = torch.arange(len(final))
        last = torch.zeros_like(tree.active)
        length, alive = torch.zeros_like(last), torch.ones_like(last, dtype=torch.bool)
        path = [last]
        for depth in range(tree.max_depth):
            q = what.draft[depth].exp()
            child, taken = at(tree.next_token, last), torch.full_like(last, -1)
            for _ in range(tree.width - 1):
                token = at(tree.tokens, child)
                ratio = probs[row, last, token] / q[token]
                hit = alive & (child >= 0) & (taken < 0) & (at(coins, child) < ratio)
                taken = torch.where(hit, child, taken)
                child = torch.where(child >= 0, at(tree.next_sibling, child), child)
            alive = taken >= 0
            last, length = torch.where(alive, taken, last), length + alive
            path.append(taken)
        return Walk(torch.stack(path, 1), length, rest(tree, probs, final, last))

    def rest(tree: TreeBatch, probs: Tensor, final: Tensor, last: Tensor) -> Tensor:
        row = torch.arange(len(final))
        p, depth = probs[row, last], at(tree.depths, last)
        q = torch.nn.functional.pad(what.draft.exp(), (0, 0, 0, 1))[depth]
        drafted = at(tree.next_token, last) >= 0
        left = torch.where(drafted.unsqueeze(1), (p - q).clamp(min=0), p)
        total = left.cumsum(1)
        return (total <= final.unsqueeze(1) * total[:, -1:]).sum(1).clamp(max=p.shape[1] - 1)

    return walk


def children_left_in(tree: TreeBatch, probs: Tensor, coins: Tensor, final: Tensor) -> Walk:
    """Our walk, but the token after a rejection is drawn from the whole of the target's law."""
    walk = target_only_walk(tree, probs, coins, final)
    last = walk.accept_index.gather(1, walk.accept_len.unsqueeze(1)).squeeze(1)
    total = probs[torch.arange(len(final)), last].cumsum(1)
    bonus = (total <= final.unsqueeze(1) * total[:, -1:]).sum(1).clamp(max=probs.shape[2] - 1)
    return Walk(walk.accept_index, walk.accept_len, bonus)


def p_values(sampler_of: object, temperature: float, draws: int = DRAWS) -> list[float]:
    found = []
    for seed in SEEDS:
        what = law.make(seed, temperature)
        sampler = sampler_of(what)  # type: ignore[operator]
        counts = law.draws(what, sampler, draws, seed, BUDGET, TOPK)
        assert int(counts.sum()) == draws
        found.append(law.chi_square_p(counts, what))
    return found


def ours(what: law.Law) -> law.Sampler:
    del what
    return target_only_walk


def test_the_tree_sampler_keeps_the_law_at_every_temperature() -> None:
    found = [p for t in (0.0, 0.6, 1.0) for p in p_values(ours, t)]
    assert not any(law.holm_rejects(found)), found
    assert found[: len(SEEDS)] == [1.0] * len(SEEDS), "temperature 0 leaves one outcome"


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_acceptance_by_the_drafters_probability_is_thrown_out(temperature: float) -> None:
    found = p_values(p_over_q, temperature)
    assert all(law.holm_rejects(found)), found


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_drawing_a_rejected_child_again_is_thrown_out(temperature: float) -> None:
    found = p_values(lambda _: children_left_in, temperature)
    assert all(law.holm_rejects(found)), found


def test_the_control_is_right_where_its_assumption_holds() -> None:
    """p/q with q = p keeps every child that is offered: then only the tree's shape speaks, and the
    first child is always taken. So the control is fair: what the test rejects is the assumption."""
    what = law.make(11, 1.0)
    tree = law.tree_of(what, 64, BUDGET, TOPK)
    q = torch.stack([what.draft[min(int(d), what.depth - 1)].exp() for d in tree.depths[0]])
    probs = q.unsqueeze(0).expand(64, -1, -1)
    coins, final = torch.rand(64, tree.width), torch.rand(64)
    walk = p_over_q(what)(tree, probs, coins, final)
    first = [0]
    while int(tree.next_token[0, first[-1]]) >= 0:
        first.append(int(tree.next_token[0, first[-1]]))
    assert walk.accept_len.tolist() == [len(first) - 1] * 64


def test_a_certain_target_is_walked_as_greedily_as_argmax_would() -> None:
    what = law.make(12, 0.0)
    tree = law.tree_of(what, 200, BUDGET, TOPK)
    probs = law.probabilities(what, tree)
    random = torch.Generator().manual_seed(1)
    coins = torch.rand(tree.tokens.shape, generator=random)
    sampled = target_only_walk(tree, probs, coins, torch.rand(200, generator=random))
    greedy = greedy_walk(tree, probs.argmax(-1))
    assert torch.equal(sampled.accept_index, greedy.accept_index)
    assert torch.equal(sampled.accept_len, greedy.accept_len)
    assert torch.equal(sampled.bonus, greedy.bonus)


def test_holm_rejects_step_by_step() -> None:
    assert law.holm_rejects([0.001, 0.2, 0.004], 0.01) == [True, False, True]
    assert law.holm_rejects([0.006, 0.5, 0.001], 0.01) == [False, False, True]
    assert law.holm_rejects([], 0.01) == []
