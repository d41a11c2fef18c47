"""The target's decode graphs, captured so that a replay reads the tree's mask."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

from sglang_ddtree.verify import capture_input


class DDTreeDecodeCudaGraphRunner(DecodeCudaGraphRunner):
    """SGLang's runner, but for what it captures a verify pass with.

    For the dflash family it captures `custom_mask=None`: the kernels are then causal, and a mask
    that is filled in at replay is never read. Siblings would see each other, and the text would be
    plausible and wrong.
    """

    def get_spec_info(self, num_tokens: int) -> Any:
        del num_tokens
        return capture_input(self.buffers.custom_mask, width=self.captured_req_width)
