"""Commit length of a pair without an engine: the drafter's trees against the target's own text.

A step that starts at place t of an answer commits the longest path of its tree that the answer
goes on with, and one token more. For greedy answers that is what an engine commits; for answers
sampled at a temperature it has the same distribution as what the exact sampler commits.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from sglang_ddtree.tree import build_tree, greedy_walk

#: (budget, topk); what is measured beside the chain.
SHAPES = ((7, 4), (8, 4), (8, 8), (15, 4), (15, 8), (32, 8))


@torch.no_grad()
def features_of(model: Any, ids: Tensor, layers: list[int]) -> Tensor:
    """What SGLang captures for the drafter: the output of each named target layer."""
    hidden = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([hidden[layer + 1] for layer in layers], -1)


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafter's candidates for every place of every row, and what the rows really hold."""

    roots: Tensor  # [N]
    ids: Tensor  # [N, D, K]
    logprobs: Tensor  # [N, D, K]
    truth: Tensor  # [N, D+1]
    places: int


@torch.no_grad()
def drafts_of(
    model: Any, drafter: Any, rows: Tensor, prompt: int, layers: list[int], k: int
) -> Drafts:
    block = drafter.block
    places = rows.shape[1] - block - prompt
    ids, logprobs = [], []
    for part in rows.split(32):
        starts = torch.arange(prompt, prompt + places, device=rows.device).expand(len(part), -1)
        with torch.autocast(rows.device.type, torch.bfloat16):
            logits = drafter(features_of(model, part, layers), part, starts)[:, :, 1:]
        top = logits.float().log_softmax(-1).topk(k, -1)
        ids.append(top.indices.flatten(0, 1))
        logprobs.append(top.values.flatten(0, 1))
    window = rows.unfold(1, block + 1, 1)[:, prompt : prompt + places].flatten(0, 1)
    return Drafts(window[:, 0], torch.cat(ids), torch.cat(logprobs), window[:, 1:], places)


def walked(accepted: Tensor, places: int) -> float:
    """Tokens a step over all rows when each step starts where the one before it ended."""
    tokens = steps = 0
    for row in accepted.view(-1, places).tolist():
        at = 0
        while at < places:
            tokens += row[at] + 1
            at += row[at] + 1
            steps += 1
    return tokens / steps


def tree_accepts(drafts: Drafts, budget: int, topk: int) -> tuple[Tensor, Tensor]:
    """Of one tree a place: accepted drafted tokens [N], and the length of its spine [N].

    The spine is the path of most probable children; a tree holds all of a chain only if the budget
    and the drafter's certainty reach that far.
    """
    tree = build_tree(
        drafts.roots,
        drafts.ids[:, :, :topk].contiguous(),
        drafts.logprobs[:, :, :topk].contiguous(),
        torch.zeros_like(drafts.roots),
        budget=budget,
        width=budget + 1,
    )
    node = torch.zeros_like(tree.active)
    spine = torch.zeros_like(tree.active)
    for _ in range(tree.max_depth):
        child = tree.next_token.gather(1, node.unsqueeze(1)).squeeze(1)
        spine = spine + (child >= 0)
        node = torch.where(child >= 0, child, node)  # the last node has no child: it stays there
    return greedy_walk(tree, drafts.truth.gather(1, tree.depths)).accept_len, spine


def commit_lengths(
    model: Any, drafter: Any, rows: Tensor, prompt: int, layers: list[int]
) -> dict[str, Any]:
    """Tokens a step of chain and trees, and how often rank r is right at depth d with d-1 right."""
    k = max(topk for _, topk in SHAPES)
    drafts = drafts_of(model, drafter, rows, prompt, layers, k)
    right = drafts.ids == drafts.truth[:, : drafts.ids.shape[1], None]  # [N, D, K]
    chain = right[:, :, 0].long().cumprod(1)
    found = {"chain": walked(chain.sum(1), drafts.places)}
    for budget, topk in SHAPES:
        accepted, spine = tree_accepts(drafts, budget, topk)
        on_spine = torch.minimum(chain.sum(1), spine)
        if bool((accepted < on_spine).any()):
            raise SystemExit(f"tree {budget}x{topk} accepted less than its own spine")
        found[f"tree {budget}x{topk}"] = walked(accepted, drafts.places)
        found[f"spine of {budget}x{topk}"] = walked(on_spine, drafts.places)
    reached = torch.cat([torch.ones_like(chain[:, :1]), chain[:, :-1]], 1).bool()
    hits = (right & reached.unsqueeze(2)).sum(0) / reached.sum(0).clamp(min=1).unsqueeze(1)
    return {
        "tokens_per_step": {name: round(value, 3) for name, value in found.items()},
        "rank_right_by_depth": [[round(x, 4) for x in row] for row in hits.tolist()],
        "places": len(drafts.roots),
    }
