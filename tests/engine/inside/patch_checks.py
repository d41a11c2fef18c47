"""One check a patch of patches/sglang-0.5.23, run against the engine with and without it.

Prints JSON: for each check None, or what went wrong. A program of its own, so that the engine that
is checked is the one on PYTHONPATH.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.speculative import spec_info, spec_registry
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

MASK = object()


class Family(CustomSpecAlgo):  # type: ignore[misc]
    """A plugin algorithm of the dflash family whose verify pass is 13 rows wide."""

    def is_dflash_family(self) -> bool:
        return True

    def get_num_tokens_per_req_for_target_verify(self, n: int, is_draft_worker: bool) -> int:
        return 8 if is_draft_worker else 13

    def make_capture_verify_input(self, **asked: Any) -> Any:
        return ("mine", asked["num_tokens_per_req"], asked["custom_mask"])


def family() -> Any:
    if spec_registry.get_spec("FAM") is None:
        SpeculativeAlgorithm.register("FAM", spec_class=Family)(lambda _: object)
    return SpeculativeAlgorithm.from_string("FAM")


def p1() -> None:
    """A bare plugin algorithm has what the scheduler calls; one that lacks it cannot register."""
    SpeculativeAlgorithm.register("BARE")(lambda _: object)
    bare: Any = SpeculativeAlgorithm.from_string("BARE")
    assert bare.need_topk() is False
    assert bare.carries_draft_hidden_states() is False
    assert bare.get_platform_worker_cls() is None
    assert callable(bare.create_future_map)

    predicates = [n for n in dir(CustomSpecAlgo) if n.startswith(("is_", "supports_"))]
    lacking: Any = type("Lacking", (), {n: getattr(CustomSpecAlgo, n) for n in predicates})
    try:
        SpeculativeAlgorithm.register("LACKING", spec_class=lacking)
    except TypeError as error:
        assert "create_future_map" in str(error)
    else:
        raise AssertionError("an algorithm without create_future_map was registered")


def p2() -> None:
    """The decode runner and the warm-up take the algorithm's own verify input."""
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

    runner: Any = object.__new__(DecodeCudaGraphRunner)
    runner.model_runner = SimpleNamespace(
        spec_algorithm=family(),
        is_draft_worker=False,
        attn_backend=type("TritonAttnBackend", (), {})(),
    )
    runner.buffers, runner.captured_req_width = SimpleNamespace(custom_mask=MASK), 13
    runner._capture_ragged_verify_layout = lambda _: None
    assert runner.get_spec_info(13) == ("mine", 13, MASK)
    bag = SimpleNamespace(speculative_num_draft_tokens=13, speculative_eagle_topk=4)
    spec_info.get_spec_config = lambda: bag
    dummy: Any = spec_info.create_dummy_verify_input(family(), MASK, 13, False)
    assert dummy == ("mine", 13, MASK)
    # An algorithm of the engine is captured as ever.
    runner.model_runner.spec_algorithm = SpeculativeAlgorithm.DFLASH
    assert runner.get_spec_info(13).custom_mask is None


def p3() -> None:
    """A plugin of the family relays no hidden states and is in the metrics."""
    from sglang.srt.managers.scheduler_components import metrics_reporter
    from sglang.srt.speculative import spec_utils

    bag = SimpleNamespace(speculative_algorithm=family().name, enable_multi_layer_eagle=False)
    spec_utils.get_spec = lambda: bag
    assert spec_utils.spec_need_hidden_states() is False
    (kind,) = [v for v in vars(metrics_reporter).values()
               if hasattr(v, "snapshot_spec_decode_metrics")]  # fmt: skip
    this = SimpleNamespace(scheduler=SimpleNamespace(enable_fpm=True))
    for algorithm, counted in ((family(), True), (SpeculativeAlgorithm.NGRAM, False)):
        result = SimpleNamespace()
        batch = SimpleNamespace(spec_algorithm=algorithm, reqs=[SimpleNamespace(seqlen=5)])
        kind.snapshot_spec_decode_metrics(this, batch, result)
        assert hasattr(result, "fpm_scheduled_requests") is counted


