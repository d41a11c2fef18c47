"""Which budget a draft tree should have: expected commit length over cost of a step. Pure.

A tree of a best-first search holds every smaller tree of the same search, in the order its nodes
were taken. So one profile at the largest budget tells the commit length of each smaller one: one
for the token that always comes, and the acceptance probability of each node that is left.

A step is one verify pass over `captured requests x rows` (rows: the nodes and the root), and
    tokens a second = requests x commit length / step time.
A graph captured for 8 requests runs 8, however few there are, so concurrencies of one graph share
their costs. Costs are straight lines between measured widths, tried by leaving out inner ones, and
are asked for nothing outside of what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddops.config.files import parse_json
from ddops.errors import UsageError
from ddops.recommend.model import Candidate, Config

#: Rows of one request that kernels take at once; one row more costs a whole tile.
TILE = 8
#: Far beyond any tree: a log with more is no log of steps.
MOST_BUDGET = 1 << 20
#: A budget whose prediction is within this share of the best is as good.
AS_GOOD = 0.02


def acceptance(steps: Iterable[Mapping[str, object]]) -> tuple[float, ...]:
    """Acceptance probability of each node by its place in the search, from recorded steps.

    A step has `budget`, and `path`: for each request the accepted nodes, numbered from 1 as they
    were taken. Requests count alike. Raises ValueError for steps of several budgets, or none.
    """
    hits: list[int] = []
    total, budget = 0, None
    for n, step in enumerate(steps, 1):
        size, paths = step.get("budget"), step.get("path")
        if not isinstance(size, int) or not isinstance(paths, list) or size < 1:
            raise ValueError(f"step {n} has no budget and path")
        if size > MOST_BUDGET:
            raise ValueError(f"step {n} has budget {size}, more than {MOST_BUDGET}")
        if budget is None:
            budget, hits = size, [0] * size
        if size != budget:
            raise ValueError(f"step {n} has budget {size}, the ones before {budget}")
        for path in paths:
            total += 1
            for node in path if isinstance(path, list) else [repr(path)]:
                if not isinstance(node, int) or isinstance(node, bool) or not 1 <= node <= size:
                    raise ValueError(f"step {n} names node {node!r} of {size}")
                hits[node - 1] += 1
    if not total:
        raise ValueError("no steps")
    return tuple(h / total for h in hits)


def read_steps(text: str, name: str) -> tuple[float, ...]:
    """`acceptance` of JSON lines as DDTREE's step log writes them."""
    try:
        rows = [parse_json(line) for line in text.splitlines() if line.strip()]
        if not all(isinstance(r, dict) for r in rows):
            raise ValueError("a line is no JSON object")
        return acceptance(rows)
    except ValueError as error:
        raise UsageError(
            f"{name} is not a log of steps",
            why=str(error),
            next="give one JSON object a line with `budget` and `path`, of one budget",
        ) from error


def commit_lengths(probabilities: Sequence[float]) -> tuple[float, ...]:
    """Expected commit length by budget: entry `b` is that of a tree of `b` nodes, from 0."""
    out = [1.0]
    for p in probabilities:
        out.append(out[-1] + p)
    return tuple(out)


def chain_acceptance(histogram: Mapping[int, int]) -> tuple[float, ...]:
    """The same from a chain's histogram {tokens committed: steps}: node d is accepted with all
    before it, so its probability is the share of steps that committed more than d tokens."""
    total = sum(histogram.values())
    if not total:
        return ()
    longest = max(histogram)
    return tuple(
        sum(n for tokens, n in histogram.items() if tokens > depth) / total
        for depth in range(1, longest)
    )


def rows_of(config: Config) -> int | None:
    """Rows a request takes in a verify pass; 1 without drafts, None where nobody told."""
    if not config.speculative:
        return 1
    told = config.vary.get("draft_tokens")
    if isinstance(told, int) and told > 0:
        return told
    budget, block = config.number("budget"), config.number("block")
    return None if budget is None and block is None else max((budget or 0) + 1, block or 0)


