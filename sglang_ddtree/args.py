"""The configuration of DDTREE, and every combination that it refuses. No torch, no SGLang.

SGLang's plugins cannot add options: existing ones carry the numbers and the environment the rest.

- `--speculative-num-draft-tokens` is the verify width Q, root included; at least budget + 1, and
  at least the block.
- `--speculative-eagle-topk` (or `DDTREE_TOPK`) is the most children a node may have.
- `--speculative-dflash-block-size` is the drafter's block; its own configuration is the default.
- `DDTREE_BUDGET` is the number of drafted nodes; default Q - 1. A smaller one leaves rows unused.
  An engine with our patches has `--speculative-ddtree-budget` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ALGORITHM = "DDTREE"
#: Verify rows a request; the tree kernels keep one bit a row of the mask in two 64-bit words.
MAX_WIDTH = 128
#: Attention backends that apply a tree's mask, by kind of attention.
TREE_BACKENDS = {"MHA": ("triton", "flashinfer", "fa3"), "MLA": ("triton", "fa3")}
#: The one backend of the CPU lab engine, whose mask `ddops-sglang-cpu` supplies.
CPU_BACKEND = "torch_native"


class DDTreeConfigError(ValueError):
    """A setting that DDTREE cannot work with. The text says what, why and what to set instead."""


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """The four numbers of a tree. `width` rows are verified, `budget` of them can be drafted."""

    budget: int
    topk: int
    block: int
    width: int

    @property
    def depth(self) -> int:
        """No accepted path is longer: positions drafted, or nodes if there are fewer."""
        return min(self.block - 1, self.budget)


def tree_config(
    args: Any, environ: Mapping[str, str], model_block: Callable[[], int | None] = lambda: None
) -> TreeConfig:
    """The tree of a `ServerArgs` or of the resolved `spec` group, whose fields are named the same.

    `model_block` reads the block size from the drafter's configuration, and is asked only when no
    option gives it.
    """
    block = _option(args.speculative_dflash_block_size, "--speculative-dflash-block-size")
    if block is None:
        block = model_block()
    if block is None or block < 2:
        raise DDTreeConfigError(
            f"DDTREE: the drafter's block size is {block}; it must be 2 or more. "
            "Set --speculative-dflash-block-size to the block the drafter was trained with"
        )
    width = _option(args.speculative_num_draft_tokens, "--speculative-num-draft-tokens")
    budget = _agreed(
        _option(getattr(args, "speculative_ddtree_budget", None), "--speculative-ddtree-budget"),
        "--speculative-ddtree-budget", environ, "DDTREE_BUDGET",
    )  # fmt: skip
    if budget is None:
        if width is None:
            raise DDTreeConfigError(
                "DDTREE: no budget. Set DDTREE_BUDGET to the number of drafted nodes, "
                "or --speculative-num-draft-tokens to one more than that"
            )
        budget = width - 1
    return _checked(budget, _topk(args, environ), block, width)


def _topk(args: Any, environ: Mapping[str, str]) -> int:
    flag = _option(args.speculative_eagle_topk, "--speculative-eagle-topk")
    topk = _agreed(flag, "--speculative-eagle-topk", environ, "DDTREE_TOPK")
    if topk is None:
        raise DDTreeConfigError(
            "DDTREE: no topk. Set --speculative-eagle-topk to the most children a node may have"
        )
    return topk


def _agreed(flag: int | None, option: str, environ: Mapping[str, str], name: str) -> int | None:
    """The option's value or the variable's; both must say the same where both are there."""
    variable = _variable(environ, name)
    if flag is not None and variable is not None and flag != variable:
        raise DDTreeConfigError(f"DDTREE: {option} is {flag} but {name} is {variable}. Drop one")
    return variable if flag is None else flag


def _checked(budget: int, topk: int, block: int, width: int | None) -> TreeConfig:
    if budget < 1:
        raise DDTreeConfigError(f"DDTREE: budget {budget} drafts nothing; it must be 1 or more")
    needed = max(budget + 1, block)
    if width is None:
        width = needed
    if width < needed:
        raise DDTreeConfigError(
            f"DDTREE: --speculative-num-draft-tokens {width} is too narrow for budget {budget} and "
            f"block {block}: the verify pass needs max(budget + 1, block) = {needed} rows a request"
        )
    if width > MAX_WIDTH:
        raise DDTreeConfigError(
            f"DDTREE: {width} verify rows a request; at most {MAX_WIDTH} fit. Lower the budget"
        )
    return TreeConfig(budget, topk, block, width)


def _option(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if int(value) < 1:
        raise DDTreeConfigError(f"DDTREE: {name} is {value}; it must be 1 or more")
    return int(value)


def _variable(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise DDTreeConfigError(f"DDTREE: {name} is {text!r}; it must be a whole number above 0")
    return int(text)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One combination that DDTREE does not serve."""

    name: str
    found: Callable[[Any], bool]
    why: str
    instead: str

    def message(self) -> str:
        return f"DDTREE does not run with {self.name}: {self.why}. {self.instead}"


