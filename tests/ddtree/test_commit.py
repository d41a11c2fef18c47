"""The accepted path to the front: the kernel against torch, and torch against what it is for."""

from __future__ import annotations

import pytest
import torch

from sglang_ddtree import commit_kernels, hooks
from sglang_ddtree.commit import Accepted, accepted_in_torch, move
from sglang_ddtree.metrics import accepted_nodes


def batch(bs: int, width: int, front: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Random paths with the root first and rows that ascend, as a tree's are."""
    rng = torch.Generator().manual_seed(seed)
    index = torch.full((bs, front), -1, dtype=torch.int32)
    for req in range(bs):
        length = int(torch.randint(1, front + 1, (), generator=rng))
        rest = torch.randperm(width - 1, generator=rng)[: length - 1].sort().values + 1
        path = torch.cat([torch.zeros(1, dtype=torch.int64), rest])
        index[req, :length] = (req * width + path).to(torch.int32)
    slots = torch.randperm(bs * width * 3, generator=rng)[: bs * width] + 1
    predicted = torch.randint(0, 5000, (bs * width,), generator=rng, dtype=torch.int32)
    prefix = torch.randint(1, 900, (bs, 1), generator=rng)
    return index, predicted, slots, slots + 7000, prefix + torch.arange(width)


@pytest.mark.parametrize(
    ("bs", "width", "front"), [(1, 8, 8), (3, 9, 8), (5, 16, 8), (40, 9, 8), (2, 2, 2), (7, 48, 8)]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_kernel_says_what_torch_says(bs: int, width: int, front: int, seed: int) -> None:
    given = batch(bs, width, front, seed)
    wanted, found = accepted_in_torch(*given), commit_kernels.accepted(*given)
    for name in Accepted.__slots__:
        one, two = getattr(wanted, name), getattr(found, name)
        assert one.dtype == two.dtype and one.shape == two.shape, name
        assert torch.equal(one, two), name


def test_nothing_accepted_but_the_root_moves_the_root_onto_itself() -> None:
    index, predicted, slots, draft_slots, positions = batch(2, 9, 8, 3)
    index[:, 1:] = -1
    path = accepted_in_torch(index, predicted, slots, draft_slots, positions)
    assert path.tokens.view(2, 9)[:, 0].tolist() == predicted.view(2, 9)[:, 0].tolist()
    assert path.tokens.view(2, 9)[:, 1:].count_nonzero() == 0
    moved = (path.targets != path.sources).sum()
    assert moved == 0
    assert set(path.targets.tolist()) == {0, *slots.view(2, 9)[:, 0].tolist()}


class Pool:
    """Values by slot; moved as SGLang moves them, all read before any is written."""

    def __init__(self, size: int) -> None:
        self.values = torch.arange(size)

    def get_kvcache(self) -> Pool:
        return self

    def move_kv_cache(self, targets: torch.Tensor, sources: torch.Tensor) -> None:
        self.values[targets] = self.values[sources]


def test_a_chain_reader_finds_the_path_in_the_first_slots() -> None:
    index, predicted, slots, draft_slots, positions = batch(6, 16, 8, 5)
    pool = Pool(400)
    path = accepted_in_torch(index, predicted, slots, draft_slots, positions)
    move(path, pool)
    for req in range(6):
        rows = [int(i) for i in index[req] if i >= 0]
        first = slots.view(6, 16)[req, : len(rows)]
        assert pool.values[first].tolist() == [int(slots[r]) for r in rows]
        assert path.tokens.view(6, 16)[req, : len(rows)].tolist() == predicted[rows].tolist()
    assert pool.values[0] == 0


def test_a_step_names_the_nodes_of_each_path_as_the_search_took_them() -> None:
    index = torch.tensor([[0, 1, 3, -1], [8, -1, -1, -1], [16, 18, 19, 23]])
    assert accepted_nodes(index, 8) == [[1, 3], [], [2, 3, 7]]


class Worker:
    """Stands for a target worker of SGLang's."""


def test_states_are_committed_but_where_a_model_has_none() -> None:
    seen: list[tuple[object, ...]] = []
    hybrid, plain = Worker(), Worker()
    hooks.stateless(plain)
    for worker in (hybrid, plain, hybrid):
        hooks.commit_states(lambda *given: seen.append(given), worker, "batch", "lens")
    assert seen == [(hybrid, "batch", "lens")] * 2
    target = "sglang.srt.speculative.eagle_worker_common.commit_mamba_states_after_verify"
    assert dict(hooks.HOOKS)[target] is hooks.commit_states