def p4() -> None:
    """A target whose backend ignores masks does not start with a tree."""
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAAttnBackend
    from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
    from sglang.srt.model_executor.model_runner import check_tree_mask_support

    for kind in (FlashInferMLAAttnBackend, TRTLLMHAAttnBackend):
        backend = object.__new__(kind)
        check_tree_mask_support(backend, topk=1, is_draft_worker=False)
        check_tree_mask_support(backend, topk=4, is_draft_worker=True)
        try:
            check_tree_mask_support(backend, topk=4, is_draft_worker=False)
        except ValueError as error:
            assert kind.__name__ in str(error)
        else:
            raise AssertionError(f"{kind.__name__} takes a tree")
    check_tree_mask_support(type("Any", (AttentionBackend,), {})(), topk=4, is_draft_worker=False)


def p5() -> None:
    """The tree builder is told to leave a prefix that nobody reads alone."""
    from sglang.srt.layers.attention.verify_mask import maybe_create_verify_mask
    from sglang.srt.speculative import eagle_worker_common as common

    told: list[bool] = []

    def build(*args: Any, fill_prefix_mask: bool) -> Any:
        told.append(fill_prefix_mask)
        return (None,) * 6

    common.build_tree_kernel_efficient = build
    for read in (True, False):
        mask = maybe_create_verify_mask(
            is_draft_runner=False, skip_prefill=False, max_bs=2, max_context_len=16,
            num_draft_tokens=4, device="cpu", is_read=True, prefix_is_read=read,
        )  # fmt: skip
        backend = SimpleNamespace(verify_mask=mask, max_context_len=16)
        batch = SimpleNamespace(
            forward_mode=SimpleNamespace(is_idle=lambda: False),
            seq_lens=torch.tensor([3]), seq_lens_sum=3,
        )  # fmt: skip
        common.build_eagle_verify_input(
            batch, SimpleNamespace(bonus_tokens=None), None, None, torch.zeros(1, 3), None,
            target_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend)),
            topk=2, num_steps=3, num_draft_tokens=4, tree_mask_mode=mask.mode, device="cpu",
        )  # fmt: skip
    assert told == [True, False]


def p6() -> None:
    """The budget is an option, and an unknown one is an error."""
    from sglang.srt.server_args import prepare_server_args

    model = os.environ["DDTREE_TEST_MODELS"] + "/tiny-qwen3"
    words = io.StringIO()
    try:
        with redirect_stderr(words):
            args = prepare_server_args(["--model-path", model, "--speculative-ddtree-budget", "8"])
    except SystemExit:
        raise AssertionError(words.getvalue()[-200:]) from None
    assert args.speculative_ddtree_budget == 8


def p7() -> None:
    """An idle rank's result is as wide as the algorithm's pass."""
    from sglang.srt.speculative import dflash_worker_v2 as module

    bag = SimpleNamespace(speculative_num_draft_tokens=13)
    module.get_spec = lambda: bag
    module.get_parallel = lambda: SimpleNamespace(attn_dp_enabled=False)
    worker: Any = object.__new__(module.DFlashWorkerV2)
    worker.block_size, worker.device = 8, "cpu"
    worker._target_worker = SimpleNamespace(model_runner=SimpleNamespace(spec_algorithm=family()))
    mode = SimpleNamespace(is_extend=lambda: False, is_idle=lambda: True)
    batch = SimpleNamespace(
        forward_mode=mode, is_extend_in_batch=False, spec_info=None, sampling_info=None
    )
    assert worker.forward_batch_generation(batch).speculative_num_draft_tokens == 13


CHECKS: tuple[Callable[[], None], ...] = (p1, p2, p3, p4, p5, p6, p7)


def main() -> None:
    found: dict[str, str | None] = {}
    for check in CHECKS:
        try:
            check()
        except Exception as error:  # a report, not a rescue: the caller asserts on it
            found[check.__name__] = f"{type(error).__name__}: {error}"
        else:
            found[check.__name__] = None
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