def _above_one(*fields: str) -> Callable[[Any], bool]:
    return lambda args: any(int(getattr(args, f, None) or 1) > 1 for f in fields)


def _set(*fields: str) -> Callable[[Any], bool]:
    return lambda args: any(bool(getattr(args, f, None)) for f in fields)


def _not(field: str, plain: object) -> Callable[[Any], bool]:
    return lambda args: getattr(args, field, plain) not in (plain, None)


_NOT_TRIED = "the tree was never verified under it"

REFUSALS: tuple[Refusal, ...] = (
    Refusal("attention data parallelism", lambda a: _above_one("attn_dp_size")(a)
            or _set("enable_dp_attention")(a),
            "idle ranks would verify another width", "Drop --attn-dp-size"),
    Refusal("pipeline parallelism", _above_one("pp_size"),
            "the tree is drafted and verified in one stage", "Set --pp-size 1"),
    Refusal("context parallelism", _above_one("attn_cp_size", "dcp_size"), _NOT_TRIED,
            "Set --attn-cp-size 1 and --dcp-size 1"),
    Refusal("prefill/decode disaggregation", _not("disaggregation_mode", "null"),
            "the drafter's cache is not transferred for it", "Drop --disaggregation-mode"),
    Refusal("unified memory", _set("enable_unified_memory"),
            "the engine allows it only for algorithms that it audited",
            "Drop --enable-unified-memory"),
    Refusal("hierarchical sparse attention", _set("enable_hisparse"),
            "it assumes a chain of drafts", "Drop --enable-hisparse"),
    Refusal("LoRA", _set("enable_lora", "lora_paths"),
            "the engine allows it only for algorithms that it names", "Drop --enable-lora"),
    Refusal("PD multiplexing", _set("enable_pdmux"), _NOT_TRIED, "Drop --enable-pdmux"),
    Refusal("two-batch overlap", _set("enable_two_batch_overlap"), _NOT_TRIED,
            "Drop --enable-two-batch-overlap"),
    Refusal("linear attention replay", _set("enable_linear_replayssm_spec"),
            "its verify kernel is causal and ignores a tree",
            "Drop --enable-linear-replayssm-spec"),
    Refusal("adaptive speculation", _set("speculative_adaptive"),
            "it switches between chains of EAGLE", "Drop --speculative-adaptive"),
    Refusal("rejection sampling", _set("speculative_use_rejection_sampling"),
            "accepting by the drafter's probability is biased for a tree that is not sampled",
            "Drop --speculative-use-rejection-sampling"),
    Refusal("block verification", _set("speculative_use_block_verification"),
            "it is defined on a chain", "Drop --speculative-use-block-verification"),
    Refusal("a draft window", _not("speculative_draft_window_size", None),
            "the drafter's compact cache is sized for a chain",
            "Drop --speculative-draft-window-size"),
    Refusal("multi-layer EAGLE", _set("enable_multi_layer_eagle"),
            "the drafter is a DFlash model", "Drop --enable-multi-layer-eagle"),
    Refusal("a draft token map", _set("speculative_token_map"),
            "the drafter borrows the target's whole head", "Drop --speculative-token-map"),
    Refusal("diffusion language models", _set("dllm_algorithm"),
            "the target must be autoregressive", "Drop --dllm-algorithm"),
    Refusal("lossy acceptance", lambda a: _lossy(a),
            "a threshold below 1.0 accepts tokens that the target did not choose",
            "Drop --speculative-accept-threshold-single and -acc"),
    Refusal("a cache of four bits", lambda a: "fp4" in str(getattr(a, "kv_cache_dtype", "")),
            "no way to move a path of it was verified", "Set --kv-cache-dtype auto"),
    Refusal("watermarking", _set("enable_watermark"), _NOT_TRIED, "Drop --enable-watermark"),
    Refusal("aux hidden states in answers", _set("enable_return_aux_hidden_states"),
            "they are consumed by the drafter", "Drop --enable-return-aux-hidden-states"),
    Refusal("hidden states in answers", _set("enable_return_hidden_states"),
            "they are consumed by the drafter", "Drop --enable-return-hidden-states"),
)  # fmt: skip


