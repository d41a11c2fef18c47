"""The tier of the draft tree: torch and Triton in an environment of its own (`make ddtree`).

Triton's kernels run in its interpreter: no GPU is needed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")
REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "bench/gpu"), str(REPO / "bench/gpu/probe")]

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import pytest
    import torch
    from hypothesis import settings

    def pytest_configure(config: pytest.Config) -> None:
        """Triton's interpreter takes numbers out of arrays in a way that NumPy frowns on."""
        config.addinivalue_line(
            "filterwarnings", "ignore:Conversion of an array:DeprecationWarning"
        )

    torch.set_num_threads(1)  # the tensors are tiny, and CI has two cores
    settings.register_profile("tier", deadline=None, print_blob=True)
    settings.load_profile("tier")
