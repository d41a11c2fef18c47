"""Bug 2: offsets into the flat mask that count the drafter's block instead of the tree's width.

The first request of a batch is right all the same, and the text of the others stays plausible: so
the reader here is a whole little model that decodes, and its tokens are held against decoding one
by one. Budget 12 and block 8, since where the two agree there is no bug to see.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from sglang_ddtree import tree, tree_kernels, tree_torch
from sglang_ddtree.tree import build_tree, greedy_walk, tail_rows
from tests.ddtree.candidates import make

BUDGET, BLOCK, TOPK = 12, 8, 4
WIDTH = BUDGET + 1
VOCABULARY, HIDDEN = 40, 24
PREFIXES = (11, 5, 17)
Starts = Callable[[list[int]], list[int]]


def starts(prefixes: list[int], rows: int = WIDTH) -> list[int]:
    """Where each request's mask starts, counted request by request as the engine's reader does."""
    found, at = [], 0
    for prefix in prefixes:
        found.append(at)
        at += rows * (prefix + rows)
    return found


def starts_by_block(prefixes: list[int]) -> list[int]:
    """What the Triton attention of older engines reads by."""
    return starts(prefixes, BLOCK)


def rows_by_block(prefix_lens: Tensor, width: int) -> Tensor:
    """`tail_rows` with the block in the place of the width."""
    rows = tail_rows(prefix_lens, BLOCK)
    return rows[:, :1] + torch.arange(width) * (prefix_lens.unsqueeze(1) + BLOCK)


@dataclass
class Model:
    """Two layers of attention that read the mask of a verify pass from the flat buffer."""

    starts: Starts = starts
    random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(3))

    def __post_init__(self) -> None:
        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=self.random, dtype=torch.float64)

        self.embed, self.where = draw(VOCABULARY, HIDDEN), draw(256, HIDDEN)
        self.head = draw(HIDDEN, VOCABULARY)
        self.key, self.value = draw(2, HIDDEN, HIDDEN) / 60, draw(2, HIDDEN, HIDDEN) / 3

    def logits(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        x = self.embed[ids] + self.where[positions]
        for key, value in zip(self.key, self.value, strict=True):
            scores = (x @ key @ x.T).masked_fill(~mask, -torch.inf)
            x = x / 3 + scores.softmax(-1) @ (x @ value)
        return x @ self.head

    def after(self, text: list[int]) -> int:
        """The most probable next token, with no speculation."""
        n = len(text)
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        return int(self.logits(torch.tensor(text), torch.arange(n), causal)[-1].argmax())

    def alone(self, text: list[int], count: int) -> list[int]:
        said = list(text)
        for _ in range(count):
            said.append(self.after(said))
        return said[len(text) :]

    def verify(self, texts: list[list[int]], batch: tree.TreeBatch, flat: Tensor) -> Tensor:
        """The target's choice after each node [bs, Q]; masks are found by `self.starts`."""
        prefixes = [len(t) - 1 for t in texts]
        choices = []
        for n, start in enumerate(self.starts(prefixes)):
            prefix, size = prefixes[n], WIDTH * (prefixes[n] + WIDTH)
            read = flat[start : start + size].view(WIDTH, prefix + WIDTH).bool()
            whole = torch.ones(prefix + WIDTH, prefix + WIDTH, dtype=torch.bool).tril()
            whole[prefix:] = read
            ids = torch.cat([torch.tensor(texts[n][:-1]), batch.tokens[n]])
            positions = torch.cat([torch.arange(prefix), batch.positions[n]])
            choices.append(self.logits(ids, positions, whole)[prefix:].argmax(-1))
        return torch.stack(choices)


