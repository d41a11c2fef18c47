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
class TreePath:
    """Where the accepted rows of a batch are, and what goes where. bs requests, F = max_depth + 1.

    Places beyond a path point at a row of the same request and at slot 0, which holds nothing. A
    request that only fills up a captured batch size points at row 0 and has length 0.
    """

    places: Tensor  # [5, bs * F] int64; each row is a property below
    lens: Tensor  # [bs] int32, tokens committed

    @classmethod
    def of(cls, bs: int, front: int, device: torch.device) -> TreePath:
        return cls(
            torch.empty((5, bs * front), dtype=torch.int64, device=device),
            torch.empty(bs, dtype=torch.int32, device=device),
        )

    def check(self, bs: int, front: int) -> None:
        """Raise ValueError unless this is room for paths of up to `front` rows of `bs` requests."""
        most = self.lens.shape[0]
        if bs > most or self.places.shape != (5, most * front):
            raise ValueError(
                f"room for {most} paths in {tuple(self.places.shape)}, asked for {bs} of {front}"
            )

    @property
    def rows(self) -> Tensor:
        """Rows of the pass [bs * F]."""
        return self.places[0]

    @property
    def targets(self) -> Tensor:
        """The target's slots to write [bs * F]."""
        return self.places[1]

    @property
    def sources(self) -> Tensor:
        """The slots that hold the path now [bs * F]."""
        return self.places[2]

    @property
    def draft_slots(self) -> Tensor:
        """The drafter's slots [bs, F]."""
        return self.places[3].view(self.lens.shape[0], -1)

    @property
    def positions(self) -> Tensor:
        """Positions [bs * F], which count up from each prefix."""
        return self.places[4]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a verify pass accepted."""

    tokens: Tensor  # [bs * width], as predicted: the path's first in each request, then zeros
    path: TreePath


def accepted(
    accept_index: Tensor,
    predicted: Tensor,
    slots: Tensor,
    draft_slots: Tensor,
    positions: Tensor,
    accept_lens: Tensor,
    room: TreePath | None = None,
) -> Accepted:
    """accept_index [bs, F]: accepted rows of the whole batch in order, -1 beyond the path.

    predicted, slots and draft_slots [bs * width]; positions [bs, width], a window's own, which
    count up from the prefix; accept_lens [bs]. `room` is a path of as many requests or more, to
    write into. Nothing is read back to the host.
    """
    if room is not None:
        room.check(*accept_index.shape)
    given = (accept_index, predicted, slots, draft_slots, positions, accept_lens, room)
    if accept_index.is_cuda:
        from sglang_ddtree import commit_kernels  # Triton is there on CUDA only

        return commit_kernels.accepted(*given)
    return accepted_in_torch(*given)


def accepted_in_torch(
    accept_index: Tensor,
    predicted: Tensor,
    slots: Tensor,
    draft_slots: Tensor,
    positions: Tensor,
    accept_lens: Tensor,
    room: TreePath | None = None,
) -> Accepted:
    """`accepted` without a kernel: the CPU engine's way, which the kernel is held against."""
    bs, width = positions.shape
    front = accept_index.shape[1]
    if room is None:
        room = TreePath.of(bs, front, predicted.device)
    index = accept_index.to(torch.int64)
    live = index >= 0
    own = torch.arange(bs, device=index.device).unsqueeze(1) * width
    rows = torch.where(live, index, own)
    tokens = torch.zeros_like(predicted).view(bs, width)
    tokens[:, :front] = torch.where(live, predicted[rows], 0)
    nothing = torch.zeros_like(rows)
    room.places.zero_()
    room.lens.zero_()
    for place, value in zip(
        room.places,
        (
            rows,
            torch.where(live, slots.view(bs, width)[:, :front], nothing),
            torch.where(live, slots[rows], nothing),
            draft_slots.view(bs, width)[:, :front],
            positions[:, :front],
        ),
        strict=True,
    ):
        place[: bs * front] = value.reshape(-1)
    room.lens[:bs] = accept_lens
    return Accepted(tokens.view(-1), room)


def move(path: TreePath, token_to_kv_pool_allocator: Any) -> None:
    """Move the target's keys and values of the path to the front of each request's slots."""
    token_to_kv_pool_allocator.get_kvcache().move_kv_cache(path.targets, path.sources)
