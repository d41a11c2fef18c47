"""After a verify pass: the accepted path moves to the front of each request's rows.

What follows a step reads a chain: the scheduler the first tokens of a request's rows, later steps
the keys and values in its first slots, the drafter the hidden states. SGLang's own compaction does
the same in many launches more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Accepted:
    """Where the accepted rows of a batch are, and what goes where. bs requests, F = max_depth + 1.

    Places beyond a path point at a row of the same request and at slot 0, which holds nothing.
    """

    tokens: Tensor  # [bs * width], as predicted: the path's first in each request, then zeros
    rows: Tensor  # [bs * F] int64, rows of the pass
    targets: Tensor  # [bs * F] int64, the target's slots to write
    sources: Tensor  # [bs * F] int64, the slots that hold the path now
    draft_slots: Tensor  # [bs, F] int64, the drafter's slots
    positions: Tensor  # [bs * F] int64


def accepted(
    accept_index: Tensor, predicted: Tensor, slots: Tensor, draft_slots: Tensor, positions: Tensor
) -> Accepted:
    """accept_index [bs, F]: accepted rows of the whole batch in order, -1 beyond the path.

    predicted, slots and draft_slots [bs * width]; positions [bs, width], a window's own, which
    count up from the prefix. Nothing is read back to the host.
    """
    given = (accept_index, predicted, slots, draft_slots, positions)
    if accept_index.is_cuda:
        from sglang_ddtree import commit_kernels  # Triton is there on CUDA only

        return commit_kernels.accepted(*given)
    return accepted_in_torch(*given)


def accepted_in_torch(
    accept_index: Tensor, predicted: Tensor, slots: Tensor, draft_slots: Tensor, positions: Tensor
) -> Accepted:
    """`accepted` without a kernel: the CPU engine's way, which the kernel is held against."""
    bs, width = positions.shape
    front = accept_index.shape[1]
    index = accept_index.to(torch.int64)
    live = index >= 0
    own = torch.arange(bs, device=index.device).unsqueeze(1) * width
    rows = torch.where(live, index, own)
    tokens = torch.zeros_like(predicted).view(bs, width)
    tokens[:, :front] = torch.where(live, predicted[rows], 0)
    windows, nothing = slots.view(bs, width)[:, :front], torch.zeros_like(rows)
    return Accepted(
        tokens=tokens.view(-1),
        rows=rows.view(-1),
        targets=torch.where(live, windows, nothing).view(-1),
        sources=torch.where(live, slots[rows], nothing).view(-1),
        draft_slots=draft_slots.view(bs, width)[:, :front].to(torch.int64).contiguous(),
        positions=positions[:, :front].reshape(-1),
    )


def move(path: Accepted, token_to_kv_pool_allocator: Any) -> None:
    """Move the target's keys and values of the path to the front of each request's slots."""
    token_to_kv_pool_allocator.get_kvcache().move_kv_cache(path.targets, path.sources)
