"""Tests that the engine's own interpreter runs (tests/engine/test_ddtree_inside.py starts it)."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["test_*.py"]
