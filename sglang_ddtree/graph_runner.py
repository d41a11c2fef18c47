"""The target's decode graphs, captured so that a replay reads the tree's mask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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

    def load_batch(self, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        with mask_in_place(forward_batch.spec_info, self.attn_backend):
            return super().load_batch(forward_batch, *args, **kwargs)


@contextmanager
def mask_in_place(spec_info: Any, backend: Any) -> Iterator[None]:
    """Spare Triton's copy of a mask onto itself: the tree was written into its buffer already.

    The copy is of the whole buffer, `requests * width * (context + width)` cells: 57 MB a step for
    48 requests of 9 rows at a context of 131072. An empty mask still says that there is one.
    """
    owned = backend.verify_mask
    copies = type(backend).__name__ == "TritonAttnBackend"
    if (
        spec_info is None
        or owned is None
        or not copies
        or spec_info.custom_mask is not owned.buffer
    ):
        yield
        return
    spec_info.custom_mask = owned.buffer[:0]
    try:
        yield
    finally:
        spec_info.custom_mask = owned.buffer