def drafted(model: Model, texts: list[list[int]], random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Candidates [bs, D, K] of a good drafter: the model's own token is the first of them in nine
    positions out of ten and the second in the others."""
    depth = BLOCK - 1
    ids = torch.stack(
        [torch.randperm(VOCABULARY, generator=random)[:TOPK] for _ in range(len(texts) * depth)]
    ).view(len(texts), depth, TOPK)
    own = torch.tensor([model.alone(t, depth) for t in texts])
    place = (torch.rand(own.shape, generator=random) > 0.9).long()
    ids = torch.where(ids == own.unsqueeze(-1), (ids + 1) % VOCABULARY, ids)
    ids.scatter_(2, place.unsqueeze(-1), own.unsqueeze(-1))
    lp = torch.tensor([0.6, 0.25, 0.1, 0.05]).log().expand(ids.shape)
    return ids, lp + 0.01 * torch.rand(lp.shape, generator=random)


def decode(model: Model, tokens: int = 24) -> tuple[list[list[int]], float]:
    """Greedy text of three requests of unequal length, and tokens committed a step."""
    random = torch.Generator().manual_seed(8)
    begun = [torch.randint(VOCABULARY, (n + 1,), generator=random).tolist() for n in PREFIXES]
    texts, steps, committed = [list(t) for t in begun], 0, 0
    while min(len(t) - len(b) for t, b in zip(texts, begun, strict=True)) < tokens:
        ids, lp = drafted(Model(), texts, random)
        prefix = torch.tensor([len(t) - 1 for t in texts])
        cells = int((WIDTH * (prefix + WIDTH)).sum())
        flat = torch.ones(cells + 4 * WIDTH * WIDTH, dtype=torch.uint8)
        batch = build_tree(
            torch.tensor([t[-1] for t in texts]), ids, lp, prefix,
            budget=BUDGET, width=WIDTH, mask_tail=flat,
        )  # fmt: skip
        walk = greedy_walk(batch, model.verify(texts, batch, flat))
        for n, text in enumerate(texts):
            path = walk.accept_index[n, 1 : int(walk.accept_len[n]) + 1]
            text += [*batch.tokens[n, path].tolist(), int(walk.bonus[n])]
            committed += len(path) + 1
        steps += len(texts)
    said = [t[len(b) : len(b) + tokens] for t, b in zip(texts, begun, strict=True)]
    return said, committed / steps


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    random = torch.Generator().manual_seed(8)
    begun = [torch.randint(VOCABULARY, (n + 1,), generator=random).tolist() for n in PREFIXES]
    return [Model().alone(t, 24) for t in begun]


@pytest.fixture(scope="module")
def right() -> tuple[list[list[int]], float]:
    return decode(Model())


def test_the_tree_decodes_what_the_model_alone_would(
    wanted: list[list[int]], right: tuple[list[list[int]], float]
) -> None:
    said, commit = right
    assert said == wanted
    assert all(len(set(text)) > 4 for text in wanted), "a text that repeats itself hides faults"
    assert commit > 4, "the drafter is right often enough for masks to matter"


@pytest.mark.parametrize("fault", ["reader", "writer"])
def test_offsets_of_a_block_give_other_tokens_and_short_commits(
    fault: str,
    wanted: list[list[int]],
    right: tuple[list[list[int]], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bug put back on either side: it must not go unseen."""
    if fault == "writer":
        monkeypatch.setattr(tree, "tail_rows", rows_by_block)
    said, commit = decode(Model(starts_by_block if fault == "reader" else starts))
    assert said[1:] != wanted[1:]
    assert commit < 0.8 * right[1]


def test_rows_start_where_a_count_from_request_to_request_puts_them() -> None:
    prefix = torch.tensor(PREFIXES)
    wanted = [
        [start + p + row * (p + WIDTH) for row in range(WIDTH)]
        for p, start in zip(PREFIXES, starts(list(PREFIXES)), strict=True)
    ]
    assert tail_rows(prefix, WIDTH).tolist() == wanted
    assert rows_by_block(prefix, WIDTH).tolist() != wanted


def tail_as_read(module: ModuleType) -> tuple[Tensor, Tensor]:
    """What a reader finds in the tail that the kernel of `module` wrote, and the trees' masks."""
    given = make(6, 3, BLOCK - 1, TOPK, BUDGET)
    prefixes = given.prefix.tolist()
    flat = torch.zeros(sum(WIDTH * (p + WIDTH) for p in prefixes) + 999, dtype=torch.uint8)
    module.search(*given.tensors, BUDGET, WIDTH, tail=flat)
    read = [
        flat[start : start + WIDTH * (p + WIDTH)].view(WIDTH, -1)[:, p:].bool()
        for p, start in zip(prefixes, starts(prefixes), strict=True)
    ]
    return torch.stack(read), tree_torch.search(*given.tensors, BUDGET, WIDTH).mask


def test_the_kernel_writes_where_the_reader_reads() -> None:
    read, mask = tail_as_read(tree_kernels)
    assert torch.equal(read, mask)


def test_a_kernel_that_counts_the_block_is_found_out(tmp_path: Path) -> None:
    """The kernel's source with the bug put back, as a module of its own."""
    source = inspect.getsource(tree_kernels)
    right = "(tl.sum(before, axis=0) + req.to(tl.int64) * Q) * Q"
    assert source.count(right) == 1
    faulty = tmp_path / "kernels_by_block.py"
    faulty.write_text(source.replace(right, right.replace("Q", str(BLOCK))))
    spec = importlib.util.spec_from_file_location("kernels_by_block", faulty)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    read, mask = tail_as_read(module)
    assert not torch.equal(read, mask)
