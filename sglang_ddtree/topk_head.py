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


class CandidateSampler:
    """Runs `candidates` at the end of the drafter's captured graph, into fixed buffers."""

    def __init__(self, lm_head: Any, *, block: int, topk: int, max_bs: int, device: Any) -> None:
        self.lm_head, self.block, self.topk = lm_head, block, topk
        rows = max_bs * (block - 1)
        self.ids = torch.empty((rows, topk), dtype=torch.int64, device=device)
        self.logprobs = torch.empty((rows, topk), dtype=torch.float32, device=device)

    def __call__(self, hidden_states: Tensor, input_ids: Tensor | None = None) -> None:
        hidden = drafted_rows(hidden_states, self.block)
        ids, logprobs = candidates(hidden, self.lm_head, self.topk)
        self.ids[: hidden.shape[0]].copy_(ids)
        self.logprobs[: hidden.shape[0]].copy_(logprobs)

    def result(self, bs: int) -> tuple[Tensor, Tensor]:
        """What the last replay left, [bs, block - 1, topk] each."""
        shape, rows = (bs, self.block - 1, self.topk), bs * (self.block - 1)
        return self.ids[:rows].view(shape), self.logprobs[:rows].view(shape)


def drafted_rows(hidden_states: Tensor, block: int) -> Tensor:
    """The rows [bs * (block - 1), H] that predict; row 0 of a block holds the current token."""
    size = hidden_states.shape[-1]
    return hidden_states.view(-1, block, size)[:, 1:].reshape(-1, size)
