"""The answer as data (`ddops recommend --json`, `ddops report --json`) and in words."""

from __future__ import annotations

from collections.abc import Mapping

from ddops.model import short
from ddops.recommend.answer import Advice, Answer, At
from ddops.recommend.budget import BudgetPlan
from ddops.recommend.model import (
    Basis,
    Candidate,
    Choice,
    Config,
    Crossover,
    Estimate,
    Population,
    Unlike,
)


def answer_data(answer: Answer) -> dict[str, object]:
    """Everything that was concluded, with the runs behind each claim."""
    return {
        "populations": [advice_data(a) for a in answer.advice],
        "left_out": {**answer.left.by_status, "withdrawn": answer.left.withdrawn},
    }


def advice_data(advice: Advice) -> dict[str, object]:
    """One population's answer."""
    p = advice.population
    return {
        "service": p.service,
        "host": p.host,
        "host_class": p.host_class,
        "device_class": p.device_class,
        "device": p.device,
        "basis": p.basis.value,
        "runs": len(p.runs),
        "choices": [choice_data(c, p) for c in advice.choices.values()],
        "crossovers": [crossover_data(c) for c in advice.crossovers],
        "not_comparable": [unlike_data(u) for u in advice.unlike],
        "budgets": budget_data(advice.budgets),
        "next": [
            {"why": n.why, "command": n.command, "levels": list(n.levels), "suite": n.suite,
             "lines": list(n.lines)}
            for n in advice.next
        ],
    }  # fmt: skip


def config_data(config: Config) -> dict[str, object]:
    """What it is, as far as people tell configurations apart."""
    names = ("budget", "topk", "block")
    return {
        "name": config.name,
        "algorithm": config.algorithm,
        **{n: config.number(n) for n in names},
        "release": config.vary.get("release"),
    }


def estimate_data(e: Estimate) -> dict[str, object]:
    return {
        "output_tps": e.value, "low": e.low, "high": e.high, "launches": e.launches, "runs": e.runs,
    }  # fmt: skip


def candidate_data(c: Candidate, population: Population) -> dict[str, object]:
    gpus = population.gpus.get(c.config.key, 1)
    return {
        **config_data(c.config),
        **estimate_data(c.estimate),
        "gpus": gpus,
        "output_tps_per_gpu": c.estimate.value / gpus,
        "commit_length": c.commit_length,
        "commit_length_told": list(c.commit_told) if c.commit_told else None,
        "run_ids": list(c.run_ids),
    }


def choice_data(c: Choice, population: Population) -> dict[str, object]:
    return {
        "concurrency": c.level,
        "chosen": candidate_data(c.chosen, population),
        "certainty": c.certainty.value,
        "why": c.why,
        "over": [
            {**candidate_data(r.candidate, population), "word": r.word, "why": r.why}
            for r in c.rivals
        ],
        "alike": dict(population.alike[c.group]),
    }


def crossover_data(c: Crossover) -> dict[str, object]:
    return {
        "from": config_data(c.below),
        "to": config_data(c.above),
        "measured_at": list(c.ends),
        "at": c.at,
        "low": c.low,
        "high": c.high,
        "how": c.how,
        "notes": list(c.notes),
        "run_ids": list(c.run_ids),
    }


def unlike_data(u: Unlike) -> dict[str, object]:
    return {
        "concurrency": u.level,
        "a": {"name": u.a.config.name, **estimate_data(u.a.estimate), "run_ids": list(u.a.run_ids)},
        "b": {"name": u.b.config.name, **estimate_data(u.b.estimate), "run_ids": list(u.b.run_ids)},
        "unlike": list(u.columns),
    }


def budget_data(plan: BudgetPlan | None) -> dict[str, object] | None:
    if plan is None:
        return None
    return {
        "commit_length": {str(b): a for b, a in plan.lengths.items()},
        "commit_length_from": plan.lengths_from,
        "best": [
            {"concurrency": p.level, "budget": p.budget, "output_tps": p.tps,
             "as_good": list(p.as_good), "measured_budget": p.measured,
             "measured_output_tps": p.measured_tps, "error": p.error, "cell_error": p.cell_error}
            for p in plan.levels
        ],
        "warnings": list(plan.warnings),
        "why_not": plan.why,
    }  # fmt: skip


def at_data(found: At, population: Population) -> dict[str, object]:
    """The answer for one concurrency."""
    return {
        "service": population.service,
        "host": population.host,
        "device_class": population.device_class,
        "device": population.device,
        "basis": population.basis.value,
        "concurrency": found.level,
        "config": config_data(found.config) if found.config else None,
        "why": found.why,
        "choice": choice_data(found.choice, population) if found.choice else None,
    }


# ---- in words


def number(value: float) -> str:
    """Four digits, never an exponent."""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def estimate_words(e: Estimate, basis: Basis) -> str:
    """`150.1 (148.9 to 151.3)`, or what is known instead of an interval."""
    if e.low is None or e.high is None:
        word = basis.value if basis is Basis.REPORTED else "1 launch"
        return f"{number(e.value)} ({word})"
    return f"{number(e.value)} ({number(e.low)} to {number(e.high)})"


def commit_words(c: Candidate) -> str:
    """The commit length; a range where only one was told."""
    if c.commit_length is not None:
        return f"{c.commit_length:.2f}"
    if c.commit_told is None:
        return "-"
    low, high = c.commit_told
    return f"about {low:g}" if low == high else f"{low:g} to {high:g}"


def crossover_words(c: Crossover) -> str:
    """One sentence."""
    where = f"near {c.at:.3g}" if c.at is not None else "somewhere"
    span = f"interval {c.low:.3g} to {c.high:.3g}"
    return (
        f"from {c.ends[0]} to {c.ends[1]} requests at once, {c.below.name} gives way to "
        f"{c.above.name} {where} ({span}; {c.how})"
    )


def unlike_words(u: Unlike) -> str:
    """One sentence that keeps two numbers apart."""
    shown = [c.removeprefix("fix.") for c in u.columns[:3]]  # the JSON has the columns' own names
    more = f" and {len(u.columns) - 3} more" if len(u.columns) > 3 else ""
    return (
        f"at {u.level}, {number(u.a.estimate.value)} ({u.a.config.name}) and "
        f"{number(u.b.estimate.value)} ({u.b.config.name}) are not comparable: "
        f"{'; '.join(shown)}{more}"
    )


def left_words(by_status: Mapping[str, int], withdrawn: int) -> str:
    """How many runs do not count here."""
    parts = [f"{n} {word}" for word, n in sorted(by_status.items())]
    if withdrawn:
        parts.append(f"{withdrawn} withdrawn")
    return ", ".join(parts)


def ids_words(ids: tuple[str, ...], most: int = 6) -> str:
    """Run ids, the first ones; all of them are in the JSON."""
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return " ".join(short(i) for i in ids[:most]) + more
