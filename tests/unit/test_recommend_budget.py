"""The budget model: nested trees from one profile, costs over widths, and where it stays silent."""

from __future__ import annotations

import json
import random

import pytest

from ddops.errors import UsageError
from ddops.recommend.budget import (
    Cell,
    StepCost,
    acceptance,
    captured,
    chain_acceptance,
    cliffs,
    commit_lengths,
    costs,
    plan_budgets,
    read_steps,
    rows_of,
)
from ddops.recommend.pick import candidates
from tests.unit.findings_support import around, config, runs

AR = config("ar")


def steps(budget: int, n: int, seed: int = 1) -> list[dict[str, object]]:
    """Recorded steps of a made-up tree: node i's parent is i // 2, each accepted below its parent
    with a chance that falls with its place."""
    draw = random.Random(seed)
    out: list[dict[str, object]] = []
    for _ in range(n):
        path = []
        node = 0
        while True:
            children = [c for c in (2 * node + 1, 2 * node + 2) if c <= budget]
            taken = [c for c in children if draw.random() < 0.6 / (1 + 0.02 * c)]
            if not taken:
                break
            node = taken[0]
            path.append(node)
        out.append({"budget": budget, "path": [path]})
    return out


@pytest.mark.parametrize("budget", [1, 2, 7, 8, 15, 30])
def test_one_profile_tells_every_smaller_tree(budget: int) -> None:
    """Cutting recorded paths at the smaller tree's nodes gives the same mean, to the last step."""
    recorded = steps(30, 500)
    cut = [
        1 + sum(node <= budget for node in step["path"][0])  # type: ignore[index]
        for step in recorded
    ]
    lengths = commit_lengths(acceptance(recorded))
    assert lengths[budget] == pytest.approx(sum(cut) / len(cut), abs=1e-9)


def test_commit_length_never_falls_with_the_budget() -> None:
    lengths = commit_lengths(acceptance(steps(30, 200)))
    assert list(lengths) == sorted(lengths) and lengths[0] == 1


def test_a_chains_histogram_is_a_profile_of_its_depths() -> None:
    """10 steps committed 1, 30 committed 2, 60 committed 3: mean 2.5."""
    got = chain_acceptance({1: 10, 2: 30, 3: 60})
    assert got == (0.9, 0.6)
    assert commit_lengths(got)[-1] == pytest.approx(2.5)
    assert chain_acceptance({}) == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no steps"),
        ("{}", "no budget and path"),
        ("nonsense", "Expecting value"),
        ("[1]", "no JSON object"),
        ('{"budget": 8, "path": [[9]]}', "names node 9 of 8"),
        ('{"budget": 8, "path": [[0]]}', "names node 0 of 8"),
        ('{"budget": 8, "path": [[1]]}\n{"budget": 4, "path": [[1]]}', "has budget 4"),
        ('{"budget": 8, "path": [["a"]]}', "names node 'a'"),
        ('{"budget": 8, "path": [7]}', "names node '7'"),
    ],
)
def test_what_is_no_log_of_steps_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match="not a log of steps") as e:
        read_steps(text, "steps.jsonl")
    assert why in e.value.why


def test_a_log_of_steps_is_read() -> None:
    text = "\n".join(json.dumps(s) for s in steps(8, 20)) + "\n\n"
    assert len(read_steps(text, "steps.jsonl")) == 8


def test_concurrencies_of_one_captured_graph_share_a_cost() -> None:
    assert [captured(n, (1, 2, 4, 8)) for n in (1, 3, 4, 9)] == [1, 4, 4, 9]
    found = costs([Cell(3, 9, 4.0, 100.0), Cell(4, 9, 4.0, 100.0)], (4,))
    assert list(found) == [4] and found[4].points[9] == pytest.approx(140)


def test_costs_are_not_told_outside_of_measured_widths() -> None:
    cost = StepCost(1, {9: 20.0, 17: 30.0, 49: 40.0})
    assert cost.ms(13) == pytest.approx(25) and cost.ms(8) is None and cost.ms(50) is None
    assert cost.left_out_error() == pytest.approx(abs((20 + 20 * 8 / 40) / 30 - 1))
    assert StepCost(1, {9: 20.0, 17: 30.0}).left_out_error() is None


def test_the_best_budget_is_not_the_longest_commit() -> None:
    """A doubled width costs more than its commit length brings: budget 15 beats 31."""
    measured = [*runs(AR, 1, around(98))]
    for budget, commit, ms in ((7, 3.0, 20.0), (15, 4.0, 22.0), (31, 4.4, 34.0)):
        of = config(f"b{budget}", "DDTREE", budget=budget, topk=4)
        measured += runs(of, 1, around(1000 * commit / ms), commit=commit)
    plan = plan_budgets(candidates(measured))
    assert plan is not None
    (one,) = plan.levels
    assert (one.budget, one.measured) == (15, 15)
    assert one.error is not None and one.error < 0.15
    assert one.tps == pytest.approx(one.measured_tps, rel=1e-6), "measured widths are met"


def test_a_profile_that_does_not_fit_the_load_shows() -> None:
    """Measured at commit length 4; a profile that promises 2 is off by half."""
    measured = []
    for budget in (7, 15):
        of = config(f"b{budget}", "DDTREE", budget=budget)
        measured += runs(of, 1, around(100.0), commit=4)
    plan = plan_budgets(candidates(measured), [1.0, *[0.0] * 14])
    assert plan is not None and plan.from_profile
    assert plan.levels[0].cell_error == pytest.approx(0.5, abs=0.01)
    assert plan.lengths[15] == 2
    without = plan_budgets(candidates(measured))
    assert without is not None and without.levels[0].cell_error is None


def test_at_many_requests_no_tree_may_be_best() -> None:
    measured = [*runs(AR, 64, around(980))]
    for budget, tps in ((7, 700.0), (15, 500.0)):
        of = config(f"b{budget}", "DDTREE", budget=budget)
        measured += runs(of, 64, around(tps), commit=4)
    plan = plan_budgets(candidates(measured))
    assert plan is not None and plan.levels[0].budget == 0


def test_nothing_is_predicted_from_one_budget() -> None:
    of = config("b8", "DDTREE", budget=8)
    plan = plan_budgets(candidates([*runs(AR, 1, [98.0]), *runs(of, 1, [150.2], commit=4)]))
    assert plan is not None and plan.levels == []
    assert "two budgets measured alike" in plan.why
    assert plan_budgets(candidates(runs(AR, 1, [98.0]))) is None


def test_a_width_above_a_tile_is_warned_of() -> None:
    (warning,) = cliffs([config("b8", "DDTREE", budget=8), config("b7", "DDTREE", budget=7)])
    assert "9 rows" in warning and "budget 7" in warning
    assert not cliffs([AR])


def test_rows_a_request_takes() -> None:
    assert rows_of(AR) == 1
    assert rows_of(config("t", "DDTREE", budget=4, block=8)) == 8
    assert rows_of(config("t", "DDTREE", budget=8, draft_tokens=12)) == 12
    assert rows_of(config("t", "DDTREE")) is None
