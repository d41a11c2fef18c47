"""The tree builder that runs in the engine: one Triton program per request, nothing read back.

It takes the nodes by the rule of `tree_torch` and gives the same tensors bit for bit. It can also
write each request's QxQ mask into the tail of the flat mask that SGLang's attention reads, and so
leaves the prefix part of every row alone, which a tree never changes.

Works under TRITON_INTERPRET=1. Imported on CUDA only: a CPU engine has no Triton.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sglang_ddtree.tree_torch import WORST
from sglang_ddtree.tree_types import Room, TreeBatch

#: Ancestors are one bit a node in two int64 words.
MAX_WIDTH = 128


@triton.jit
def _sort_candidates(
    ids, logprobs, to_cost, to_id, D, K, worst, DP: tl.constexpr, KP: tl.constexpr
):
    """Costs and ids of one request, cheapest first; a repeated id gets cost inf and goes last."""
    row = tl.arange(0, DP)[:, None]
    col = tl.arange(0, KP)[None, :]
    inside = (row < D) & (col < K)
    at = row * K + col
    lp = tl.load(logprobs + at, mask=inside, other=0.0).to(tl.float32)
    ident = tl.load(ids + at, mask=inside, other=-1).to(tl.int64)
    cost = tl.where(lp < 0, -lp, 0.0)
    cost = tl.where((cost < worst) & (lp == lp), cost, worst)
    repeated = tl.zeros([DP, KP], dtype=tl.int32)
    for j in range(K):
        other = tl.sum(tl.where(col == j, cost, 0.0), axis=1)[:, None]
        same = tl.sum(tl.where(col == j, ident, 0), axis=1)[:, None] == ident
        before = (other < cost) | ((other == cost) & (j < col))
        repeated = tl.where(before & same, 1, repeated)
    cost = tl.where(repeated != 0, float("inf"), cost)
    place = tl.zeros([DP, KP], dtype=tl.int32)
    for j in range(K):
        other = tl.min(tl.where(col == j, cost, float("inf")), axis=1)[:, None]
        place += ((other < cost) | ((other == cost) & (j < col))).to(tl.int32)
    tl.store(to_cost + row * K + place, cost, mask=inside)
    tl.store(to_id + row * K + place, ident, mask=inside)


@triton.jit
def _entry(cost, edge, depth):
    """A frontier entry as one int64 that orders like (cost, parent * K + rank); inf sorts last.

    A cost is never negative, so its bits order like the cost itself.
    """
    bits = cost.to(tl.int32, bitcast=True).to(tl.int64)
    packed = (bits << 32) | (edge.to(tl.int64) << 8) | depth.to(tl.int64)
    return tl.where(cost < float("inf"), packed, 0x7FFFFFFFFFFFFFFF)


@triton.jit
def _ones(node):
    """The bit of a node in the low and in the high word."""
    bit = tl.full([], 1, dtype=tl.int64) << (node & 63)
    zero = tl.zeros([], dtype=tl.int64)
    return tl.where(node < 64, bit, zero), tl.where(node < 64, zero, bit)


@triton.jit
def _tail_start(prefix_lens, req, Q):
    """Where the mask of request `req` starts: each one before it took Q * (prefix + Q) cells."""
    other = tl.arange(0, 64)
    before = tl.zeros([64], dtype=tl.int64)
    for start in range(0, req, 64):
        seen = start + other < req
        before += tl.load(prefix_lens + start + other, mask=seen, other=0).to(tl.int64)
    return (tl.sum(before, axis=0) + req.to(tl.int64) * Q) * Q


@triton.jit
def _grow(root, cost_of, id_of, D, K, budget, QP: tl.constexpr):
    """Take `budget` nodes; what is returned holds one node a lane."""
    lane = tl.arange(0, QP)
    one = tl.full([QP], 1, dtype=tl.int64)
    # What the frontier holds: entry, cost of its parent, and its ancestors as bits. The child of a
    # node that was taken replaces it; its sibling goes to the lane numbered like the node.
    entry = tl.where(lane == 0, _entry(tl.load(cost_of), one * 0, one), 0x7FFFFFFFFFFFFFFF)
    above = tl.zeros([QP], dtype=tl.float32)
    low = one
    high = one * 0
    # What each node ends up with; a lane that nothing fills is an inactive node.
    parent = tl.full([QP], -1, dtype=tl.int32)
    depth = tl.where(lane == 0, 0, 1)
    token = one * root
    first_child = tl.full([QP], -1, dtype=tl.int32)
    sibling = tl.full([QP], -1, dtype=tl.int32)
    seen_low = tl.where(lane < 64, one << (lane & 63), 0) | 1
    seen_high = tl.where(lane < 64, 0, one << (lane & 63))
    for node in range(1, budget + 1):
        best = tl.min(entry, axis=0)
        if best < 0x7FFFFFFFFFFFFFFF:
            won = entry == best
            now = lane == node
            here = (best >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            edge = ((best >> 8) & 0xFFFFFF).to(tl.int32)
            d = (best & 0xFF).to(tl.int32)
            rank = edge % K
            up = tl.sum(tl.where(won, above, 0.0), axis=0)
            up_low = tl.sum(tl.where(won, low, 0), axis=0)
            up_high = tl.sum(tl.where(won, high, 0), axis=0)
            own_low, own_high = _ones(node)

            parent = tl.where(now, edge // K, parent)
            # Ranks of one parent come in order, and an entry of rank > 0 waits in the lane of the
            # sibling before it.
            first_child = tl.where((lane == edge // K) & (rank == 0), node, first_child)
            sibling = tl.where(won & (rank > 0), node, sibling)
            depth = tl.where(now, d, depth)
            token = tl.where(now, tl.load(id_of + (d - 1) * K + rank), token)
            seen_low = tl.where(now, up_low | own_low, seen_low)
            seen_high = tl.where(now, up_high | own_high, seen_high)

            child = here + tl.load(cost_of + d * K, mask=d < D, other=float("inf"))
            follow = (d - 1) * K + rank + 1
            beside = up + tl.load(cost_of + follow, mask=rank + 1 < K, other=float("inf"))
            entry = tl.where(won, _entry(child, node * K, d + 1), entry)
            entry = tl.where(now, _entry(beside, edge + 1, d), entry)
            above = tl.where(now, up, tl.where(won, here, above))
            low = tl.where(now, up_low, tl.where(won, up_low | own_low, low))
            high = tl.where(now, up_high, tl.where(won, up_high | own_high, high))
    return parent, depth, token, first_child, sibling, seen_low, seen_high


@triton.jit
def _write_mask(
    mask,
    tail,
    prefix_lens,
    req,
    prefix,
    seen_low,
    seen_high,
    Q,
    QP: tl.constexpr,
    TAIL: tl.constexpr,
):
    lane = tl.arange(0, QP)
    real = lane < Q
    at = req.to(tl.int64) * Q + lane
    if TAIL:
        row = _tail_start(prefix_lens, req, Q) + lane.to(tl.int64) * (prefix + Q) + prefix
    columns: tl.constexpr = 16 if QP <= 32 else 512 // QP  # few enough to stay in registers
    for chunk in range(0, Q, columns):
        col = chunk + tl.arange(0, columns)[None, :]
        word = tl.where(col < 64, seen_low[:, None], seen_high[:, None])
        cell = ((word >> (col & 63)) & 1) != 0
        inside = real[:, None] & (col < Q)
        tl.store(mask + at[:, None] * Q + col, cell, mask=inside)
        if TAIL:
            tl.store(tail + row[:, None] + col, cell, mask=inside)


@triton.jit(do_not_specialize=["D", "K", "Q", "budget"])
def _build(
    roots, ids, logprobs, prefix_lens, sorted_cost, sorted_id,
    tokens, parents, depths, positions, next_token, next_sibling, mask, active, tail,
    D, K, Q, budget, worst,
    QP: tl.constexpr, DP: tl.constexpr, KP: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    req = tl.program_id(0)
    start = req.to(tl.int64) * D * K
    cost_of = sorted_cost + start
    id_of = sorted_id + start
    _sort_candidates(ids + start, logprobs + start, cost_of, id_of, D, K, worst, DP, KP)
    tl.debug_barrier()  # what was stored above is read below by other threads of this program

    root = tl.load(roots + req).to(tl.int64)
    parent, depth, token, first_child, sibling, seen_low, seen_high = _grow(
        root, cost_of, id_of, D, K, budget, QP
    )

    lane = tl.arange(0, QP)
    prefix = tl.load(prefix_lens + req).to(tl.int64)
    real = lane < Q
    at = req.to(tl.int64) * Q + lane
    tl.store(tokens + at, token, mask=real)
    tl.store(parents + at, parent.to(tl.int64), mask=real)
    tl.store(depths + at, depth.to(tl.int64), mask=real)
    tl.store(positions + at, prefix + depth, mask=real)
    tl.store(next_token + at, first_child.to(tl.int64), mask=real)
    tl.store(next_sibling + at, sibling.to(tl.int64), mask=real)
    tl.store(active + req, tl.sum((parent >= 0).to(tl.int64), axis=0) + 1)
    _write_mask(mask, tail, prefix_lens, req, prefix, seen_low, seen_high, Q, QP, TAIL)


def search(
    root_tokens: Tensor,
    topk_ids: Tensor,
    topk_logprobs: Tensor,
    prefix_lens: Tensor,
    budget: int,
    width: int,
    tail: Tensor | None = None,
    room: Room | None = None,
) -> TreeBatch:
    """`tree_torch.search` in one launch; `tail` is the flat mask written into, bool or uint8.

    What is returned lies in `room`, which a captured graph keeps, or in new memory.
    """
    if width > MAX_WIDTH:
        raise ValueError(f"the tree kernel holds at most {MAX_WIDTH} nodes, got a width of {width}")
    bs, depth_max, k = topk_ids.shape
    if room is None:
        room = Room.of(bs, depth_max, k, width, topk_ids.device)
    if bs:
        _build[(bs,)](
            root_tokens.contiguous(),
            topk_ids.contiguous(),
            topk_logprobs.contiguous(),
            prefix_lens.contiguous(),
            room.cost,
            room.ident,
            *room.nodes.unbind(0),
            room.mask,
            room.active,
            room.mask if tail is None else tail,
            depth_max,
            k,
            width,
            budget,
            WORST,
            QP=triton.next_power_of_2(width),
            DP=triton.next_power_of_2(depth_max),
            KP=triton.next_power_of_2(k),
            TAIL=tail is not None,
            num_warps=1,
        )
    return room.trees(bs, min(depth_max, budget))
