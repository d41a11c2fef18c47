"""The SGLang plugin that adds DDTREE. This version registers nothing.

SGLang finds it through the entry point group `sglang.srt.plugins`. It runs inside the engine
and never imports `ddops`.
"""

from __future__ import annotations


def register() -> None:
    """Called by SGLang in each of its processes. Adds no algorithm yet, so it changes nothing."""
