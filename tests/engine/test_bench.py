"""The first real sweep: autoregressive and DFLASH on SGLang 0.5.23, on a CPU.

It proves the path of a number, not a speed: the figures say `device_class=cpu`.
"""

from __future__ import annotations

import pytest

from ddops.command import Redactor
from ddops.ledger import Ledger
from tests.engine.conftest import EngineLab

pytestmark = pytest.mark.engine

SUITE = """
kind = "sweep"
levels = [1, 2]
output_tokens = 24
waves = 3
least_requests = 4
timeout_s = 120

[limits]
send_delay_ms = 2000
noise = 1.0
short = 0.5
bound_ms = 2000

[[arms]]
profile = "tiny-ar"

[[arms]]
profile = "tiny-dflash"
"""


def test_a_sweep_over_both_ways_of_decoding_gives_valid_numbers(engine_lab: EngineLab) -> None:
    folder = engine_lab.root / "suites/tiny"
    folder.mkdir(parents=True)
    (folder / "sweep.toml").write_text(SUITE)
    done = engine_lab.ddops("bench", "sweep", "lab", "--json")
    rows = done.data()
    assert isinstance(rows, list)
    assert [r["status"] for r in rows] == ["valid"] * 4, done.err
    with Ledger.open(engine_lab.root / ".ddops/ledger.db", redactor=Redactor(), readonly=True) as k:
        runs = {str(r["run"]): k.run(str(r["run"])) for r in rows}
        assert k.verify() == []
        cells = {r.id: k.cell(r.cell) for r in runs.values()}
        samples = {i: k.samples(r) for i, r in runs.items()}
    for run_id, run in runs.items():
        assert run.device_class.value == "cpu"
        assert run.identity.value == "proven"
        assert run.figures["output_tps"] is not None
        assert {s.tokens for s in samples[run_id]} == {24}
        assert all(s.identity_ok for s in samples[run_id])
        cell = cells[run_id]
        assert cell is not None
        steps = run.figures["commit_steps"]
        if cell.vary["algorithm"] == "none":
            assert steps is None
        else:
            tokens = run.figures["commit_tokens"]
            assert tokens is not None
            assert steps is not None
            assert 1.0 < tokens / steps <= 8.0
    assert len({r.launch for r in runs.values()}) == 2
    assert len({c.comparable for c in cells.values() if c is not None}) == 2  # one a level
