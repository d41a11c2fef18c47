"""Stand-ins import and decorate; using them raises."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

KERNEL = """
import triton, triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
@triton.heuristics({"EVEN": lambda args: True})
@triton.jit(do_not_specialize=["n"])
def add(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr, tl.load(x_ptr) + 1)
"""


def outcome(run_python: Run, script: str, **options: str) -> str:
    result = run_python(script, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def raised(expression: str, setup: str = "") -> str:
    return f"""{setup}
try:
    {expression}
except NotImplementedError as error:
    print(error)
else:
    print("SILENT")
"""


def missing(module: str) -> str:
    return f"try:\n    import {module}\nexcept ImportError as error:\n    print(error.name)\n"


@pytest.mark.parametrize(
    ("expression", "setup", "name"),
    [
        ("add[(1,)](None, 4, BLOCK=64)", KERNEL, "triton kernel __main__.add"),
        ("add(None, 4)", KERNEL, "triton kernel __main__.add"),
        ("add.warmup(None, 4)", KERNEL, "triton kernel __main__.add"),
        ("tl.load(1)", "import triton.language as tl", "triton.language.load"),
        ("triton.testing.do_bench(print)", "import triton", "triton.testing.do_bench"),
        (
            "k(1)",
            "from sgl_kernel import build_tree_kernel_efficient_cpu as k",
            "sgl_kernel.build_tree_kernel_efficient_cpu",
        ),
        (
            "k(1)",
            "from sgl_kernel.flash_attn import flash_attn_varlen_func as k",
            "sgl_kernel.flash_attn.flash_attn_varlen_func",
        ),
        ("T.Resize(3)", "import torchvision.transforms as T", "torchvision.transforms.Resize"),
        ("sf.read('x')", "import soundfile as sf", "soundfile.read"),
        (
            "bool(x)",
            "from triton.language.extra import libdevice as x",
            "triton.language.extra.libdevice",
        ),
        ("list(x)", "from soundfile import formats as x", "soundfile.formats"),
    ],
)
def test_use_raises_and_names_it(run_python: Run, expression: str, setup: str, name: str) -> None:
    printed = outcome(run_python, raised(expression, setup))
    assert name in printed and "not available on the CPU engine" in printed


def test_provided_kernels_are_the_real_functions(run_python: Run) -> None:
    script = """
import sgl_kernel, sgl_kernel.speculative
from ddops_sglang_cpu import kernels
for module in (sgl_kernel, sgl_kernel.speculative):
    print(all(getattr(module, name) is getattr(kernels, name) for name in kernels.__all__))
"""
    assert outcome(run_python, script) == "True\nTrue"


def test_probes_see_nothing_before_and_after_the_import(run_python: Run) -> None:
    script = """
from importlib.util import find_spec
names = ("triton", "torchvision", "sgl_kernel")
print([find_spec(name) for name in names])
import triton, torchvision.transforms, sgl_kernel
print([find_spec(name) for name in (*names, "torchvision.transforms")])
print(find_spec("json") is not None)
"""
    assert outcome(run_python, script) == f"{[None] * 3}\n{[None] * 4}\nTrue"


def test_installed_and_unlisted_modules_are_left_alone(run_python: Run) -> None:
    script = "import numpy; print(numpy.__version__ > '2')\n" + missing("soundfile")
    assert outcome(run_python, script, stubs="numpy,triton") == "True\nsoundfile"
    script = missing("numpy.nothing")
    assert outcome(run_python, script, stubs="numpy") == "numpy.nothing"


def test_submodules_that_sglang_would_call_are_absent(run_python: Run) -> None:
    script = "import triton\n" + missing("triton.knobs")
    assert outcome(run_python, script) == "triton.knobs"


def test_no_environment_no_stand_ins(run_python: Run) -> None:
    script = "import sys; print(any('ddops' in m for m in sys.modules))\n" + missing("triton")
    assert outcome(run_python, script, stubs="") == "False\ntriton"


def test_spawned_children_have_them(run_python: Run) -> None:
    script = """
import multiprocessing
pool = multiprocessing.get_context("spawn").Pool(1)
print(pool.apply(eval, ("__import__('triton').cdiv(7, 2)",)))
pool.close()
pool.join()
"""
    assert outcome(run_python, script) == "4"
