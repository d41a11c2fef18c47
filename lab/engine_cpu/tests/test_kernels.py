"""Each kernel against a slow, obvious statement of what it has to do."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from ddops_sglang_cpu import kernels

SEEDS = range(30)


class Tree:
    """A random draft tree: parents come before their children, siblings have different tokens."""

    def __init__(self, rng: random.Random, n: int, vocabulary: int = 5) -> None:
        self.parent = [-1]
        self.token = [rng.randrange(vocabulary)]
        while len(self.parent) < n:
            parent = rng.randrange(len(self.parent))
            free = set(range(vocabulary)) - {self.token[c] for c in self.children(parent)}
            if free:
                self.token.append(rng.choice(sorted(free)))
                self.parent.append(parent)

    def children(self, node: int) -> list[int]:
        return [k for k, parent in enumerate(self.parent) if parent == node]

    def ancestors(self, node: int) -> Iterator[int]:
        while node != -1:
            yield node
            node = self.parent[node]

    def mask(self) -> torch.Tensor:
        n = len(self.parent)
        mask = torch.zeros(n, n, dtype=torch.bool)
        for i in range(n):
            mask[i, list(self.ancestors(i))] = True
        return mask

    def links(self) -> tuple[list[int], list[int]]:
        """First child and next sibling of each node, -1 for none."""
        first = [min(self.children(i), default=-1) for i in range(len(self.parent))]
        siblings = [self.children(parent) if parent != -1 else [] for parent in self.parent]
        following = [
            min((k for k in family if k > i), default=-1) for i, family in enumerate(siblings)
        ]
        return first, following


def greedy_path(tree: Tree, target: list[int], depth: int) -> list[int]:
    """Follow the child that holds the target's token, as far as there is one."""
    path = [0]
    while len(path) < depth:
        match = [k for k in tree.children(path[-1]) if tree.token[k] == target[path[-1]]]
        if not match:
            break
        path.append(match[0])
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_reconstruct_indices(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    bs, n = rng.randint(1, 4), rng.randint(1, 12)
    trees = [Tree(rng, n, vocabulary=n + 1) for _ in range(bs)]
    lengths = [rng.randint(0, 50) for _ in range(bs)]
    positions = torch.full((bs * n,), -9)
    index, first, following = (torch.full((bs, n), -9) for _ in range(3))
    masks = torch.cat([tree.mask().reshape(-1) for tree in trees])
    kernels.reconstruct_indices_from_tree_mask(
        masks, torch.tensor(lengths), positions, index, first, following, bs, n
    )
    assert index.reshape(-1).tolist() == list(range(bs * n))
    for b, tree in enumerate(trees):
        assert positions.view(bs, n)[b].tolist() == [
            lengths[b] + len(list(tree.ancestors(i))) - 1 for i in range(n)
        ]
        assert (first[b].tolist(), following[b].tolist()) == tree.links()


def test_reconstruct_refuses_another_size() -> None:
    out = torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="17 cells"):
        kernels.reconstruct_indices_from_tree_mask(
            torch.ones(17, dtype=torch.bool), torch.tensor([3]), out, out, out, out, 1, 4
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_verify_tree_greedy(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    bs, n = rng.randint(1, 4), rng.randint(1, 16)
    depth = rng.randint(1, n)
    trees = [Tree(rng, n) for _ in range(bs)]
    target = torch.tensor([[rng.randrange(5) for _ in range(n)] for _ in range(bs)])
    links = [tree.links() for tree in trees]
    predicts = torch.full((bs * n,), -7, dtype=torch.int32)
    accept_index = torch.full((bs, depth), -1, dtype=torch.int32)
    accepted = torch.full((bs,), -7, dtype=torch.int32)
    kernels.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=torch.tensor([tree.token for tree in trees]),
        retrive_index=torch.arange(bs * n).view(bs, n),
        retrive_next_token=torch.tensor([first for first, _ in links]),
        retrive_next_sibling=torch.tensor([following for _, following in links]),
        target_predict=target,
    )
    expected = torch.full((bs * n,), -7, dtype=torch.int32)
    for b, tree in enumerate(trees):
        path = greedy_path(tree, target[b].tolist(), depth)
        assert accept_index[b].tolist() == [b * n + node for node in path] + [-1] * (
            depth - len(path)
        )
        assert accepted[b] == len(path) - 1
        for node in path:
            expected[b * n + node] = target[b, node].int()
    assert predicts.tolist() == expected.tolist()


def test_verify_tree_greedy_refuses_a_cycle() -> None:
    with pytest.raises(ValueError, match="cycle"):
        kernels.verify_tree_greedy_cpu(
            predicts=torch.zeros(3, dtype=torch.int32),
            accept_index=torch.zeros(1, 3, dtype=torch.int32),
            accept_token_num=torch.zeros(1, dtype=torch.int32),
            candidates=torch.tensor([[1, 2, 3]]),
            retrive_index=torch.tensor([[0, 1, 2]]),
            retrive_next_token=torch.tensor([[1, -1, -1]]),
            retrive_next_sibling=torch.tensor([[-1, 2, 1]]),
            target_predict=torch.tensor([[9, 9, 9]]),
        )


def test_assign_then_read_back() -> None:
    pool = torch.zeros(4, 10, dtype=torch.int32)
    requests, start, end = torch.tensor([3, 1]), torch.tensor([2, 0]), torch.tensor([5, 4])
    slots = torch.tensor([50, 51, 52, 60, 61, 62, 63])
    kernels.assign_req_to_token_pool_cpu(requests, pool, start, end, slots, 10)
    assert pool.tolist() == [
        [0] * 10,
        [60, 61, 62, 63] + [0] * 6,
        [0] * 10,
        [0, 0, 50, 51, 52] + [0] * 5,
    ]
    out = torch.full((9,), -1, dtype=torch.int64)
    kernels.assign_extend_cache_locs_cpu(requests, pool, start, end, out, 10)
    assert out.tolist() == [50, 51, 52, 60, 61, 62, 63, -1, -1]


def test_assign_of_nothing() -> None:
    pool = torch.zeros(1, 3, dtype=torch.int32)
    zero = torch.tensor([0])
    kernels.assign_req_to_token_pool_cpu(
        zero, pool, zero, zero, torch.tensor([], dtype=torch.int64), 3
    )
    assert pool.tolist() == [[0, 0, 0]]


def test_copy_of_overlapping_rows() -> None:
    buffers = [
        torch.arange(12, dtype=torch.float32).view(6, 2),
        torch.arange(18, dtype=torch.bfloat16).view(6, 3),
    ]
    source, target = (
        torch.tensor([2, 0, 5]),
        torch.tensor([1, 2, 0]),
    )  # a chain: row 2 is read and written
    expected = [buffer.clone() for buffer in buffers]
    for buffer in expected:
        buffer[target] = buffer[source].clone()
    kernels.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers]),
        torch.tensor([buffer.stride(0) * buffer.element_size() for buffer in buffers]),
        target,
        source,
    )
    for buffer, wanted in zip(buffers, expected, strict=True):
        assert torch.equal(buffer, wanted)


def test_fill_accept_out_cache_loc() -> None:
    accept = torch.tensor([[0, 2, -1], [4, -1, -1]])
    out = torch.full((6,), -5)
    kernels.fill_accept_out_cache_loc_cpu(accept, torch.tensor([10, 11, 12, 13, 14, 15]), out)
    assert out.tolist() == [10, 12, 14, -5, -5, -5]


@pytest.mark.parametrize("seed", SEEDS)
def test_bonus_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    stride, bs = 5, 4
    accepted = torch.randint(1000, (bs, stride), generator=generator, dtype=torch.int32)
    lens = torch.randint(1, stride + 1, (bs,), generator=generator, dtype=torch.int32)
    for tokens in (accepted, accepted.view(-1)):
        bonus = torch.full((bs,), -1, dtype=torch.int32)
        kernels.fill_bonus_tokens_cpu(tokens, lens, bonus, stride)
        assert bonus.tolist() == [int(accepted[i, n - 1]) for i, n in enumerate(lens.tolist())]
