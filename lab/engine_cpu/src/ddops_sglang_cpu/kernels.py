"""Pure-torch versions of the `sgl_kernel` CPU functions that the lab's profiles call.

SGLang's compiled CPU kernels are not on PyPI. Every other name of `sgl_kernel` raises
NotImplementedError when it is called. Shapes: bs requests, n tree nodes (draft tokens) per request,
node 0 being the last committed token.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

__all__ = [
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "reconstruct_indices_from_tree_mask",
    "verify_tree_greedy_cpu",
]


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start: Tensor,
    end: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write packed cache slots into the pool: req_to_token[r, start:end] = the next slots.

    req_pool_indices, start, end [bs]; req_to_token [rows, pool_len], changed; out_cache_loc
    [sum(end - start)] or longer. Called by srt/mem_cache/allocation.py:746.
    """
    offset = 0
    for row, first, last in zip(
        req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True
    ):
        count = last - first
        req_to_token[row, first:last] = out_cache_loc[offset : offset + count].to(
            req_to_token.dtype
        )
        offset += count


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start: Tensor,
    end: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The reverse: pack req_to_token[r, start:end] of each request into out_cache_loc.

    Called by kernels/ops/speculative/cache_locs.py:740 and :763.
    """
    offset = 0
    for row, first, last in zip(
        req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True
    ):
        count = last - first
        out_cache_loc[offset : offset + count] = req_to_token[row, first:last].to(
            out_cache_loc.dtype
        )
        offset += count


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy cache rows src_loc to tgt_loc in every buffer, as if all reads came before all writes.

    data_ptrs, strides [buffers]: address of row 0 and bytes per row. tgt_loc, src_loc [rows]. The
    two may overlap: an accepted path is moved to the front of the window it lies in. Called by
    kernels/ops/kvcache/cache_move.py:191.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + target * stride, row, stride)


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Pack out_cache_loc[accept_index] without the -1 entries; the rest of the target stays.

    accept_index [bs, width] or flat; out_cache_loc [bs * n]; accept_out_cache_loc [bs * width],
    changed. Called by kernels/ops/speculative/eagle.py:80.
    """
    flat = accept_index.reshape(-1)
    accepted = flat[flat > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(
        accept_out_cache_loc.dtype
    )


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Pick each request's last committed token, the one its next step starts from.

    accept_tokens [bs * accept_stride] or [bs, accept_stride], accepted tokens first; accept_lens
    [bs], how many, the target's own token after the drafts counted; bonus_tokens [bs], changed.
    Called by kernels/ops/speculative/eagle.py:40.
    """
    last = accept_lens.long().view(-1, 1) - 1
    bonus_tokens.copy_(accept_tokens.view(-1, accept_stride).gather(1, last).view(-1))


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Turn ancestor masks into positions and first-child / next-sibling links.

    tree_mask [bs * n * n] bool, row i marks the ancestors of node i; verified_seq_len [bs].
    Changed: positions [bs * n], retrieve_index, retrieve_next_token, retrieve_next_sibling [bs, n]
    or flat (-1 for none). Only ancestors before the node count. Called by
    kernels/ops/speculative/reconstruct_tree.py:185, whose header states the contract.
    """
    bs, n = batch_size, draft_token_num
    if tree_mask.numel() != bs * n * n:
        raise ValueError(
            f"tree mask has {tree_mask.numel()} cells, {bs} trees of {n} nodes need {bs * n * n}"
        )
    node = torch.arange(n)
    ancestors = tree_mask.reshape(bs, n, n).bool() & (node.view(1, n) < node.view(n, 1))
    parent = torch.where(ancestors, node, -1).amax(-1)
    first_child = torch.where(ancestors.transpose(1, 2), node, n).amin(-1)
    # siblings[b, i, k]: node k comes after i and has the same parent; a root has none.
    siblings = (
        (parent.unsqueeze(2) == parent.unsqueeze(1))
        & (node.view(1, n) > node.view(n, 1))
        & (parent >= 0).unsqueeze(2)
    )
    next_sibling = torch.where(siblings, node, n).amin(-1)
    _store(positions, ancestors.sum(-1) + verified_seq_len.view(bs, 1))
    _store(retrieve_index, torch.arange(bs * n))
    _store(retrieve_next_token, first_child.masked_fill(first_child == n, -1))
    _store(retrieve_next_sibling, next_sibling.masked_fill(next_sibling == n, -1))


def _store(target: Tensor, value: Tensor) -> None:
    target.copy_(value.reshape(target.shape))


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree from its root along the children that equal the target's own choice.

    candidates, retrive_index (node -> flat row), retrive_next_token, retrive_next_sibling,
    target_predict [bs, n]. Changed: predicts [bs * n], the target's token at every accepted row;
    accept_index [bs, depth], the accepted rows from the root on; accept_token_num [bs], accepted
    drafts without root and bonus. The keywords' spelling is SGLang's. Called by
    kernels/ops/speculative/spec_tree.py:510.
    """
    target = target_predict.reshape(-1).tolist()
    trees = zip(
        candidates.tolist(),
        retrive_index.tolist(),
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
        strict=True,
    )
    depth = accept_index.shape[1]
    for request, (tokens, rows, next_token, next_sibling) in enumerate(trees):
        node, accepted = 0, [rows[0]]
        while len(accepted) < depth:
            match = _matching_child(target[accepted[-1]], tokens, next_token[node], next_sibling)
            if match is None:
                break
            predicts[accepted[-1]] = target[accepted[-1]]
            node = match
            accepted.append(rows[node])
        predicts[accepted[-1]] = target[accepted[-1]]  # the bonus token
        accept_index[request, : len(accepted)] = torch.tensor(accepted, dtype=accept_index.dtype)
        accept_token_num[request] = len(accepted) - 1


def _matching_child(
    token: int, tokens: list[int], child: int, next_sibling: list[int]
) -> int | None:
    """The first of the siblings from `child` on that holds `token`."""
    for _ in range(len(tokens)):  # a malformed list must not loop for ever
        if child == -1:
            return None
        if tokens[child] == token:
            return child
        child = next_sibling[child]
    if child == -1:
        return None
    raise ValueError("sibling links of a draft tree form a cycle")
