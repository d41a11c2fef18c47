"""Needs the engine's interpreter: torch for the kernels, SGLang for what is compared with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

STUBS = "triton,torchvision,soundfile,IPython,sgl_kernel"


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in a fresh interpreter, where the .pth file acts as in a server process."""

    def run(script: str, stubs: str = STUBS) -> subprocess.CompletedProcess[str]:
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("DDOPS_", "SGLANG_"))
        }
        environment |= {
            "DDOPS_CPU_STUBS": stubs,
            "SGLANG_USE_CPU_ENGINE": "1",
            "TORCH_COMPILE_DISABLE": "1",
        }
        return subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run
