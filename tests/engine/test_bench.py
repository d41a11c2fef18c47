"""Sweeps and levels on SGLang 0.5.23, on a CPU: autoregressive, DFLASH, DDTREE, and a mask fault.

They prove the path of a number, not a speed: the figures say `device_class=cpu`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddops.command import Redactor
from ddops.ledger import Ledger
from tests.engine.conftest import REPO, EngineLab
from tests.engine.ddtree_support import faults

pytestmark = pytest.mark.engine

BASE = """
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
"""
SOUND = ("tiny-ar", "tiny-dflash", "tiny-ddtree")
FAULTY = "tiny-fault"


def ledger_of(lab: EngineLab) -> Ledger:
    return Ledger.open(lab.root / ".ddops/ledger.db", redactor=Redactor(), readonly=True)


@pytest.fixture(scope="module")
def fault(engine_lab: EngineLab) -> Path:
    """Suites, and a profile whose tree has a fault while the file this answers is there."""
    folder = engine_lab.root / "suites/tiny"
    folder.mkdir(parents=True)
    arms = "".join(f'\n[[arms]]\nprofile = "{name}"\n' for name in (*SOUND, FAULTY))
    (folder / "sweep.toml").write_text(f'kind = "sweep"{BASE}{arms}')
    (folder / "concurrency.toml").write_text(f'kind = "concurrency"{BASE}')
    switch = faults(engine_lab.root / "fault") / "mask"
    text = (REPO / "inventory/profiles/tiny-ddtree.toml").read_text()
    assert "\n[env]\n" in text
    text = text.replace("\n[env]\n", f'\n[env]\nPYTHONPATH = "{switch.parent}"\n')
    profiles = engine_lab.root / "inventory/profiles"
    profiles.mkdir(parents=True, exist_ok=True)
    (profiles / f"{FAULTY}.toml").write_text(text)
    return switch


def test_a_sweep_has_numbers_of_every_way_of_decoding_and_none_of_a_wrong_mask(
    engine_lab: EngineLab, fault: Path
) -> None:
    fault.touch()
    done = engine_lab.ddops("bench", "sweep", "lab", "--json", ok=False)
    fault.unlink()
    assert done.rc == 9, done.err
    rows = done.data()
    assert isinstance(rows, list)
    bad = [r for r in rows if str(r["label"]).startswith(FAULTY)]
    assert [r["status"] for r in bad] == ["void"] * 2
    assert all("exactness" in str(r["reason"]) for r in bad)
    assert all(r["output_tps"] is None for r in bad)
    good = [r for r in rows if r not in bad]
    assert [r["status"] for r in good] == ["valid"] * 6, done.err
    with ledger_of(engine_lab) as k:
        runs = {str(r["run"]): k.run(str(r["run"])) for r in good}
        assert k.verify() == []
        valid = {str(r["id"]) for r in k.query("SELECT id FROM valid_run")}
        cells = {r.id: k.cell(r.cell) for r in runs.values()}
        samples = {i: k.samples(r) for i, r in runs.items()}
    assert valid >= set(runs)
    assert not valid & {str(r["run"]) for r in bad}
    ways = set()
    for run_id, run in runs.items():
        assert run.device_class.value == "cpu"
        assert run.identity.value == "proven"
        assert run.figures["output_tps"] is not None
        assert {s.tokens for s in samples[run_id]} == {24}
        assert all(s.identity_ok for s in samples[run_id])
        cell = cells[run_id]
        assert cell is not None
        ways.add(cell.vary["algorithm"])
        steps = run.figures["commit_steps"]
        if cell.vary["algorithm"] == "none":
            assert steps is None
        else:
            tokens = run.figures["commit_tokens"]
            assert tokens is not None
            assert steps is not None
            assert 1.0 < tokens / steps <= 8.0
    assert ways == {"none", "DFLASH", "DDTREE"}
    assert len({r.launch for r in runs.values()}) == 3
    assert len({c.comparable for c in cells.values() if c is not None}) == 2  # one a level


@pytest.mark.parametrize("profile", ["tiny-ar", "tiny-dflash"])  # the tree: the next test
def test_levels_of_what_is_deployed(engine_lab: EngineLab, fault: Path, profile: str) -> None:
    engine_lab.ddops("deploy", "lab", "--profile", profile)
    done = engine_lab.ddops("bench", "concurrency", "lab", "--json")
    rows = done.data()
    assert isinstance(rows, list)
    assert [r["label"] for r in rows] == [f"{profile} C=1", f"{profile} C=2"]
    assert [r["status"] for r in rows] == ["valid"] * 2
    with ledger_of(engine_lab) as k:
        valid = {str(r["id"]) for r in k.query("SELECT id FROM valid_run")}
    assert valid >= {str(r["run"]) for r in rows}


def test_a_mask_that_goes_wrong_after_the_deploy_leaves_no_valid_number(
    engine_lab: EngineLab, fault: Path
) -> None:
    """The deploy's gates have passed and numbers were taken; the next look takes them back."""
    fault.unlink(missing_ok=True)
    engine_lab.ddops("deploy", "lab", "--profile", FAULTY)
    done = engine_lab.ddops("bench", "concurrency", "lab", "--json")
    rows = done.data()
    assert isinstance(rows, list)
    assert [r["status"] for r in rows] == ["valid"] * 2
    fault.touch()
    try:
        again = engine_lab.ddops("bench", "concurrency", "lab", "--json", ok=False)
    finally:
        fault.unlink()
    assert again.rc == 1, again.err
    more = again.data()
    assert isinstance(more, list)
    assert [r["status"] for r in more] == ["invalid"] * 2
    assert all("exactness C=1 FAIL" in str(r["reason"]) for r in more)
    assert all(r["output_tps"] is None for r in more)
    named = {str(r["run"]) for r in (*rows, *more)}
    with ledger_of(engine_lab) as k:
        assert not named & {str(r["id"]) for r in k.query("SELECT id FROM valid_run")}
