"""The plugin fits the installed SGLang, and says so loudly when it does not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Run = Callable[..., "subprocess.CompletedProcess[str]"]

LOAD = "from sglang.srt.plugins import load_plugins; load_plugins()\n"


CHECK = """
import torch
from ddops_sglang_cpu.hooks import HOOKS
from ddops_sglang_cpu.plugin import check_engine
from sglang.srt.arg_groups import choices
from sglang.srt.plugins.hook_registry import HookRegistry
check_engine()
print({hook.target for hook in HOOKS} <= HookRegistry._patched)
print("torch_native" in choices.DRAFT_ATTENTION_BACKEND_CHOICES)
torch.ones(1).record_stream(torch.cpu.current_stream())
"""


def test_hooks_fit_and_are_applied(run_python: Run) -> None:
    result = run_python(LOAD + CHECK)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True", "True"]


def test_another_version_ends_the_process(run_python: Run) -> None:
    result = run_python(
        "import ddops_sglang_cpu; ddops_sglang_cpu.SGLANG_VERSION = '0.5.99'\n"
        + LOAD
        + "print('served')"
    )
    assert result.returncode == 1
    assert "installed is 0.5.23" in result.stderr and "served" not in result.stdout


def test_a_missing_function_ends_the_process(run_python: Run) -> None:
    script = (
        "import sglang.srt.arg_groups.speculative_hook as m; del m._handle_dflash\n"
        + LOAD
        + "print('served')"
    )
    result = run_python(script)
    assert result.returncode == 1
    assert "_handle_dflash is missing" in result.stderr and "served" not in result.stdout


def test_changed_parameters_end_the_process(run_python: Run) -> None:
    script = (
        "import sglang.srt.arg_groups.speculative_hook as m; m._handle_dflash = lambda args: None\n"
        + LOAD
        + "print('served')"
    )
    result = run_python(script)
    assert result.returncode == 1
    assert (
        "its hook was written for ('server_args',)" in result.stderr
        and "served" not in result.stdout
    )
