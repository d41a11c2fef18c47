"""Entry point of the SGLang plugin (group `sglang.srt.plugins`)."""

from __future__ import annotations

import inspect
import logging
import pkgutil
from collections.abc import Iterable
from importlib.metadata import version

from ddops_sglang_cpu import SGLANG_VERSION
from ddops_sglang_cpu.hooks import HOOKS, Hook

logger = logging.getLogger(__name__)


class EngineMismatchError(RuntimeError):
    """The installed SGLang is not the one that the hooks were written for."""


def check_engine(hooks: Iterable[Hook] = HOOKS) -> None:
    """Raise unless SGLang has the exact version and every hooked function its known parameters."""
    found = version("sglang")
    if found != SGLANG_VERSION:
        raise EngineMismatchError(
            f"private functions of SGLang {SGLANG_VERSION} are hooked; installed is {found}"
        )
    for hook in hooks:
        _check_target(hook)


def _check_target(hook: Hook) -> None:
    try:
        target = pkgutil.resolve_name(hook.target)
    except (ImportError, AttributeError) as error:
        raise EngineMismatchError(
            f"{hook.target} is missing in SGLang {SGLANG_VERSION}: {error}"
        ) from error
    if hook.parameters is None:
        return
    # A second check in one process sees the wrapper of HookRegistry; `signature` follows
    # __wrapped__ to the original.
    parameters = tuple(inspect.signature(target).parameters)
    if parameters[: len(hook.parameters)] != hook.parameters:
        raise EngineMismatchError(
            f"{hook.target} takes {parameters}, its hook was written for {hook.parameters}"
        )


def register() -> None:
    """Register the hooks; end the process when SGLang is not the version they fit.

    SGLang logs a plugin's Exception and serves on (srt/plugins/__init__.py:135), which here would
    mean wrong output or a late failure. SystemExit passes that handler.
    """
    from sglang.srt.arg_groups import choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.utils import is_cpu

    try:
        check_engine()
    except EngineMismatchError as error:
        raise SystemExit(f"ddops-sglang-cpu: {error}") from error
    if not is_cpu():
        logger.warning("SGLANG_USE_CPU_ENGINE=1 is not set: the CPU hooks stay off")
        return
    # srt/speculative/draft_worker_common.py:51 sends an unlisted draft backend to flashinfer.
    if "torch_native" not in choices.DRAFT_ATTENTION_BACKEND_CHOICES:
        choices.add_draft_attention_backend_choices(["torch_native"])
    for hook in HOOKS:
        HookRegistry.register(hook.target, hook.function, HookType(hook.kind))
