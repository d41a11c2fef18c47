"""DDTREE's numbers and its refusals, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ddtree.args import (
    REFUSALS,
    DDTreeConfigError,
    backend_refusal,
    refusals,
    request_refusal,
    tree_config,
    verify_backend,
    window_refusal,
)


def spec(**given: Any) -> SimpleNamespace:
    numbers = {
        "speculative_num_draft_tokens": None,
        "speculative_eagle_topk": 4,
        "speculative_dflash_block_size": 8,
    }
    return SimpleNamespace(**{**numbers, **given})


@pytest.mark.parametrize(
    ("given", "environ", "wanted"),
    [
        ({}, {"DDTREE_BUDGET": "8"}, (8, 4, 8, 9)),
        ({}, {"DDTREE_BUDGET": "7"}, (7, 4, 8, 8)),
        ({}, {"DDTREE_BUDGET": "3"}, (3, 4, 8, 8)),  # never narrower than the block
        ({"speculative_num_draft_tokens": 16}, {}, (15, 4, 8, 16)),
        ({"speculative_num_draft_tokens": 16}, {"DDTREE_BUDGET": "8"}, (8, 4, 8, 16)),
        ({"speculative_eagle_topk": None}, {"DDTREE_BUDGET": "8", "DDTREE_TOPK": "2"},
         (8, 2, 8, 9)),
        ({}, {"DDTREE_BUDGET": "127"}, (127, 4, 8, 128)),
        ({"speculative_ddtree_budget": 9}, {}, (9, 4, 8, 10)),
        ({"speculative_ddtree_budget": 9}, {"DDTREE_BUDGET": "9"}, (9, 4, 8, 10)),
    ],
)  # fmt: skip
def test_the_numbers(given: dict[str, Any], environ: dict[str, str], wanted: Any) -> None:
    tree = tree_config(spec(**given), environ)
    assert (tree.budget, tree.topk, tree.block, tree.width) == wanted


def test_depth_is_bounded_by_block_and_budget() -> None:
    assert tree_config(spec(), {"DDTREE_BUDGET": "48"}).depth == 7
    assert tree_config(spec(), {"DDTREE_BUDGET": "3"}).depth == 3


def test_the_drafters_own_block_is_the_default_and_is_asked_for_only_then() -> None:
    def never() -> int | None:
        raise AssertionError("the option is there")

    assert tree_config(spec(), {"DDTREE_BUDGET": "8"}, never).block == 8
    unset = spec(speculative_dflash_block_size=None)
    assert tree_config(unset, {"DDTREE_BUDGET": "8"}, lambda: 16).width == 16


@pytest.mark.parametrize(
    ("given", "environ", "says"),
    [
        ({}, {}, "no budget. Set DDTREE_BUDGET"),
        ({"speculative_eagle_topk": None}, {"DDTREE_BUDGET": "8"}, "no topk"),
        ({}, {"DDTREE_BUDGET": "8", "DDTREE_TOPK": "2"}, "is 4 but DDTREE_TOPK is 2"),
        ({}, {"DDTREE_BUDGET": "0"}, "DDTREE_BUDGET is '0'"),
        ({"speculative_ddtree_budget": 9}, {"DDTREE_BUDGET": "8"}, "is 9 but DDTREE_BUDGET is 8"),
        ({}, {"DDTREE_BUDGET": "eight"}, "DDTREE_BUDGET is 'eight'"),
        ({}, {"DDTREE_BUDGET": "-8"}, "whole number above 0"),
        ({}, {"DDTREE_BUDGET": "٨"}, "whole number above 0"),
        ({}, {"DDTREE_BUDGET": "128"}, "at most 128 fit"),
        ({"speculative_num_draft_tokens": 8}, {"DDTREE_BUDGET": "8"}, "= 9 rows"),
        ({"speculative_num_draft_tokens": 6}, {"DDTREE_BUDGET": "3"}, "= 8 rows"),
        ({"speculative_num_draft_tokens": 1, "speculative_dflash_block_size": 2}, {},
         "budget 0 drafts nothing"),
        ({"speculative_dflash_block_size": 1}, {"DDTREE_BUDGET": "8"}, "block size is 1"),
        ({"speculative_dflash_block_size": None}, {"DDTREE_BUDGET": "8"}, "block size is None"),
        ({"speculative_eagle_topk": 0}, {"DDTREE_BUDGET": "8"}, "--speculative-eagle-topk is 0"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be(given: dict[str, Any], environ: dict[str, str], says: str) -> None:
    with pytest.raises(DDTreeConfigError) as caught:
        tree_config(spec(**given), environ)
    assert says in str(caught.value)


def serving(**given: Any) -> SimpleNamespace:
    """What a plain CUDA server's arguments say of everything that is looked at."""
    plain = {
        "speculative_draft_model_path": "d", "device": "cuda", "page_size": 1,
        "attention_backend": "triton", "prefill_attention_backend": None,
        "decode_attention_backend": None, "speculative_attention_mode": "prefill",
        "attn_dp_size": 1, "pp_size": 1, "attn_cp_size": 1, "dcp_size": 1,
        "disaggregation_mode": "null", "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0, "speculative_draft_window_size": None,
        "enable_lora": None, "lora_paths": None, "enable_deterministic_inference": False,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **given})


