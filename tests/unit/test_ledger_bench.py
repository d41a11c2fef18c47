"""Runs, samples and what they are bound to."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ddops.command import Redactor, Secret
from ddops.errors import DdopsError, RefusedError, UsageError
from ddops.ledger import (
    Cell,
    Device,
    Identity,
    Ledger,
    NewCondition,
    NewRun,
    NewSample,
    RawData,
    Status,
    chain,
)
from ddops.ledger.bench_writers import RAW_PART
from ddops.model import GateResult, Verdict, digest

RELEASE, TREE = digest("release"), digest("tree")
START = datetime(2026, 1, 2, tzinfo=UTC)
CELL = Cell(suite="smoke", vary={"budget": 8}, fix={"concurrency": 1}, label="b8 C=1")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", redactor=Redactor()) as opened:
        opened._conn.execute("PRAGMA synchronous = OFF")
        opened.add_host("b300", {})
        opened.add_release(RELEASE, service="k26", spec={})
        opened.add_tree(TREE, upstream="sglang-0.5.23")
        opened.add_deployment("op", service="k26", release=RELEASE, host="b300", by="ann")
        for nonce in ("n1", "n2"):
            opened.add_launch(nonce, deployment="op", host="b300", release=RELEASE)
        opened.add_cell(CELL)
        yield opened


def gate(ledger: Ledger, nonce: str = "n1", verdict: Verdict = Verdict.PASS) -> str:
    return ledger.add_gate(GateResult("exactness", verdict, "seen"), deployment="op", launch=nonce)


def valid(gates: tuple[str, ...], **changes: object) -> NewRun:
    run = NewRun(
        cell=CELL.key,
        launch="n1",
        tree=TREE,
        gates=gates,
        status=Status.VALID,
        identity=Identity.PROVEN,
        device_class=Device.GPU,
        device="B300",
        started=START,
        ended=START + timedelta(seconds=30),
        requests=2,
        output_tps=100,
        commit_tokens=40,
        commit_steps=10,
    )
    return dataclasses.replace(run, **changes)  # type: ignore[arg-type]


def counted(ledger: Ledger) -> list[str]:
    return [str(r["id"]) for r in ledger.query("SELECT id FROM valid_run ORDER BY seq")]


def test_a_run_comes_back_as_it_was(ledger: Ledger) -> None:
    samples = [
        NewSample(n=0, prompt="p0", first_token_ns=5, tokens=3, identity_ok=True, finish="stop"),
        NewSample(n=1, prompt="p1", outcome="failed", reason="reset", detail={"tries": 2}),
    ]
    looks = [NewCondition(n=0, at_ns=7, device="GPU-1", power_w=600, throttle="SW_POWER")]
    raw = [RawData(kind="events", data=bytes(range(256)) * 40_000, text=False)]
    run_id = ledger.add_run(
        valid((gate(ledger),), metrics={"itl_p50_ms": 9.5}), samples, looks, raw
    )
    run = ledger.run(run_id[:6])
    assert (run.id, run.valid, run.release, run.tree) == (run_id, True, RELEASE, TREE)
    assert run.figures["output_tps"] == 100.0 and run.figures["ttft_p99_ms"] is None
    assert run.metrics == {"itl_p50_ms": 9.5}
    assert ledger.samples(run) == samples
    assert ledger.conditions(run)[0]["power_w"] == 600.0
    assert ledger.raw(run, "events") == raw[0].data
    parts = ledger.query("SELECT part, length(data) AS n FROM raw ORDER BY part")
    assert len(parts) == -(-len(raw[0].data) // RAW_PART)
    assert sum(int(str(p["n"])) for p in parts) < len(raw[0].data) / 10
    assert ledger.verify() == []


def test_whole_numbers_in_real_columns_keep_their_hash(ledger: Ledger) -> None:
    ledger.add_run(valid((gate(ledger),), c_eff=1, window_ms=30_000, ttft_p50_ms=0))
    assert ledger.verify() == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, "12", 1.5])
def test_what_is_no_number_of_its_kind_is_refused(ledger: Ledger, value: object) -> None:
    with pytest.raises(DdopsError, match="cannot be recorded"):
        ledger.add_run(valid((gate(ledger),), commit_tokens=value))
    assert counted(ledger) == []


def test_a_sample_that_fails_takes_the_run_back(ledger: Ledger) -> None:
    """One transaction: no run without its samples, whatever happens between."""
    gates, before = (gate(ledger),), ledger.head()

    def samples() -> Iterator[NewSample]:
        yield NewSample(n=0, prompt="p")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.add_run(valid(gates), samples())
    for wrong in (
        [NewSample(n=0, prompt="p"), NewSample(n=0, prompt="q")],
        [NewSample(n=0, prompt="p", phase="unheard")],
        [NewSample(n=0, prompt="p", tokens=2**64)],
    ):
        with pytest.raises(DdopsError):
            ledger.add_run(valid(gates), wrong)
    assert ledger.head() == before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"launch": None}, "no launch is named"),
        ({"identity": Identity.NONE}, "nothing shows which server answered"),
        ({"requests": 0}, "no requests"),
        ({"gates": ()}, "no gate is named"),
        ({"gates": ("unheard",)}, "has no gate unheard"),
    ],
)
def test_a_valid_run_needs_its_proofs(ledger: Ledger, changes: dict[str, object], why: str) -> None:
    run = dataclasses.replace(valid((gate(ledger),)), **changes)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match=why):
        ledger.add_run(run)


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASS])
def test_only_a_passed_gate_carries(ledger: Ledger, verdict: Verdict) -> None:
    with pytest.raises(RefusedError, match=f"exactness says {verdict.value}"):
        ledger.add_run(valid((gate(ledger, verdict=verdict),)))


def test_a_gate_of_another_start_does_not_carry(ledger: Ledger) -> None:
    with pytest.raises(RefusedError, match="judged launch n2"):
        ledger.add_run(valid((gate(ledger, "n2"),)))


def test_no_tool_can_bind_a_run_to_another_starts_gate(ledger: Ledger, tmp_path: Path) -> None:
    """The foreign key says so, not our code: copy a good run to another launch by hand."""
    run_id = ledger.add_run(valid((gate(ledger),)))
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        conn.execute("PRAGMA foreign_keys = ON")
        row = dict(conn.execute("SELECT * FROM run WHERE id = ?", (run_id,)).fetchone())
        head = ledger.head()
        row |= {"id": "forged", "launch": "n2", "seq": head.seq + 1, "prev": head.hash}
        row["hash"] = chain.row_hash("run", row)
        marks = ", ".join("?" * len(row))
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            conn.execute(f"INSERT INTO run VALUES ({marks})", tuple(row.values()))  # noqa: S608
        row |= {"launch": None, "gate": None}
        row["hash"] = chain.row_hash("run", row)
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            conn.execute(f"INSERT INTO run VALUES ({marks})", tuple(row.values()))  # noqa: S608


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failed_gate_of_the_same_start_takes_its_runs_out(ledger: Ledger, when: str) -> None:
    """A corrupt engine that passed once, by luck or by another prompt, has no valid number."""
    if when == "before":
        gate(ledger, verdict=Verdict.FAIL)
    good = gate(ledger)
    lost = ledger.add_run(valid((good,)))
    other = ledger.add_run(valid((gate(ledger, "n2"),), launch="n2"))
    if when == "after":
        assert counted(ledger) == [lost, other]
        gate(ledger, verdict=Verdict.FAIL)
    assert counted(ledger) == [other]
    assert not ledger.run(lost).valid


def test_a_failed_gate_of_another_name_changes_nothing(ledger: Ledger) -> None:
    kept = ledger.add_run(valid((gate(ledger),)))
    ledger.add_gate(GateResult("G5", Verdict.FAIL, "slow"), deployment="op", launch="n1")
    assert counted(ledger) == [kept]


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.VALID])
def test_what_is_not_valid_says_why_and_is_kept(ledger: Ledger, status: Status) -> None:
    with pytest.raises(DdopsError, match="lacks a reason"):
        ledger.add_run(valid((), status=status))
    run_id = ledger.add_run(valid((), status=status, reason="client delay over its bound"))
    run = ledger.run(run_id)
    assert (run.status, run.valid, run.reason) == (status, False, "client delay over its bound")
    assert counted(ledger) == []
    assert ledger.query("SELECT * FROM cell_summary") == []
    with pytest.raises(DdopsError, match="has a reason"):
        ledger.add_run(valid((gate(ledger),), reason="but"))


def test_an_unbound_run_needs_no_launch(ledger: Ledger) -> None:
    run = valid((), status=Status.UNBOUND, reason="imported", launch=None, tree=None)
    assert ledger.run(ledger.add_run(run)).release is None


def test_unknown_launch_cell_tree_or_host_is_refused(ledger: Ledger) -> None:
    for changes in ({"launch": "n9"}, {"cell": digest("x")}, {"tree": digest("x")}):
        with pytest.raises(DdopsError):
            ledger.add_run(valid((gate(ledger),), **changes))
    with pytest.raises(DdopsError, match="does not know the host"):
        ledger.add_run(valid((gate(ledger),), host="unheard"))


def test_a_cells_key_is_its_content() -> None:
    """A resumed sweep finds a cell by what was set, not by a name."""
    same = Cell(suite="smoke", vary={"budget": 8}, fix={"concurrency": 1}, label="another name")
    other = dataclasses.replace(CELL, vary={"budget": 8, "server": {"page-size": 1}})
    build = dataclasses.replace(CELL, vary={"budget": 8, "release": RELEASE})
    assert same.key == CELL.key
    assert len({CELL.key, other.key, build.key}) == 3
    assert other.comparable == CELL.comparable and other.family != CELL.family
    assert build.family == CELL.family


def test_a_cell_is_recorded_once(ledger: Ledger) -> None:
    before = ledger.head()
    assert ledger.add_cell(CELL) == CELL.key
    assert ledger.head() == before
    stored = ledger.cell(CELL.key[:8])
    assert stored is not None and (stored.vary, stored.fix) == (CELL.vary, CELL.fix)


def test_a_cell_with_a_secret_or_nan_is_refused(ledger: Ledger) -> None:
    for vary in ({"api_key": "sk-1234567890123456789"}, {"rate": float("nan")}):
        with pytest.raises(DdopsError, match="cannot be recorded"):
            ledger.add_cell(dataclasses.replace(CELL, vary=vary))


def test_a_tree_has_one_content(ledger: Ledger) -> None:
    assert ledger.add_tree(TREE, upstream="sglang-0.5.23") == TREE
    with pytest.raises(DdopsError, match="upstream differ"):
        ledger.add_tree(TREE, upstream="another")


def test_secrets_stay_out_of_samples_and_streams(tmp_path: Path) -> None:
    redactor = Redactor([Secret("hunter22-secret")])
    path = tmp_path / "ledger.db"
    with Ledger.open(path, redactor=redactor) as ledger:
        ledger.add_cell(CELL)
        run = valid((), status=Status.VOID, reason="got hunter22-secret", launch=None, tree=None)
        samples = [NewSample(n=0, prompt="hunter22-secret", detail={"x": "hunter22-secret"})]
        stream = b"data: hunter22-secret\xff\n"
        raw = [RawData(kind="sse", data=stream, text=True)]
        run_id = ledger.add_run(run, samples, [], raw)
        assert ledger.raw(ledger.run(run_id), "sse") == b"data: ***\xff\n"
        assert "hunter22" not in str(ledger.query("SELECT * FROM sample"))
        assert "hunter22" not in str(ledger.run(run_id))
    assert b"hunter22" not in path.read_bytes()


def test_commit_length_is_a_ratio_of_sums(ledger: Ledger) -> None:
    """40/10 and 10/90 make 0.5, not the mean 2.06."""
    gates = (gate(ledger),)
    ledger.add_run(valid(gates))
    ledger.add_run(valid(gates, repeat=2, commit_tokens=10, commit_steps=90))
    [row] = ledger.query("SELECT commit_length, launches, runs FROM cell_summary")
    assert row == {"commit_length": 0.5, "launches": 1, "runs": 2}


def test_summaries_do_not_mix_devices(ledger: Ledger) -> None:
    gates = (gate(ledger),)
    ledger.add_run(valid(gates))
    ledger.add_run(valid(gates, device_class=Device.CPU, device="EPYC"))
    found = ledger.query("SELECT device_class, runs FROM cell_summary ORDER BY device_class")
    assert [tuple(r.values()) for r in found] == [("cpu", 1), ("gpu", 1)]


def test_runs_are_found_by_the_first_digits_of_their_id(ledger: Ledger) -> None:
    ledger.add_run(valid((gate(ledger),)))
    for wrong in ("", "zz", "%", "\0"):
        with pytest.raises(UsageError, match="not one run"):
            ledger.run(wrong)


def test_a_finding_names_runs_that_are_there(ledger: Ledger) -> None:
    run_id = ledger.add_run(valid((gate(ledger),)))
    with pytest.raises(DdopsError, match="without runs"):
        ledger.add_finding("report", "k26", "text", [], by="ann")
    with pytest.raises(DdopsError, match="has no run"):
        ledger.add_finding("report", "k26", "text", [run_id, "none"], by="ann")
    with pytest.raises(DdopsError):
        ledger.add_finding("unheard", "k26", "text", [run_id], by="ann")
    finding = ledger.add_finding("report", "k26", "text", [run_id, run_id], by="ann")
    [found] = ledger.conclusions()
    assert (found["id"], found["runs"], found["lost"], found["stands"]) == (finding, 1, 0, 1)