def captured(requests: int, sizes: Sequence[int]) -> int:
    """Requests that the replayed graph really runs; as many as there are where none fits."""
    return min((s for s in sizes if s >= requests), default=requests)


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured point: requests at once, rows of each, commit length, tokens a second."""

    requests: int
    rows: int
    commit: float
    tps: float

    @property
    def step_ms(self) -> float:
        return 1000 * self.requests * self.commit / self.tps


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of a tree's step by rows of a request, at one captured number of requests."""

    requests: int
    points: Mapping[int, float]

    def ms(self, rows: int) -> float | None:
        """Straight between measured widths; None outside of them."""
        known = sorted(self.points)
        if not known or not known[0] <= rows <= known[-1]:
            return None
        return float(np.interp(rows, known, [self.points[r] for r in known]))

    def left_out_error(self) -> float | None:
        """The largest relative error when an inner width is told by its neighbours."""
        errors = []
        for rows in sorted(self.points)[1:-1]:
            rest = StepCost(self.requests, {r: t for r, t in self.points.items() if r != rows})
            told = rest.ms(rows)
            if told is not None:
                errors.append(abs(told / self.points[rows] - 1))
        return max(errors, default=None)


def costs(cells: Sequence[Cell], sizes: Sequence[int] = ()) -> dict[int, StepCost]:
    """A curve for each captured number of requests; concurrencies of one graph share it."""
    found: dict[int, dict[int, list[float]]] = {}
    for cell in cells:
        run = captured(cell.requests, sizes)
        found.setdefault(run, {}).setdefault(cell.rows, []).append(cell.step_ms)
    return {
        run: StepCost(run, {rows: math.fsum(t) / len(t) for rows, t in sorted(of.items())})
        for run, of in sorted(found.items())
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The best budget at one concurrency. Budget 0 is autoregressive, as measured.

    `as_good` are all within 2 % of it. `error` is that of left-out widths; None where there is no
    inner one. `cell_error` is the largest one at measured budgets, which says whether the profile
    fits this load; without a profile they are met by construction, and it is None.
    """

    level: int
    budget: int
    tps: float
    as_good: tuple[int, ...]
    measured: int
    measured_tps: float
    error: float | None
    cell_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """What the model says. `levels` is empty where `why` says what it lacks."""

    lengths: Mapping[int, float]
    lengths_from: str
    from_profile: bool
    levels: Sequence[Predicted]
    warnings: Sequence[str]
    why: str


def plan_budgets(found: Sequence[Candidate], nodes: Sequence[float] = ()) -> BudgetPlan | None:
    """The model over the group with most budgets of trees; None without trees.

    `nodes` are acceptance probabilities of a profile; without them commit lengths are those that
    were measured, straight in between.
    """
    every = [c for c in found if c.config.number("budget") and c.config.algorithm == "DDTREE"]
    if not every:
        return None
    group = max(
        {c.group for c in every},
        key=lambda g: (len({_budget(c.config) for c in every if c.group == g}), g),
    )
    same = [c for c in found if c.group == group]
    trees = [c for c in same if c in every]
    lengths, source = _lengths(trees, nodes)
    warnings = cliffs(sorted({c.config.key: c.config for c in every}.values(), key=_budget))
    cells = [cell for c in trees if (cell := _cell(c)) is not None]
    sizes = _sizes(trees)
    curves = costs(cells, sizes)
    block = max(c.config.number("block") or 0 for c in trees)
    levels = []
    for level in sorted({c.level for c in same}):
        curve = curves.get(captured(level, sizes))
        if curve is not None and len(curve.points) > 1:
            here = [c for c in same if c.level == level]
            one = _best(level, here, curve, lengths, block)
            levels.append(one if nodes else replace(one, cell_error=None))
    why = "" if levels else _lack(cells, lengths)
    return BudgetPlan(
        lengths=lengths,
        lengths_from=source,
        from_profile=bool(nodes),
        levels=levels,
        warnings=warnings,
        why=why,
    )


def cliffs(configs: Sequence[Config]) -> list[str]:
    """Widths one row above a tile, each with the budget that would stay below."""
    out = []
    for config in configs:
        rows = rows_of(config)
        if rows is not None and rows > TILE and rows % TILE == 1:
            out.append(
                f"{config.name} verifies {rows} rows a request, one above {rows - 1}: kernels "
                f"work in tiles of {TILE}, so measure budget {rows - 2} against it"
            )
    return out


def _budget(config: Config) -> int:
    return config.number("budget") or 0


def _cell(c: Candidate) -> Cell | None:
    rows = rows_of(c.config)
    if rows is None or c.commit_length is None:
        return None
    return Cell(c.level, rows, c.commit_length, c.estimate.value)


def _sizes(found: Sequence[Candidate]) -> tuple[int, ...]:
    """Batch sizes the engine was told to capture; none where it chose by itself."""
    for c in found:
        launch = c.config.vary.get("launch")
        sizes = launch.get("cuda-graph-bs-decode") if isinstance(launch, Mapping) else None
        if isinstance(sizes, list) and all(isinstance(s, int) for s in sizes):
            return tuple(sorted(sizes))
    return ()


def _lengths(trees: Sequence[Candidate], nodes: Sequence[float]) -> tuple[dict[int, float], str]:
    """Commit length by budget, and where it is from."""
    if nodes:
        return dict(enumerate(commit_lengths(nodes))), "the profile of the largest budget"
    known: dict[int, list[float]] = {0: [1.0]}
    for c in trees:
        if c.commit_length is not None:
            known.setdefault(_budget(c.config), []).append(c.commit_length)
    means = {b: math.fsum(v) / len(v) for b, v in sorted(known.items())}
    least = min((b for b in means if b), default=0)
    measured = [b for b in means if b]
    out = {0: 1.0}
    if measured:
        for b in range(least, max(measured) + 1):
            out[b] = float(np.interp(b, measured, [means[m] for m in measured]))
    return out, "measured cells, straight in between"


def _lack(cells: Sequence[Cell], lengths: Mapping[int, float]) -> str:
    """What a prediction lacks."""
    if len(lengths) < 2:
        return "no commit length was measured, and no profile of steps was given"
    if not cells:
        return "no run of a tree has both a commit length and a speed"
    return "no concurrency has two budgets measured alike: nothing says what a wider step costs"


def _best(
    level: int,
    here: Sequence[Candidate],
    cost: StepCost,
    lengths: Mapping[int, float],
    block: int,
) -> Predicted:
    """The fastest budget within the measured widths, or none at all where that is faster."""
    speeds: dict[int, float] = {}
    for budget, length in lengths.items():
        ms = cost.ms(max(budget + 1, block)) if budget else None
        if ms is not None:
            speeds[budget] = 1000 * level * length / ms
    errors = [
        abs(speeds[_budget(c.config)] / c.estimate.value - 1)
        for c in here
        if c.config.algorithm == "DDTREE" and _budget(c.config) in speeds
    ]
    plain = [c for c in here if not c.config.speculative]
    if plain:
        speeds[0] = max(c.estimate.value for c in plain)
    best = max(speeds, key=lambda b: (speeds[b], -b))
    top = max(
        (c for c in here if c in plain or c.config.algorithm == "DDTREE"),
        key=lambda c: c.estimate.value,
    )
    return Predicted(
        level=level, budget=best, tps=speeds[best],
        as_good=tuple(b for b, s in sorted(speeds.items()) if s >= speeds[best] * (1 - AS_GOOD)),
        measured=_budget(top.config), measured_tps=top.estimate.value,
        error=cost.left_out_error(), cell_error=max(errors, default=None),
    )  # fmt: skip
