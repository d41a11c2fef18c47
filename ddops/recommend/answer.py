"""The whole answer: ledger in, recommendation out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddops.bench.stats_verdict import EFFECT
from ddops.ledger import Ledger
from ddops.recommend.budget import BudgetPlan, plan_budgets
from ddops.recommend.crossover import crossovers
from ddops.recommend.model import Candidate, Choice, Config, Crossover, Next, Population, Unlike
from ddops.recommend.next import what_next
from ddops.recommend.pick import candidates, choices, headline
from ddops.recommend.read import populations


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer for one population."""

    population: Population
    candidates: Sequence[Candidate]
    by_group: Mapping[str, Mapping[int, Choice]]
    choices: Mapping[int, Choice]
    crossovers: Sequence[Crossover]
    unlike: Sequence[Unlike]
    next: Sequence[Next]
    budgets: BudgetPlan | None

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Every run that something said here rests on."""
        parts: list[Choice | Crossover | Unlike] = [*self.choices.values(), *self.crossovers]
        return tuple(dict.fromkeys(i for p in [*parts, *self.unlike] for i in p.run_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Runs that do not count, by why."""

    by_status: Mapping[str, int]
    withdrawn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All populations of what was asked for, and how many runs were left out."""

    advice: Sequence[Advice]
    left: Left


_LEFT = """SELECT r.status,
  (r.ledger, r.id) IN (SELECT ledger, run FROM withdrawn_run) AS withdrawn, count(*) AS n
FROM run r JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
WHERE (:service IS NULL OR c.service = :service)
  AND (r.ledger, r.id) NOT IN (SELECT ledger, id FROM valid_run)
GROUP BY 1, 2"""


def recommend(
    ledger: Ledger,
    service: str | None = None,
    host_class: str | None = None,
    nodes: Sequence[float] = (),
) -> Answer:
    """What to run at each concurrency, over all valid runs of closed loops.

    `nodes`: acceptance probabilities of a tree's profile, for the budget model.
    """
    found = [advise(p, nodes) for p in populations(ledger, service, host_class)]
    rows = ledger.query(_LEFT, {"service": service}, timeout_s=60.0)
    by_status: dict[str, int] = {}
    for row in rows:
        if not row["withdrawn"]:
            word = "ungated" if row["status"] == "valid" else str(row["status"])
            by_status[word] = by_status.get(word, 0) + int(row["n"] or 0)
    withdrawn = sum(int(r["n"] or 0) for r in rows if r["withdrawn"])
    return Answer(advice=found, left=Left(by_status=by_status, withdrawn=withdrawn))


def advise(population: Population, nodes: Sequence[float] = ()) -> Advice:
    """The answer for one population. Pure."""
    found = candidates(population.runs)
    by_group = choices(found)
    heads = headline(by_group)
    crossings = crossovers(found, by_group)
    return Advice(
        population=population,
        candidates=found,
        by_group=by_group,
        choices=heads,
        crossovers=crossings,
        unlike=unlike(population, found, heads),
        next=what_next(population, found, heads, crossings),
        budgets=plan_budgets(found, nodes),
    )


def unlike(
    population: Population, found: Sequence[Candidate], heads: Mapping[int, Choice]
) -> list[Unlike]:
    """Numbers that may be of the chosen configuration, were taken otherwise, and differ."""
    out = []
    for level, choice in heads.items():
        a = choice.chosen
        for b in found:
            if b.level != level or b.group == a.group or not b.config.like(a.config):
                continue
            if abs(a.estimate.value / b.estimate.value - 1) < EFFECT:
                continue
            columns = differing(population.alike[a.group], population.alike[b.group])
            out.append(Unlike(level=level, a=a, b=b, columns=columns))
    return out


def differing(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Columns that are not alike, as `column: left against right`."""
    return [
        f"{k}: {a.get(k, 'nothing')} against {b.get(k, 'nothing')}"
        for k in sorted(a.keys() | b.keys())
        if a.get(k) != b.get(k)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """What is to be run at a concurrency that may lie between measured ones.

    `config` is None where that is not known; `why` says so. Nothing is extrapolated.
    """

    level: int
    config: Config | None
    choice: Choice | None
    why: str


def at(advice: Advice, level: int) -> At:
    """The answer for one concurrency."""
    exact = advice.choices.get(level)
    if exact is not None:
        return At(level=level, config=exact.chosen.config, choice=exact, why=exact.why)
    measured = sorted(advice.choices)
    if not measured or not measured[0] < level < measured[-1]:
        words = ", ".join(map(str, measured)) or "nothing"
        return At(level=level, config=None, choice=None,
                  why=f"not measured, and never extrapolated: measured at {words}")  # fmt: skip
    low = max(n for n in measured if n < level)
    high = min(n for n in measured if n > level)
    below, above = advice.choices[low], advice.choices[high]
    if below.chosen.config.key == above.chosen.config.key:
        why = f"chosen at {low} and at {high}; {level} itself was not measured"
        return At(level=level, config=below.chosen.config, choice=below, why=why)
    inside = [c for c in advice.crossovers if c.ends[0] < level < c.ends[1]]
    if len(inside) == 1 and not inside[0].low <= level <= inside[0].high:
        c = inside[0]
        early = level < c.low
        choice = below if early else above
        if choice.chosen.config.key == (c.below if early else c.above).key:
            why = f"{'below' if early else 'above'} the crossover, {c.low:.3g} to {c.high:.3g}"
            return At(level=level, config=choice.chosen.config, choice=choice, why=why)
    names = f"{below.chosen.config.name} at {low}, {above.chosen.config.name} at {high}"
    return At(level=level, config=None, choice=None, why=f"undecided: {names}")
