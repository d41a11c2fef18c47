"""Import hook: stands in for packages that SGLang imports and a CPU server does not use.

`DDOPS_CPU_STUBS` lists the top-level modules, comma separated; a module that is really installed is
never replaced. Runs at the start of every Python process (.pth), SGLang's spawned children
included, so it imports next to nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ENVIRONMENT_VARIABLE = "DDOPS_CPU_STUBS"

ABSENT = frozenset({"triton.knobs"})
"""Submodules that SGLang does without when they are missing, and would call when they are there.

srt/utils/triton_load_watch.py:46 hangs a warning about late kernel loads on triton.knobs, and
returns on ImportError. Nothing is loaded here, so there is nothing to warn about.
"""


class StubFinder(MetaPathFinder, Loader):
    """Last of `sys.meta_path`: asked only for what no other finder has."""

    def __init__(self, roots: frozenset[str]) -> None:
        self.roots = roots

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root not in self.roots or fullname in ABSENT:
            return None
        if rest and not isinstance(getattr(sys.modules.get(root), "__loader__", None), StubFinder):
            return None  # the root is really installed: its missing submodule stays an ImportError
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        from ddops_sglang_cpu.placeholders import StubModule

        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = f"<CPU stand-in of {module.__name__}>"
        if module.__name__.partition(".")[0] == "triton":
            self._fill_triton(module)
        elif module.__name__ in ("sgl_kernel", "sgl_kernel.speculative"):
            self._fill_sgl_kernel(module)

    @staticmethod
    def _fill_triton(module: ModuleType) -> None:
        from ddops_sglang_cpu.triton_stub import MODULE_ATTRIBUTES

        vars(module).update(MODULE_ATTRIBUTES.get(module.__name__, {}))
        # `from triton import language` asks for the attribute first, and would get a placeholder.
        prefix = module.__name__ + "."
        for name in {
            name.removeprefix(prefix).partition(".")[0]
            for name in MODULE_ATTRIBUTES
            if name.startswith(prefix)
        }:
            importlib.import_module(prefix + name)
        if module.__name__ == "triton":
            importlib.import_module("triton.experimental.gluon")

    @staticmethod
    def _fill_sgl_kernel(module: ModuleType) -> None:
        from ddops_sglang_cpu import kernels

        vars(module).update({name: getattr(kernels, name) for name in kernels.__all__})


def install() -> None:
    """Activate the stand-ins named by the environment; a second call changes nothing."""
    roots = frozenset(
        filter(None, (name.strip() for name in os.environ.get(ENVIRONMENT_VARIABLE, "").split(",")))
    )
    if not roots or any(isinstance(finder, StubFinder) for finder in sys.meta_path):
        return
    sys.meta_path.append(StubFinder(roots))
    _hide_from_probes()


def _hide_from_probes() -> None:
    """Answer `importlib.util.find_spec` with None for a stand-in.

    transformers decides by find_spec whether torchvision is there, and would then use it.
    """
    real_find_spec = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        spec = real_find_spec(name, package)
        return None if spec is not None and isinstance(spec.loader, StubFinder) else spec

    importlib.util.find_spec = find_spec
