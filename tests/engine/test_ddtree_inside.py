"""The plugin's own tests that need the engine's interpreter, and its preflight."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.engine.ddtree_support import REPO

pytestmark = pytest.mark.engine

CPU = {
    "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1",
    "OMP_NUM_THREADS": "1", "DDOPS_CPU_STUBS": "triton,torchvision,soundfile,IPython,sgl_kernel",
}  # fmt: skip


def run(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DDTREE_", "SGLANG_"))}
    return subprocess.run(
        [str(python), *words],
        env={**clean, **CPU, "DDTREE_TEST_MODELS": str(REPO / "lab/models")},
        capture_output=True, text=True, timeout=900, check=False, cwd=REPO / "tests/engine/inside",
    )  # fmt: skip


def test_the_plugin_fits_the_engine(engine_python: Path) -> None:
    """tests/engine/inside, by pytest of this environment in the engine's interpreter."""
    code = (
        "import sys; sys.path.append(sys.argv[1]); import pytest;"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir', '.', '-c', '/dev/null',"
        " '.']))"
    )
    done = run(engine_python, "-c", code, sysconfig.get_path("purelib"))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_a_preflight_can_ask_whether_ddtree_would_start(engine_python: Path) -> None:
    done = run(engine_python, "-m", "sglang_ddtree")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "algorithm": "DDTREE", "sglang": "0.5.23", "problems": [],
    }  # fmt: skip
