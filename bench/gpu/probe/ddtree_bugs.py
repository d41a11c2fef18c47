"""The bugs of the tree that DDTREE grew from, put back on purpose. A proof must fail under each.

1. The target's graphs are captured as wide as the drafter's block instead of the tree: every verify
   pass falls back to eager mode, without a word.
2. The mask's offsets in Triton's attention count the block instead of the tree: from the second
   request of a batch on, each reads cells of its neighbours. The text stays plausible.
4. The target's graphs are captured without a mask: a replay never reads the tree.

(Bug 3, acceptance by the drafter's probability, is tested where the sampler is: tests/ddtree.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def block() -> int:
    from sglang.srt.runtime_context import get_spec

    return int(get_spec().speculative_dflash_block_size)


def graphs_of_a_block(original: Callable[..., int], *args: Any, **kwargs: Any) -> int:
    original(*args, **kwargs)
    return block()


def offsets_of_a_block(original: Callable[..., Any], backend: Any, *args: Any, **kw: Any) -> Any:
    """`(plan, bs, seq_lens, ...)`; the offsets lie in a buffer that the graphs read."""
    result = original(backend, *args, **kw)
    bs, seq_lens = args[1], args[2]
    if backend.target_verify_num_tokens_per_req != block():  # the target's backend, not the draft's
        cells = block() * (seq_lens[:bs] + block())
        backend.mask_indptr[1 : bs + 1] = cells.cumsum(0)
    return result


def no_mask(original: Callable[..., Any], runner: Any, num_tokens: int) -> Any:
    del original
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

    return DecodeCudaGraphRunner.get_spec_info(runner, num_tokens)


def hooks(bug: str) -> dict[str, Callable[..., Any]]:
    backend = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend"
    known: dict[str, dict[str, Callable[..., Any]]] = {
        "1": {
            "sglang_ddtree.algo.DDTreeAlgo.get_num_tokens_per_req_for_target_verify": (
                graphs_of_a_block
            )
        },
        "2": {f"{backend}._update_target_verify_buffers": offsets_of_a_block},
        "4": {"sglang_ddtree.graph_runner.DDTreeDecodeCudaGraphRunner.get_spec_info": no_mask},
    }
    return known[bug]
