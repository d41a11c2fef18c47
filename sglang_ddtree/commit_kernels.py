"""`commit.accepted` in one launch. Works under TRITON_INTERPRET=1; imported on CUDA only."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglang_ddtree.commit import Accepted, TreePath

#: Rows of a pass that one program of the grid handles.
BLOCK = 128


@triton.jit(do_not_specialize=["count", "real_count", "F", "W"])
def _accepted(
    accept_index, predicted, slots, draft_slots, positions, accept_lens, tokens, places, lens,
    count, real_count, F, W, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = row < real_count
    req = row // W
    step = row - req * W
    front = (row < count) & (step < F)
    at = req * F + step
    index = tl.load(accept_index + at, mask=front & real, other=-1).to(tl.int64)
    live = front & (index >= 0)
    tl.store(tokens + row, tl.load(predicted + index, mask=live, other=0), mask=real)
    size = (count // W) * F
    own = tl.where(real, req * W, 0)
    tl.store(places + at, tl.where(live, index, own), mask=front)
    target = tl.load(slots + row, mask=live, other=0).to(tl.int64)
    tl.store(places + size + at, target, mask=front)
    source = tl.load(slots + index, mask=live, other=0).to(tl.int64)
    tl.store(places + 2 * size + at, source, mask=front)
    drafted = tl.load(draft_slots + row, mask=front & real, other=0).to(tl.int64)
    tl.store(places + 3 * size + at, drafted, mask=front)
    position = tl.load(positions + row, mask=front & real, other=0).to(tl.int64)
    tl.store(places + 4 * size + at, position, mask=front)
    length = tl.load(accept_lens + req, mask=front & real & (step == 0), other=0).to(tl.int32)
    tl.store(lens + req, length, mask=front & (step == 0))


def accepted(
    accept_index: Tensor,
    predicted: Tensor,
    slots: Tensor,
    draft_slots: Tensor,
    positions: Tensor,
    accept_lens: Tensor,
    room: TreePath | None = None,
) -> Accepted:
    """As `commit.accepted_in_torch`, bit for bit. The path lies in `room` or in new memory."""
    bs, width = positions.shape
    front = accept_index.shape[1]
    if room is None:
        room = TreePath.of(bs, front, predicted.device)
    tokens = torch.empty_like(predicted)
    count = room.lens.shape[0] * width
    if bs:
        _accepted[(triton.cdiv(count, BLOCK),)](
            accept_index.contiguous(), predicted, slots, draft_slots, positions, accept_lens,
            tokens, room.places, room.lens, count, bs * width, front, width,
            BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return Accepted(tokens, room)
