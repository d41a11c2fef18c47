"""The drafter's candidates: the best tokens of each position with their log-probabilities."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.models.dflash import candidate_topk
from torch import Tensor


def candidates(hidden: Tensor, lm_head: Any, topk: int) -> tuple[Tensor, Tensor]:
    """hidden [n, H] to ids [n, topk] int64 and log-probabilities [n, topk] float32, best first.

    The head is the target's. Where it is split over ranks, SGLang's helper gathers topk candidates
    and one sum a rank, so that every rank has the same result.
    """
    ids, values, log_sum = candidate_topk(hidden, lm_head, topk, with_partition=True)
    return ids.to(torch.int64), values.float() - log_sum.float().unsqueeze(-1)


def drafted_rows(hidden_states: Tensor, block: int) -> Tensor:
    """The rows [bs * (block - 1), H] that predict; row 0 of a block holds the current token."""
    size = hidden_states.shape[-1]
    return hidden_states.view(-1, block, size)[:, 1:].reshape(-1, size)
