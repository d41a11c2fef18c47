"""Comparing configurations, and one with its history."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from ddops.bench.compare import compare, regression, side
from ddops.bench.stats_verdict import Word
from ddops.command import Redactor
from ddops.errors import RefusedError, UsageError
from ddops.ledger import (
    Cell,
    Device,
    Identity,
    Ledger,
    NewRun,
    NewSample,
    Scope,
    Status,
)
from ddops.model import GateResult, Verdict, digest
from tests.ledgers import START, make_ledger
from tests.unit.cli_support import runner

FIX: Mapping[str, object] = {
    "model": "k26",
    "concurrency": 1,
    "dataset": {"name": "mtbench", "sha256": "ab"},
    "graph": True,
    "overlap": False,
}


class Lab:
    """A ledger and a short way to fill it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.n = 0
        ledger.add_host("b300", {})

    def cell(self, name: str, fix: Mapping[str, object] = FIX, **vary: object) -> Cell:
        vary = {"algorithm": "none", "release": digest(name), **vary}
        cell = Cell(suite="sweep", vary=vary, fix=fix, label=name, concurrency=1)
        self.ledger.add_cell(cell)
        return cell

    def run(
        self, cell: Cell, tps: float, samples: tuple[NewSample, ...] = (), **changes: object
    ) -> str:
        """One run on a launch of its own."""
        self.n += 1
        release, op, nonce = digest(cell.label), f"op{self.n}", f"n{self.n}"
        at = START + timedelta(minutes=self.n)
        self.ledger.add_release(release, service="k26", spec={}, at=START)
        self.ledger.add_deployment(op, service="k26", release=release, host="b300", by="ann", at=at)
        self.ledger.add_launch(nonce, deployment=op, host="b300", release=release, started=at)
        gate = self.ledger.add_gate(
            GateResult("exactness", Verdict.PASS, ""), deployment=op, launch=nonce, at=at
        )
        run = NewRun(
            cell=cell.key,
            launch=nonce,
            gates=(gate,),
            status=Status.VALID,
            identity=Identity.PROVEN,
            device_class=Device.GPU,
            device="B300",
            started=at,
            ended=at,
            requests=10,
            output_tps=tps,
            protocol={"route": "/generate", "own": {"seed": self.n}},
            window={"rule": "steady", "cut": self.n},
        )
        return self.ledger.add_run(dataclasses.replace(run, **changes), samples)  # type: ignore[arg-type]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Ledger.open(tmp_path / "ledger.db", redactor=Redactor()) as ledger:
        ledger._conn.execute("PRAGMA synchronous = OFF")
        yield Lab(ledger)


def speeds(lab: Lab, cell: Cell, *values: float, **changes: object) -> list[str]:
    return [lab.run(cell, v, **changes) for v in values]  # type: ignore[arg-type]


def test_trees_against_autoregressive(lab: Lab) -> None:
    ar = lab.cell("ar")
    tree = lab.cell("tree", algorithm="DDTREE", budget=8)
    base = speeds(lab, ar, 98, 97, 99, 98, 98.5, 97.5)
    best = speeds(lab, tree, 150, 151, 149, 150, 151, 149)
    found = compare(lab.ledger, tree.key[:10], base[0])
    assert found.judgement.word is Word.BETTER
    assert found.judgement.ratio.value == pytest.approx(1.53, abs=0.01)
    assert sorted(found.run_ids) == sorted([*base, *best])
    assert [v.split(":")[0] for v in found.varied] == ["algorithm", "budget", "release"]
    again = compare(lab.ledger, tree.key, ar.key)
    assert again.judgement == found.judgement, "the same runs, the same answer"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"concurrency": 2}, "fix.concurrency: 1 against 2"),
        ({"graph": False}, "fix.graph: True against False"),  # D7
        ({"overlap": True}, "fix.overlap: False against True"),  # D8
        ({"dataset": {"name": "mtbench", "sha256": "cd"}}, "fix.dataset.sha256: ab against cd"),
        ({"temperature": 1}, "fix.temperature: nothing against 1"),
    ],
)
def test_unlike_runs_are_refused_by_name(lab: Lab, change: dict[str, object], says: str) -> None:
    """The two "concurrency 1" numbers, 150.2 and 113.8: what differs is said, nothing is joined."""
    one, two = lab.cell("one"), lab.cell("two", {**FIX, **change})
    speeds(lab, one, 150.2)
    speeds(lab, two, 113.8)
    with pytest.raises(RefusedError, match="cannot be compared") as e:
        compare(lab.ledger, one.key, two.key)
    assert says in e.value.why and e.value.exit_code == 4


