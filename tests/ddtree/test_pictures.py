"""The pictures of docs/explanation/ddtree.md show the tree that the search would build."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sglang_ddtree.tree import build_tree, tail_rows, write_mask_tail

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", REPO / "tools/draw_tree_masks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["draw"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_script_draws(drawing: ModuleType) -> None:
    for name, content in drawing.pictures().items():
        assert (REPO / "docs/explanation/img" / name).read_text() == content, name


def test_tree_mask_and_offsets_are_those_of_the_package(drawing: ModuleType) -> None:
    nodes = drawing.search()
    probs = torch.tensor([[[p for _, p in step] for step in drawing.STEPS]] * 2)
    prefix = torch.tensor([2, 3])
    ids = torch.arange(probs[0].numel()).view(1, *probs.shape[1:]).expand(2, -1, -1)
    tree = build_tree(
        torch.tensor([99, 99]), ids.contiguous(), probs.log(), prefix,
        budget=drawing.BUDGET, width=drawing.BUDGET + 1,
    )  # fmt: skip
    assert tree.parents[0].tolist() == [n.parent for n in nodes]
    assert tree.mask[0].tolist() == drawing.ancestors(nodes)
    drawn = torch.tensor(drawing.flat(nodes, (2, 3)))
    flat = torch.ones_like(drawn)
    write_mask_tail(tree, prefix, flat)
    assert torch.equal(flat, drawn)
    right = int(tail_rows(prefix, tree.width)[1, 0]) - 3
    assert right != drawing.BLOCK * (2 + drawing.BLOCK), "the picture of bug 2 shows a wrong place"
