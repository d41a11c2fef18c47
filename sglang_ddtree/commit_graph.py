"""The end of a step as a captured graph: the accepted path's keys and values, and the drafter's.

A verify pass on a GPU ends in a dozen small launches whose shapes depend on the batch size alone.
Replayed, they are one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_ddtree.commit import TreePath


@dataclass(frozen=True, slots=True)
class Captured:
    """One batch size: what the graph reads, and the graph."""

    path: TreePath
    hidden: Tensor  #: [bs * F, H], the target's hidden states of the path's rows
    graph: torch.cuda.CUDAGraph


class CommitGraphs:
    """`work(path, hidden)` once a batch size. A batch in between fills up with empty paths.

    `kept` names what the captured kernels point at and others might drop: it must live as long.
    """

    def __init__(
        self,
        work: Callable[[TreePath, Tensor], None],
        kept: Callable[[], Iterable[Tensor]],
        *,
        sizes: Iterable[int],
        front: int,
        features: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._sizes = sorted(set(sizes))
        hidden = torch.zeros(
            (self._sizes[-1] * front, features), dtype=dtype, device=device
        )  # all sizes share it: one of them is replayed at a time
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[int, Captured] = {}
        self._kept: list[Tensor] = []
        for size in reversed(self._sizes):  # the largest first, whose workspace fits all
            path = _nothing(size, front, device)
            self._captured[size] = self._capture(work, path, hidden[: size * front])
            self._kept += kept()

    def _capture(
        self, work: Callable[[TreePath, Tensor], None], path: TreePath, hidden: Tensor
    ) -> Captured:
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            for _ in range(2):  # compilers and workspaces, before anything is captured
                work(path, hidden)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads of a server go on talking to the device meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            work(path, hidden)
        return Captured(path, hidden, graph)

    def of(self, bs: int) -> Captured | None:
        """The smallest one that holds `bs` requests; None when the batch is larger than all."""
        at = bisect_left(self._sizes, bs)
        return self._captured[self._sizes[at]] if at < len(self._sizes) else None


def _nothing(bs: int, front: int, device: torch.device) -> TreePath:
    """Paths of length 0: a pass over them writes slot 0 alone, which holds nothing."""
    path = TreePath.of(bs, front, device)
    path.places.zero_()
    path.lens.zero_()
    return path
