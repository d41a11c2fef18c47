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


MLA = """
from types import SimpleNamespace
from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
get = AttentionBackendRegistry.get_handler
print(get("torch_native")(SimpleNamespace(use_dsa=False), None).name)
print(get("triton").__name__, get("fa3").__name__)
try:
    get("torch_native")(SimpleNamespace(use_dsa=True), None)
except NotImplementedError as error:
    print(error)
"""


def test_latent_attention_is_absorbed_on_torch_native_alone(run_python: Run) -> None:
    result = run_python(LOAD + MLA)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:2] == ["MLA", "handle_attention_triton handle_attention_fa3"]
    assert "sparse latent attention (DSA) is not available on the CPU engine" in lines[2]


ROPE = """
import torch
from sglang.srt.layers.rotary_embedding import get_rope, get_rope_wrapper
where = (16, 16, 64, 10000, False)
plain = get_rope_wrapper(*where, None, torch.float32, device="cpu")
print(type(plain).__name__, plain is get_rope(*where, None, torch.float32))
yarn = {"rope_type": "deepseek_yarn", "factor": 4.0, "original_max_position_embeddings": 16}
print(type(get_rope_wrapper(*where, yarn, torch.float32, device="cpu")).__name__)
try:
    get_rope_wrapper(*where, {"rope_type": "linear", "factor": 2.0}, torch.float32, device="cpu")
except AssertionError as error:
    print(error)
"""


def test_latent_attention_turns_without_yarn_too(run_python: Run) -> None:
    result = run_python(LOAD + ROPE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "RotaryEmbedding True",
        "DeepseekScalingRotaryEmbedding",
        "Only deepseek_yarn is supported for CPU for now",
    ]
