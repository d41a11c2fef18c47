"""The SGLang plugin that adds DDTREE: draft trees from a DFlash drafter, verified in one pass.

SGLang finds it through the entry point group `sglang.srt.plugins`. It runs inside the engine
and never imports `ddops`.
"""

from __future__ import annotations


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang_ddtree.plugin import register as run

    run()
