"""`commit.accepted` in one launch. Works under TRITON_INTERPRET=1; imported on CUDA only."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglang_ddtree.commit import Accepted

#: Rows of a pass that one program of the grid handles.
BLOCK = 128


@triton.jit(do_not_specialize=["count", "F", "W"])
def _accepted(
    accept_index, predicted, slots, draft_slots, positions, tokens, places,
    count, F, W, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    req = row // W
    step = row - req * W
    front = inside & (step < F)
    at = req * F + step
    index = tl.load(accept_index + at, mask=front, other=-1).to(tl.int64)
    live = front & (index >= 0)
    tl.store(tokens + row, tl.load(predicted + index, mask=live, other=0), mask=inside)
    size = (count // W) * F
    tl.store(places + at, tl.where(live, index, req * W), mask=front)
    target = tl.load(slots + row, mask=live, other=0).to(tl.int64)
    tl.store(places + size + at, target, mask=front)
    source = tl.load(slots + index, mask=live, other=0).to(tl.int64)
    tl.store(places + 2 * size + at, source, mask=front)
    own = tl.load(draft_slots + row, mask=front, other=0).to(tl.int64)
    tl.store(places + 3 * size + at, own, mask=front)
    position = tl.load(positions + row, mask=front, other=0).to(tl.int64)
    tl.store(places + 4 * size + at, position, mask=front)


def accepted(
    accept_index: Tensor, predicted: Tensor, slots: Tensor, draft_slots: Tensor, positions: Tensor
) -> Accepted:
    """As `commit.accepted_in_torch`, bit for bit."""
    bs, width = positions.shape
    front = accept_index.shape[1]
    tokens = torch.empty_like(predicted)
    places = torch.empty((5, bs * front), dtype=torch.int64, device=predicted.device)
    if bs:
        _accepted[(triton.cdiv(bs * width, BLOCK),)](
            accept_index.contiguous(), predicted, slots, draft_slots, positions, tokens, places,
            bs * width, front, width, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    rows, targets, sources, own, where = places.unbind(0)
    return Accepted(tokens, rows, targets, sources, own.view(bs, front), where)
