"""Looks at GPUs while a run goes on: all of them arrive, and where none came that is said.

To see it fail: let the sampler of ddops/hostside/load/__main__.py write into a pipe.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ddops.hostside.load.__main__ import end_sampler, start_sampler, unlooked
from tests.lab.looking import until

PLAN: dict[str, Any] = {"host": "127.0.0.1", "port": 9, "around": {"sample_s": 0.05}}
#: A look at so many GPUs fills the 64 KiB of a pipe with the third.
GPUS = 128


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `nvidia-smi` of many GPUs."""
    line = "GPU-00000000-0000-0000-0000-000000000000, 1980, 3201, 650.12, 700.00, 61, 99, 131072"
    (tmp_path / "rows").write_text(f"{line}, 0x0000000000000000\n" * GPUS)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nexec cat {tmp_path}/rows\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("gpus")
def test_a_long_run_on_many_gpus_is_looked_at_to_its_end() -> None:
    process, said = watcher = start_sampler(PLAN, None)
    try:
        until(lambda: os.fstat(said.fileno()).st_size > 4 * 65536, what="more than a pipe holds")
    finally:
        rows = end_sampler(watcher)
    assert process.returncode == 0
    assert len(rows) > 6
    assert all(len(r["gpus"]) == GPUS for r in rows)
    assert [r["at"] for r in rows] == sorted(r["at"] for r in rows)


def test_the_longest_time_without_a_look_counts_from_the_first_moment_to_the_last() -> None:
    second = 1_000_000_000

    def looked(*seconds: int, **more: object) -> float:
        return float(unlooked([{"at": second * n, **more} for n in seconds], 60 * second))

    assert looked(*range(60)) == looked(*range(60), gpus=[{"clocks.sm": 1.0}]) == 1.0
    assert looked(*range(24)) == 37.0
    assert looked() == 60.0
    assert looked(-1, 61) == 60.0, "before and behind is no look"
    assert looked(*range(60), gpus=[{"error": "timed out"}]) == 60.0, "nobody saw a GPU"