BREAKS: dict[str, dict[str, Any]] = {
    "attention data parallelism": {"attn_dp_size": 2},
    "pipeline parallelism": {"pp_size": 2},
    "context parallelism": {"dcp_size": 2},
    "prefill/decode disaggregation": {"disaggregation_mode": "decode"},
    "unified memory": {"enable_unified_memory": True},
    "hierarchical sparse attention": {"enable_hisparse": True},
    "LoRA": {"lora_paths": ["a"]},
    "PD multiplexing": {"enable_pdmux": True},
    "two-batch overlap": {"enable_two_batch_overlap": True},
    "linear attention replay": {"enable_linear_replayssm_spec": True},
    "adaptive speculation": {"speculative_adaptive": True},
    "rejection sampling": {"speculative_use_rejection_sampling": True},
    "block verification": {"speculative_use_block_verification": True},
    "a draft window": {"speculative_draft_window_size": 64},
    "multi-layer EAGLE": {"enable_multi_layer_eagle": True},
    "a draft token map": {"speculative_token_map": "map.pt"},
    "diffusion language models": {"dllm_algorithm": "LowConfidence"},
    "lossy acceptance": {"speculative_accept_threshold_acc": 0.9},
    "a cache of four bits": {"kv_cache_dtype": "fp4_mx_block16"},
    "watermarking": {"enable_watermark": True},
    "aux hidden states in answers": {"enable_return_aux_hidden_states": True},
    "hidden states in answers": {"enable_return_hidden_states": True},
}


def test_a_plain_server_is_served() -> None:
    assert list(refusals(serving(), uses_mla=False)) == []
    assert list(refusals(serving(), uses_mla=True)) == []


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda r: r.name)
def test_each_refusal_is_one_clear_error(refusal: Any) -> None:
    (said,) = refusals(serving(**BREAKS[refusal.name]), uses_mla=False)
    assert said.startswith(f"DDTREE does not run with {refusal.name}: ")
    assert said.rpartition(". ")[2].startswith(("Drop --", "Set --"))


def test_no_drafter_and_several_faults_are_all_said() -> None:
    said = list(refusals(serving(speculative_draft_model_path=None, pp_size=2), uses_mla=False))
    assert [s.split(":")[0] for s in said] == [
        "DDTREE needs a DFlash drafter",
        "DDTREE does not run with pipeline parallelism",
    ]


MLA_ONLY_WRONG = ("flashinfer", "trtllm_mla", "cutedsl_mla", "flashmla")
ALWAYS_WRONG = ("trtllm_mha", "fa4", "torch_native", "aiter", None, "")


@pytest.mark.parametrize("backend", MLA_ONLY_WRONG + ALWAYS_WRONG)
def test_mla_is_verified_by_triton_and_fa3_only(backend: str | None) -> None:
    said = backend_refusal(backend, device="cuda", uses_mla=True, page_size=1)
    assert said is not None
    assert said.endswith("Set --attention-backend to one of triton, fa3")
    for good in ("triton", "fa3"):
        assert backend_refusal(good, device="cuda", uses_mla=True, page_size=64) is None


@pytest.mark.parametrize(
    ("window", "backend", "refused"),
    [
        (128, "FlashInferAttnBackend", True),
        (128, "TritonAttnBackend", False),
        (128, "FlashAttentionBackend", False),
        (0, "FlashInferAttnBackend", False),
        (None, "FlashInferAttnBackend", False),
        (-1, "FlashInferAttnBackend", False),
    ],
)
def test_a_window_that_would_read_other_rows_than_the_trees_is_refused(
    window: int | None, backend: str, refused: bool
) -> None:
    said = window_refusal(window, backend)
    assert (said is not None) is refused
    if said is not None:
        assert "window of 128 tokens" in said
        assert "--attention-backend triton" in said


@pytest.mark.parametrize("backend", ALWAYS_WRONG)
def test_other_attention_has_three_backends(backend: str | None) -> None:
    said = backend_refusal(backend, device="cuda", uses_mla=False, page_size=1)
    assert said is not None
    assert "silently wrong" in said
    for good in ("triton", "flashinfer", "fa3"):
        assert backend_refusal(good, device="cuda", uses_mla=False, page_size=16) is None


def test_a_cpu_has_one_backend() -> None:
    for mla in (False, True):
        assert backend_refusal("torch_native", device="cpu", uses_mla=mla, page_size=1) is None
        for backend in ("triton", "intel_amx", "flashinfer", None):
            said = backend_refusal(backend, device="cpu", uses_mla=mla, page_size=1)
            assert said == (
                f"DDTREE on a CPU verifies with --attention-backend torch_native; got {backend}"
            )
    seeded = serving(
        device="cpu", attention_backend="torch_native", enable_deterministic_inference=True
    )
    (said,) = refusals(seeded, uses_mla=False)
    assert "seeded sampling" in said


def test_the_backend_that_verifies_is_the_one_that_is_looked_at() -> None:
    split = {"prefill_attention_backend": "fa3", "decode_attention_backend": "trtllm_mha"}
    assert verify_backend(serving(**split)) == "fa3"
    assert verify_backend(serving(**split, speculative_attention_mode="decode")) == "trtllm_mha"
    assert verify_backend(serving()) == "triton"


def request(**given: Any) -> SimpleNamespace:
    params = {
        "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "repetition_penalty": 1.0, "min_new_tokens": 0,
    }  # fmt: skip
    req = {"return_hidden_states": False, "custom_logit_processor": None}
    for name, value in given.items():
        (params if name in params else req)[name] = value
    return SimpleNamespace(**req, sampling_params=SimpleNamespace(**params))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_p", 0.1), ("frequency_penalty", 0.5), ("presence_penalty", -0.5),
        ("repetition_penalty", 1.1), ("min_new_tokens", 4), ("custom_logit_processor", "code"),
        ("return_hidden_states", True),
    ],
)  # fmt: skip
def test_a_request_is_refused_for_what_verification_ignores(name: str, value: object) -> None:
    assert request_refusal(request()) is None
    said = request_refusal(request(**{name: value}))
    assert said is not None
    assert said.startswith("DDTREE does not ")