def _lossy(args: Any) -> bool:
    names = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
    return any(float(getattr(args, name, 1.0) or 0.0) != 1.0 for name in names)


def refusals(args: Any, *, uses_mla: bool) -> Iterator[str]:
    """Every reason why these arguments cannot be served, each one sentence that says what to do."""
    if not args.speculative_draft_model_path:
        yield "DDTREE needs a DFlash drafter: set --speculative-draft-model-path"
    yield from (refusal.message() for refusal in REFUSALS if refusal.found(args))
    if str(args.device) == "cpu" and args.enable_deterministic_inference:
        yield (
            "DDTREE on a CPU does not run with seeded sampling: the engine hashes seeds in a GPU "
            "kernel. Drop --enable-deterministic-inference"
        )
    if reason := backend_refusal(
        verify_backend(args), device=str(args.device), uses_mla=uses_mla, page_size=args.page_size
    ):
        yield reason


def verify_backend(args: Any) -> str | None:
    """The attention backend of the verify pass: the decode one only when speculation says so."""
    split = (
        args.decode_attention_backend
        if args.speculative_attention_mode == "decode"
        else args.prefill_attention_backend
    )
    backend: str | None = split or args.attention_backend
    return backend


def backend_refusal(
    backend: str | None, *, device: str, uses_mla: bool, page_size: int | None
) -> str | None:
    """Why this backend cannot verify a tree, or None. A backend that ignores the mask is silent."""
    if device == "cpu":
        if backend == CPU_BACKEND:
            return None
        return f"DDTREE on a CPU verifies with --attention-backend {CPU_BACKEND}; got {backend}"
    kind = "MLA" if uses_mla else "MHA"
    if backend not in TREE_BACKENDS[kind]:
        return (
            f"DDTREE: attention backend {backend} does not apply a tree mask for {kind}, and the "
            "text would be silently wrong. Set --attention-backend to one of "
            + ", ".join(TREE_BACKENDS[kind])
        )
    return None


def window_refusal(window: int | None, backend: str) -> str | None:
    """Why this backend cannot verify a tree over a sliding window of `window` tokens, or None.

    `backend` is the name of the class that runs the verify pass. FlashInfer trims what a window
    layer reads to the last tokens, but for a tree it counts them from the sequence's start: past
    the window it reads other rows than the tree's own, and the mask with another stride.
    """
    if window and window > 0 and backend == "FlashInferAttnBackend":
        return (
            f"DDTREE: over a sliding window of {window} tokens flashinfer reads the wrong rows for"
            " a tree, and the text would be silently wrong. Set --attention-backend triton"
        )
    return None


#: What a request may not ask for: the shared verify step ignores it without a word.
def request_refusal(req: Any) -> str | None:
    """Why this one request cannot be served, or None."""
    params = req.sampling_params
    if req.return_hidden_states:
        return "DDTREE does not return hidden states: the drafter consumes them"
    if float(getattr(params, "min_p", 0.0) or 0.0) > 0.0:
        return "DDTREE does not support min_p: the tree sampler would ignore it"
    if getattr(req, "custom_logit_processor", None):
        return "DDTREE does not support custom logit processors: verification would ignore them"
    neutral = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
    for name, value in neutral.items():
        if float(getattr(params, name, value) or value) != value:
            return f"DDTREE does not support {name}: it depends on the path through the tree"
    if int(getattr(params, "min_new_tokens", 0) or 0) > 0:
        return "DDTREE does not support min_new_tokens: it depends on the path through the tree"
    return None
