"""Tree masks: both layouts, what is refused, and the attention against a plain softmax."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from ddops_sglang_cpu.verify_attention import (
    MaskLayout,
    MaskLayoutError,
    mask_layout,
    request_masks,
    tree_masks,
)

# Node 0 has the children 1 and 2; 3 hangs under 1.
BLOCK = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
N = len(BLOCK)


def full_mask(block: torch.Tensor, prefix: int) -> torch.Tensor:
    return torch.cat([torch.ones(len(block), prefix, dtype=torch.bool), block], 1)


def spec(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**({"draft_token_num": N, "custom_mask": None} | fields))


def test_both_layouts_mean_the_same() -> None:
    prefixes, second = [3, 0, 5], BLOCK.tril(0) & torch.eye(N, dtype=torch.bool)
    blocks = [BLOCK, second, BLOCK]
    short = torch.cat([block.reshape(-1) for block in blocks])
    full = torch.cat(
        [
            full_mask(block, prefix).reshape(-1)
            for block, prefix in zip(blocks, prefixes, strict=True)
        ]
    )
    for mask in (short, full):
        for got, block, prefix in zip(tree_masks(mask, prefixes, N), blocks, prefixes, strict=True):
            assert torch.equal(got, full_mask(block, prefix))


def test_layout_by_size_and_by_declaration() -> None:
    assert mask_layout(16, [9], 4) is MaskLayout.QLEN_ONLY
    assert mask_layout(4 * 13, [9], 4) is MaskLayout.FULL_MASK
    assert mask_layout(4 * 13, [9], 4, declared=0) is MaskLayout.FULL_MASK
    with pytest.raises(MaskLayoutError, match="declared mode 1"):
        mask_layout(4 * 13, [9], 4, declared=1)
    with pytest.raises(MaskLayoutError, match="declared mode 2"):
        mask_layout(16, [9], 4, declared=2)  # bit-packed


@pytest.mark.parametrize("extra", [-1, 1, 4, 100])
def test_another_size_is_refused(extra: int) -> None:
    with pytest.raises(MaskLayoutError, match="cells"):
        tree_masks(torch.ones(4 * 13 + extra, dtype=torch.bool), [9], N)


def test_a_mask_for_other_prefixes_is_refused() -> None:
    mask = full_mask(BLOCK, 6).reshape(-1)
    with pytest.raises(MaskLayoutError, match="cells"):
        tree_masks(mask, [7], N)


def test_right_size_wrong_order_is_refused() -> None:
    masks = [full_mask(BLOCK, 2).reshape(-1), full_mask(BLOCK, 5).reshape(-1)]
    with pytest.raises(MaskLayoutError, match="hides a node from itself"):
        tree_masks(torch.cat(masks), [5, 2], N)


def test_transposed_is_refused() -> None:
    with pytest.raises(MaskLayoutError, match="a later one"):
        tree_masks(BLOCK.T.reshape(-1), [2], N)


def test_integers_are_refused() -> None:
    with pytest.raises(MaskLayoutError, match="not bool"):
        tree_masks(BLOCK.int().reshape(-1), [2], N)


def test_chain_needs_no_mask_a_tree_does() -> None:
    for fields in ({"topk": 1}, {"tree_topk": 1}):
        (mask,) = request_masks(spec(**fields), [2], bidirectional=False)
        assert torch.equal(mask, full_mask(torch.ones(N, N, dtype=torch.bool).tril(), 2))
    for fields in ({"tree_topk": -1}, {"topk": 4}, {}):
        with pytest.raises(MaskLayoutError, match="no tree mask"):
            request_masks(spec(**fields), [2], bidirectional=False)


def test_a_given_mask_is_used_even_when_topk_is_1() -> None:
    (mask,) = request_masks(spec(topk=1, custom_mask=BLOCK.reshape(-1)), [2], bidirectional=False)
    assert torch.equal(mask, full_mask(BLOCK, 2))


def test_draft_block_sees_all_and_takes_no_mask() -> None:
    (mask,) = request_masks(spec(topk=1), [2], bidirectional=True)
    assert bool(mask.all()) and mask.shape == (N, 2 + N)
    with pytest.raises(MaskLayoutError, match="bidirectional"):
        request_masks(spec(custom_mask=BLOCK.reshape(-1)), [2], bidirectional=True)


def test_ragged_verify_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="ragged"):
        request_masks(spec(topk=1, ragged_verify_layout=object()), [2], bidirectional=False)


class Pool:
    """Key and value buffers [slots, kv_heads, width] of one layer."""

    def __init__(self, slots: int, shape: Shape) -> None:
        self.keys = torch.randn(slots, shape.kv_heads, shape.key_dim)
        self.values = torch.randn(slots, shape.kv_heads, shape.value_dim)

    def set_kv_buffer(self, layer: object, where: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        self.keys[where.loc] = k.view(-1, *self.keys.shape[1:])
        self.values[where.loc] = v.view(-1, *self.values.shape[1:])

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.keys

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.values


class LatentPool(Pool):
    """SGLang's for MLA: one buffer, a row is the latent and the rotary key; values are a view."""

    def __init__(self, slots: int, shape: Shape) -> None:
        super().__init__(slots, shape)
        self.values = self.keys[..., : shape.value_dim]

    def set_kv_buffer(self, layer: object, where: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        self.keys[where.loc] = k.view(-1, *self.keys.shape[1:])


class Shape(NamedTuple):
    """Widths of an attention layer, and the cache it writes."""

    kv_heads: int
    key_dim: int
    value_dim: int
    pool: type[Pool]


HEADS, PREFIXES = 4, [3, 5]
#: Grouped queries, and MLA's absorbed form: one key for all heads, 6 of it latent and 3 rotary.
SHAPES = {"grouped": Shape(2, 8, 8, Pool), "latent": Shape(1, 9, 6, LatentPool)}


@pytest.fixture(params=SHAPES)
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A verify batch of two requests over scattered cache slots, SGLang's imports replaced."""
    import sys

    attention_type = SimpleNamespace(ENCODER_ONLY="encoder_only")
    monkeypatch.setitem(
        sys.modules,
        "sglang.srt.layers.radix_attention",
        SimpleNamespace(AttentionType=attention_type),
    )
    location = lambda loc, swa: SimpleNamespace(loc=loc, swa=swa)  # noqa: E731
    monkeypatch.setitem(
        sys.modules, "sglang.srt.mem_cache.memory_pool", SimpleNamespace(KVWriteLoc=location)
    )
    shape = SHAPES[request.param]
    torch.manual_seed(0)
    table = torch.randperm(40).view(4, 10).int()
    requests = [2, 0]
    out = torch.cat([table[r, p : p + N] for r, p in zip(requests, PREFIXES, strict=True)]).long()
    backend = SimpleNamespace(
        token_to_kv_pool=shape.pool(40, shape),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        swa_out_cache_loc=None,
    )
    batch = SimpleNamespace(
        spec_info=spec(
            tree_topk=-1, custom_mask=torch.cat([full_mask(BLOCK, p).reshape(-1) for p in PREFIXES])
        ),
        seq_lens=torch.tensor(PREFIXES),
        req_pool_indices=torch.tensor(requests),
        out_cache_loc=out,
    )
    layer = SimpleNamespace(
        tp_q_head_num=HEADS,
        tp_k_head_num=shape.kv_heads,
        qk_head_dim=shape.key_dim,
        v_head_dim=shape.value_dim,
        scaling=0.3,
        layer_id=0,
        attn_type="decoder",
        is_cross_attention=False,
        sliding_window_size=-1,
        logit_cap=0.0,
    )
    rows = len(PREFIXES) * N
    q = torch.randn(rows, HEADS * shape.key_dim)
    k = torch.randn(rows, shape.kv_heads * shape.key_dim)
    v = torch.randn(rows, shape.kv_heads * shape.value_dim)
    if shape.pool is LatentPool:
        v = k[:, : shape.value_dim]
    return SimpleNamespace(
        backend=backend,
        batch=batch,
        layer=layer,
        q=q,
        k=k,
        v=v,
        table=table,
        requests=requests,
        shape=shape,
    )


def run(scene: SimpleNamespace) -> torch.Tensor:
    from ddops_sglang_cpu.verify_attention import verify_attention

    return verify_attention(scene.backend, scene.q, scene.k, scene.v, scene.layer, scene.batch)


def test_attention_against_a_loop(scene: SimpleNamespace) -> None:
    shape, share = scene.shape, HEADS // scene.shape.kv_heads
    got = run(scene).view(len(PREFIXES), N, HEADS, shape.value_dim)
    pool = scene.backend.token_to_kv_pool
    assert torch.equal(pool.keys[scene.batch.out_cache_loc].view(-1), scene.k.view(-1))
    for b, (request, prefix) in enumerate(zip(scene.requests, PREFIXES, strict=True)):
        slots = scene.table[request, : prefix + N].tolist()
        for node in range(N):
            seen = [s for j, s in enumerate(slots) if j < prefix or BLOCK[node, j - prefix]]
            for head in range(HEADS):
                query = scene.q.view(-1, N, HEADS, shape.key_dim)[b, node, head]
                scores = torch.tensor(
                    [math.exp(0.3 * float(query @ pool.keys[s, head // share])) for s in seen]
                )
                wanted = (scores / scores.sum()) @ torch.stack(
                    [pool.values[s, head // share] for s in seen]
                )
                torch.testing.assert_close(got[b, node, head], wanted, rtol=1e-4, atol=1e-5)


def test_a_node_is_seen_by_its_descendants_alone(scene: SimpleNamespace) -> None:
    """Node 2 has a sibling before it and a nephew after it, who would see it in a chain."""

    def who_sees_it(block: torch.Tensor) -> list[list[bool]]:
        masks = [full_mask(block, prefix).reshape(-1) for prefix in PREFIXES]
        scene.batch.spec_info.custom_mask = torch.cat(masks)
        before = run(scene).view(len(PREFIXES), N, -1)
        scene.k.view(len(PREFIXES), N, -1)[:, 2] += 1.0
        return (run(scene).view(len(PREFIXES), N, -1) != before).any(-1).tolist()

    assert who_sees_it(BLOCK) == [[False, False, True, False]] * len(PREFIXES)
    chain = torch.ones(N, N, dtype=torch.bool).tril()
    assert who_sees_it(chain) == [[False, False, True, True]] * len(PREFIXES)


def test_rows_written_must_be_the_rows_attended(scene: SimpleNamespace) -> None:
    scene.batch.seq_lens = torch.tensor([PREFIXES[0] - 1, PREFIXES[1]])
    with pytest.raises(RuntimeError, match="other cache rows"):
        run(scene)


@pytest.mark.parametrize(
    ("field", "value"),
    [("is_cross_attention", True), ("sliding_window_size", 4), ("logit_cap", 30.0)],
)
def test_untried_attention_is_refused(scene: SimpleNamespace, field: str, value: object) -> None:
    setattr(scene.layer, field, value)
    with pytest.raises(NotImplementedError):
        run(scene)