def test_other_ways_to_be_unlike(lab: Lab) -> None:
    one, cpu, cold, drift = (lab.cell(n) for n in ("one", "cpu", "cold", "drift"))
    speeds(lab, one, 100)
    speeds(lab, cpu, 100, device_class=Device.CPU, device="EPYC")
    speeds(lab, cold, 100, protocol={"route": "/v1/chat/completions"})
    speeds(lab, drift, 100, window={"rule": "whole run"})
    for other, says in (
        (cpu, "device: B300 (gpu) against EPYC (cpu)"),
        (cold, "protocol.route: /generate against /v1/chat/completions"),
        (drift, "window.rule: steady against whole run"),
    ):
        with pytest.raises(RefusedError) as e:
            compare(lab.ledger, one.key, other.key)
        assert says in e.value.why


def test_one_side_measured_in_two_ways_is_refused(lab: Lab) -> None:
    one, two = lab.cell("one"), lab.cell("two")
    speeds(lab, one, 100)
    speeds(lab, one, 100, protocol={"route": "/v1/completions"})
    speeds(lab, two, 100)
    with pytest.raises(RefusedError) as e:
        compare(lab.ledger, one.key, two.key)
    assert "protocol.route: /generate or /v1/completions" in e.value.why


def test_random_prompts_do_not_rank_drafting(lab: Lab) -> None:
    """Random tokens and ignore_eos say nothing of acceptance."""
    fix = {**FIX, "dataset": "random"}
    ar, tree = lab.cell("ar", fix), lab.cell("tree", fix, algorithm="DDTREE")
    speeds(lab, ar, 100)
    speeds(lab, tree, 150)
    with pytest.raises(RefusedError) as e:
        compare(lab.ledger, tree.key, ar.key)
    assert "random tokens" in e.value.why


def test_drafting_that_stopped_to_help_is_said(lab: Lab) -> None:
    """Commit length 1.0 is a warning state, not a slow configuration."""
    ar, tree = lab.cell("ar"), lab.cell("tree", algorithm="DDTREE")
    speeds(lab, ar, 98, 97, 99, 98)
    speeds(lab, tree, 90, 91, 89, 90, commit_tokens=1010, commit_steps=1000)
    found = compare(lab.ledger, tree.key, ar.key)
    assert any("drafting does not help, commit length 1.01" in n for n in found.notes)


def test_withdrawn_and_invalid_runs_are_no_side(lab: Lab) -> None:
    one, two = lab.cell("one"), lab.cell("two")
    [good] = speeds(lab, one, 100)
    [bad] = speeds(lab, two, 100)
    lab.ledger.retract(Scope.RUN, bad, reason="mask fault", by="ann")
    for name, why in ((bad, "mask fault"), (two.key, "no valid run")):
        with pytest.raises(RefusedError) as e:
            compare(lab.ledger, good, name)
        assert why in e.value.why
    [void] = speeds(lab, two, 1, status=Status.VOID, reason="above the server's limit", gates=())
    with pytest.raises(RefusedError) as e:
        side(lab.ledger, void)
    assert "above the server's limit" in e.value.why


def test_a_cell_on_two_devices_needs_a_run_to_say_which(lab: Lab) -> None:
    one = lab.cell("one")
    [gpu] = speeds(lab, one, 100)
    speeds(lab, one, 5, device_class=Device.CPU, device="EPYC")
    with pytest.raises(RefusedError, match="as a whole"):
        side(lab.ledger, one.key)
    assert [r.id for r in side(lab.ledger, gpu).runs] == [gpu]


def test_a_figure_that_was_not_measured_is_no_zero(lab: Lab) -> None:
    one, two = lab.cell("one"), lab.cell("two")
    speeds(lab, one, 100)
    speeds(lab, two, 100)
    for figure in ("ttft_p99_ms", "commit_length"):
        with pytest.raises(RefusedError, match="has no"):
            compare(lab.ledger, one.key, two.key, figure)
    with pytest.raises(UsageError, match="no figure"):
        compare(lab.ledger, one.key, two.key, "accept_rate")
    with pytest.raises(UsageError, match="no figure"):
        regression(lab.ledger, one.key, "accept_rate")
    with pytest.raises(UsageError):
        compare(lab.ledger, "zz", two.key)


def reply(n: int, prompt: str, tokens: int, ms: float, first: int = 1) -> NewSample:
    start = 50_000_000
    return NewSample(
        n=n,
        prompt=prompt,
        tokens=tokens,
        first_tokens=first,
        first_token_ns=start,
        last_token_ns=start + int(ms * 1e6),
    )


