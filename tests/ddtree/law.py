"""The law a sampler must keep, on a target small enough to write its whole distribution down.

Imported by the unit tests and by bench/gpu/check_kernels.py, so it needs torch and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.tree import build_tree
from sglang_ddtree.tree_types import TreeBatch, Walk

#: Tokens of the joint distribution under test.
JOINT = 3
Sampler = Callable[[TreeBatch, Tensor, Tensor, Tensor], Walk]


@dataclass(frozen=True, slots=True)
class Law:
    """A Markov target over `vocabulary` tokens and a drafter that guesses it badly.

    Row v of `steps[d]` is the target's distribution after token v at depth d; the drafter knows
    only a marginal for each depth, as a block drafter does.
    """

    steps: Tensor  #: [D+1, V, V] probabilities
    draft: Tensor  #: [D, V] log-probabilities
    root: int

    @property
    def vocabulary(self) -> int:
        return int(self.steps.shape[-1])

    @property
    def depth(self) -> int:
        return int(self.draft.shape[0])

    def joint(self) -> Tensor:
        """Probability of each of the V^3 first three tokens."""
        first, second, third = self.steps[0, self.root], self.steps[1], self.steps[2]
        return (first[:, None, None] * second[:, :, None] * third[None, :, :]).reshape(-1)


def make(seed: int, temperature: float, vocabulary: int = 6, depth: int = 4) -> Law:
    """A random law; temperature 0 puts all mass on the best token."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(depth + 1, vocabulary, vocabulary, generator=random, dtype=torch.float64)
    if temperature == 0:
        steps = torch.nn.functional.one_hot(logits.argmax(-1), vocabulary).double()
    else:
        steps = (logits / temperature).softmax(-1)
    draft = (1.5 * torch.randn(depth, vocabulary, generator=random)).log_softmax(-1)
    return Law(steps.float(), draft, root=1)


def tree_of(law: Law, count: int, budget: int, topk: int, device: str = "cpu") -> TreeBatch:
    """`count` copies of the best-first tree of the law's drafter."""
    top = law.draft.to(device).topk(topk, -1)
    root = torch.full((count,), law.root, device=device)
    return build_tree(
        root,
        top.indices.expand(count, -1, -1).contiguous(),
        top.values.expand(count, -1, -1).contiguous(),
        torch.zeros_like(root),
        budget=budget,
        width=budget + 1,
    )


def probabilities(law: Law, tree: TreeBatch) -> Tensor:
    """The target's distribution after each node [bs, Q, V]."""
    return law.steps.to(tree.tokens.device)[tree.depths, tree.tokens]


def draws(
    law: Law, sampler: Sampler, count: int, seed: int, budget: int, topk: int, device: str = "cpu"
) -> Tensor:
    """How often each triple of first tokens came [V^3], over `count` verified trees.

    Where a step commits fewer than three tokens, the target itself draws the rest.
    """
    random = torch.Generator(device=device).manual_seed(seed)
    tree = tree_of(law, count, budget, topk, device)
    coins = torch.rand(tree.tokens.shape, generator=random, device=device)
    final = torch.rand(count, generator=random, device=device)
    walk = sampler(tree, probabilities(law, tree).contiguous(), coins, final)
    said = tree.tokens.gather(1, walk.accept_index.clamp(min=0))[:, 1:]
    # One column more than the deepest path: the token after it needs a place too.
    said = torch.nn.functional.pad(said, (0, max(1, JOINT - said.shape[1])))
    said.scatter_(1, walk.accept_len.unsqueeze(1), walk.bonus.unsqueeze(1))
    steps = law.steps.to(device)
    cell = torch.zeros_like(walk.bonus)
    before = torch.full_like(cell, law.root)
    for d in range(JOINT):
        own = torch.multinomial(steps[d][before], 1, generator=random).squeeze(1)
        before = torch.where(walk.accept_len >= d, said[:, d], own)
        cell = cell * law.vocabulary + before
    return torch.bincount(cell, minlength=law.vocabulary**JOINT).cpu()


def chi_square_p(counts: Tensor, law: Law) -> float:
    """The chance of counts at least this far from the law, rare cells pooled below 5 expected.

    A count in a cell of probability 0 makes it 0.
    """
    expected = law.joint().double() * float(counts.sum())
    if bool((counts[expected == 0] > 0).any()):
        return 0.0
    rare = expected < 5
    seen = torch.cat([counts[~rare].double(), counts[rare].sum().double().reshape(1)])
    want = torch.cat([expected[~rare], expected[rare].sum().reshape(1)])
    seen, want = seen[want > 0], want[want > 0]
    if len(want) < 2:
        return 1.0
    statistic = ((seen - want) ** 2 / want).sum()
    free = torch.tensor((len(want) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(free, statistic / 2))


def holm_rejects(p_values: list[float], level: float = 0.01) -> list[bool]:
    """Which hypotheses fall when all of them are tested at once (Holm's step-down rule)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    rejected = [False] * len(p_values)
    for place, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - place):
            break
        rejected[index] = True
    return rejected
