"""Sampled verification on a CPU, where SGLang has no kernels and would answer greedily.

The shared verify step calls three functions that exist as CUDA kernels only; here they are in
torch, put in the names it looks up. Exact, and far too slow for anything but tests and the lab.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_ddtree.sampling import target_only_walk
from sglang_ddtree.tree_types import TreeBatch


def install() -> None:
    """Give this process's verify step its CPU functions. Called once, by the worker."""
    from sglang.srt.speculative import eagle_utils

    def uses_greedy(*, is_all_greedy: bool, **where: bool) -> bool:
        del where  # SGLang answers yes for a CPU, whatever the temperature
        return is_all_greedy

    eagle_utils._verify_uses_greedy = uses_greedy
    eagle_utils.tree_speculative_sampling_target_only = sample_tree
    eagle_utils.top_k_renorm_prob = renorm_top_k
    eagle_utils.top_p_renorm_prob = renorm_top_p


def sample_tree(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    **rest: Any,
) -> None:
    """`tree_speculative_sampling_target_only` with its keywords, spelling included.

    candidates and the three links [bs, n], target_probs [bs, n, V]. Changed: predicts [bs * n], the
    token after every accepted row; accept_index [bs, depth], accepted rows from the root on;
    accept_token_num [bs], accepted drafts.
    """
    if rest.get("threshold_single", 1.0) != 1.0 or rest.get("threshold_acc", 1.0) != 1.0:
        raise NotImplementedError("lossy acceptance thresholds are not available on a CPU")
    tree = _tree(candidates, retrive_next_token, retrive_next_sibling, accept_index.shape[1] - 1)
    walk = target_only_walk(tree, target_probs, uniform_samples, uniform_samples_for_final_sampling)
    nodes = walk.accept_index
    rows = retrive_index.gather(1, nodes.clamp(min=0))
    accept_index.copy_(torch.where(nodes < 0, -1, rows))
    accept_token_num.copy_(walk.accept_len)
    after = torch.cat([candidates.gather(1, nodes[:, 1:].clamp(min=0)), nodes[:, :1]], dim=1)
    after = after.scatter(1, walk.accept_len.unsqueeze(1), walk.bonus.unsqueeze(1))
    kept = nodes >= 0
    predicts[rows[kept]] = after[kept].to(predicts.dtype)


def _tree(tokens: Tensor, next_token: Tensor, next_sibling: Tensor, max_depth: int) -> TreeBatch:
    """What a walk needs of a tree, from its links alone."""
    bs, width = tokens.shape
    parents = torch.full((bs, width + 1), -1, dtype=torch.int64)  # the last column takes "none"
    for node in range(width):
        child, sibling = next_token[:, node : node + 1], next_sibling[:, node : node + 1]
        parents.scatter_(1, torch.where(child < 0, width, child), node)
        own = parents[:, node : node + 1].clone()
        parents.scatter_(1, torch.where(sibling < 0, width, sibling), own)
    zero = torch.zeros_like(tokens)
    return TreeBatch(
        tokens=tokens,
        parents=parents[:, :width],
        depths=zero,
        positions=zero,
        next_token=next_token,
        next_sibling=next_sibling,
        mask=torch.zeros((bs, width, width), dtype=torch.bool),
        active=torch.full((bs,), width, dtype=torch.int64),
        max_depth=max_depth,
    )


def renorm_top_k(probs: Tensor, top_ks: Tensor) -> Tensor:
    """Keep the `top_ks` [rows] most probable tokens of each row and rescale."""
    ordered, index = probs.sort(dim=-1, descending=True)
    rank = torch.arange(probs.shape[-1]).view(1, -1)
    return _rescaled(ordered.masked_fill(rank >= top_ks.view(-1, 1), 0.0), index)


def renorm_top_p(probs: Tensor, top_ps: Tensor) -> Tensor:
    """Keep the fewest most probable tokens whose sum reaches `top_ps` [rows], and rescale."""
    ordered, index = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return _rescaled(ordered.masked_fill(before > top_ps.view(-1, 1), 0.0), index)


def _rescaled(ordered: Tensor, index: Tensor) -> Tensor:
    kept = ordered / ordered.sum(-1, keepdim=True)
    return torch.zeros_like(kept).scatter_(-1, index, kept)