def test_prompts_are_paired_by_decode_speed(lab: Lab) -> None:
    """Tokens of the first chunk took no decode time, so they are not counted."""
    one, two = lab.cell("one"), lab.cell("two", algorithm="DDTREE")
    for n in range(4):
        slow = tuple(reply(i, f"p{i}", 101, 1000.0 * (i + 1)) for i in range(8))
        fast = tuple(reply(i, f"p{i}", 116, 500.0 * (i + 1), first=16) for i in range(8))
        lab.run(one, 100 + n, slow)
        lab.run(two, 200 + n, fast)
    found = compare(lab.ledger, two.key, one.key)
    assert found.paired is not None and found.paired.value == pytest.approx(2.0)
    assert found.paired.n == 8


def test_regression_against_the_own_history(lab: Lab) -> None:
    cell = lab.cell("ddtree", algorithm="DDTREE", budget=8)
    speeds(lab, cell, 150, 151, 149, 150)
    newer = Cell(
        suite="sweep",
        vary={**cell.vary, "release": digest("newer")},
        fix=cell.fix,
        label="newer",
        concurrency=1,
    )
    lab.ledger.add_cell(newer)
    [same] = speeds(lab, newer, 149.5)
    [worse] = speeds(lab, newer, 120)
    fine = regression(lab.ledger, same)
    assert fine.worse is False and fine.noise is not None and fine.noise.n == 4
    bad = regression(lab.ledger, worse)
    assert bad.worse is True and len(bad.baseline) == 5


def test_with_too_little_history_there_is_no_verdict(lab: Lab) -> None:
    """G5 skips below three valid launches; withdrawing history takes the verdict with it."""
    cell = lab.cell("ar")
    before = speeds(lab, cell, 98, 99, 97)
    [new] = speeds(lab, cell, 50)
    assert regression(lab.ledger, new).worse is True
    lab.ledger.retract(Scope.RUN, before[0], reason="another job", by="ann")
    found = regression(lab.ledger, new)
    assert (found.noise, found.worse, len(found.baseline)) == (None, None, 2)
    with pytest.raises(RefusedError, match="cannot be judged"):
        regression(lab.ledger, before[0])


def test_other_devices_are_no_baseline(lab: Lab) -> None:
    cell = lab.cell("ar")
    speeds(lab, cell, 5, 5, 5, 5, device_class=Device.CPU, device="EPYC")
    [new] = speeds(lab, cell, 98)
    assert regression(lab.ledger, new).noise is None


def test_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    go = runner(tmp_path, monkeypatch, capfd)
    assert go("init").code == 0
    make_ledger(Path(".ddops/ledger.db"), runs=192, samples=384)
    with Ledger.open(Path(".ddops/ledger.db"), redactor=Redactor(), readonly=True) as ledger:
        keys = {c.label: c.key for c in ledger.cells()}
        newest = ledger.runs(keys["ar C=1"])[-1].id
    tree, base = keys["ddtree-b8 C=1"], keys["ar C=1"]
    done = go("bench", "compare", tree, base)
    assert done.code == 0 and "is better: output_tps" in done.out and "5 against" in done.out
    data = go("bench", "compare", tree, base, "--json").document["data"]
    assert data["judgement"]["word"] == "better" and data["judgement"]["p"] < 0.01
    with Ledger.open(Path(".ddops/ledger.db"), redactor=Redactor()) as ledger:
        [row] = ledger.conclusions()  # said twice, recorded once
        assert (row["kind"], row["stands"], row["id"]) == ("comparison", 1, data["conclusion"])
    gone = go(
        "ledger", "retract", "--run", data["a"]["runs"][0], "--reason", "x", "--yes", "--json"
    )
    assert [f["id"] for f in gone.document["data"]["findings"]] == [data["conclusion"]]
    anew = go("bench", "compare", tree, base, "--json").document["data"]
    assert anew["conclusion"] != data["conclusion"], "over the runs that are left"
    unlike = go("bench", "compare", tree, keys["ar C=2"])
    assert unlike.code == 4 and "fix.concurrency: 1 against 2" in unlike.err
    assert go("bench", "compare", tree, base, "--figure", "nope").code == 2
    judged = go("bench", "regression", newest)
    assert judged.code == 0 and "within its history" in judged.out
    assert go("bench", "regression", newest, "--figure", "nope").code == 2
    assert go("bench", "regression", newest, "--json").document["data"]["worse"] is False


def test_nothing_is_compared_with_itself(lab: Lab) -> None:
    """By run, by cell, or by two runs of one cell: each stands for all of them."""
    cell = lab.cell("ar")
    first, second = lab.run(cell, 50.0), lab.run(cell, 51.0)
    for a, b in ((first, first), (first, second), (cell.key, cell.key), (cell.key, second)):
        with pytest.raises(UsageError, match="one configuration") as caught:
            compare(lab.ledger, a, b)
        assert f"ddops bench regression {second}" in caught.value.next
    assert lab.ledger.conclusions([first, second]) == []
