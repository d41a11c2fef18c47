"""The hooks on SGLang. Each one answers for DDTREE and passes everything else on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from sglang_ddtree.args import ALGORITHM, request_refusal


def is_ddtree(spec_algorithm: object) -> bool:
    return getattr(spec_algorithm, "name", None) == ALGORITHM


def decode_graph_runner_class(original: Callable[..., type], runner: Any) -> type:
    """Capture the target's verify graphs with a tree's mask; the drafter's stay as they are.

    SGLang captures the dflash family without any mask, and a replay then reads none.
    """
    if not is_ddtree(runner.spec_algorithm) or runner.is_draft_worker:
        return original(runner)
    from sglang_ddtree.graph_runner import DDTreeDecodeCudaGraphRunner

    return DDTreeDecodeCudaGraphRunner


def dummy_verify_input(
    original: Callable[..., Any],
    spec_algorithm: Any,
    custom_mask: Any,
    num_tokens_per_req: int,
    is_draft_worker: bool,
) -> Any:
    """The warm-up pass takes the kernels that serving takes: the target's with a mask."""
    if not is_ddtree(spec_algorithm) or is_draft_worker:
        return original(spec_algorithm, custom_mask, num_tokens_per_req, is_draft_worker)
    return spec_algorithm.make_capture_verify_input(
        custom_mask=custom_mask,
        num_tokens_per_req=num_tokens_per_req,
        is_draft_worker=is_draft_worker,
    )


def validate_request(
    original: Callable[..., str | None], req: Any, enable_overlap: bool
) -> str | None:
    """Refuse, one request at a time, what verification would ignore."""
    from sglang.srt.runtime_context import get_spec

    if get_spec().speculative_algorithm != ALGORITHM:
        return original(req, enable_overlap)
    return request_refusal(req)


#: Target workers whose model keeps no state but its keys and values.
_stateless: weakref.WeakSet[Any] = weakref.WeakSet()


def stateless(target_worker: Any) -> None:
    """Say that this worker's model has no linear attention: it was looked at once."""
    _stateless.add(target_worker)


def commit_states(
    original: Callable[..., None], target_worker: Any, *args: Any, **kwargs: Any
) -> None:
    """Spare a search of the model's configuration at every step, whose answer is known."""
    if target_worker not in _stateless:
        original(target_worker, *args, **kwargs)


def relays_hidden_states(original: Callable[[], bool]) -> bool:
    """No: a step's hidden states end in the drafter's cache. SGLang asks by name, not by family,
    and would carry tensors of no columns from step to step."""
    from sglang.srt.runtime_context import get_spec

    return get_spec().speculative_algorithm != ALGORITHM and original()


HOOKS: tuple[tuple[str, Callable[..., Any]], ...] = (
    (
        "sglang.srt.model_executor.model_runner.ModelRunner._decode_cuda_graph_runner_cls",
        decode_graph_runner_class,
    ),
    ("sglang.srt.speculative.spec_info.create_dummy_verify_input", dummy_verify_input),
    ("sglang.srt.speculative.dflash_utils.validate_dflash_request", validate_request),
    (
        "sglang.srt.speculative.eagle_worker_common.commit_mamba_states_after_verify",
        commit_states,
    ),
    ("sglang.srt.speculative.spec_utils.spec_need_hidden_states", relays_hidden_states),
)


def install() -> None:
    """Hand the hooks to SGLang, which applies them once every plugin has loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in HOOKS:
        HookRegistry.register(target, hook, HookType.AROUND)


def missing() -> list[str]:
    """Hooks that SGLang has not applied: it logs a failure and goes on."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    return sorted({target for target, _ in HOOKS} - HookRegistry._patched)


def assert_applied() -> None:
    """Raise when a hook is missing: without one, the output would be silently wrong."""
    if absent := missing():
        raise RuntimeError(f"DDTREE: SGLang did not apply the hooks on {', '.join(absent)}")
