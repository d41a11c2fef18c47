"""Findings as a document: what is said, in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddops.recommend.answer import Advice
from ddops.recommend.model import Basis
from ddops.recommend.view import (
    commit_words,
    crossover_words,
    estimate_words,
    left_words,
    number,
    unlike_words,
)
from ddops.report import figures
from ddops.report.collect import Findings, Spread
from ddops.report.document import Block, Bullets, Document, Figure, Section, Table, Text
from ddops.report.evidence import correctness, invalidated, provenance, reproduce
from ddops.report.words import group_words, label, opt, strategy

#: Rows of one table of cells; a report is for reading, the ledger for the rest.
MOST_ROWS = 400


def compose(found: Findings, *, draw: bool) -> Document:
    """The whole document. Without `draw` pictures are words: Markdown needs no more."""
    sections = [Section("Summary", list(_summary(found)))]
    for i, advice in enumerate(found.answer.advice):
        sections += _population(advice, found.spreads.get(i, ()), draw)
    sections.append(correctness(found))
    sections += invalidated(found)
    sections.append(provenance(found))
    sections.append(reproduce(found))
    name = found.service or "all services"
    return Document(f"Findings: {name}", banner(found), sections)


def banner(found: Findings) -> str:
    """What kind of numbers these are, where they are not of GPUs that were measured."""
    kinds = sorted({label(a.population) for a in found.answer.advice} - {""})
    whole = all(label(a.population) for a in found.answer.advice)
    if not kinds:
        return ""
    return f"{'All' if whole else 'Some'} numbers here are {'; some are '.join(kinds)}."


def _summary(found: Findings) -> Iterator[Block]:
    yield Text(
        f"Made {found.at:%Y-%m-%d %H:%M} UTC from {len(found.run_ids)} valid runs. Numbers are "
        "output tokens a second over all requests, with 95 % intervals over server starts."
    )
    if not found.answer.advice:
        yield Text("No valid run is there: nothing can be said.", "warn")
    for advice in found.answer.advice:
        items = [
            f"At {level}: {c.chosen.config.name}, "
            f"{estimate_words(c.chosen.estimate, advice.population.basis)}. "
            f"{c.certainty.value.capitalize()}: {c.why}."
            for level, c in advice.choices.items()
        ]
        items += [f"Crossover: {crossover_words(c)}." for c in advice.crossovers]
        yield Text(f"{advice.population.title}:")
        yield Bullets(tuple(items))
        for u in advice.unlike:
            yield Text(f"Not comparable: {unlike_words(u)}.", "warn")
    fallen = [c for c in found.conclusions if not c["stands"]]
    if fallen:
        texts = list(dict.fromkeys(str(c["text"]) for c in fallen))
        names = "; ".join(f"“{text}”" for text in texts[:5])
        stand = "conclusion no longer stands" if len(fallen) == 1 else "conclusions no longer stand"
        yield Text(f"{len(fallen)} {stand}: {names}.", "warn")
    left = left_words(found.answer.left.by_status, found.answer.left.withdrawn)
    if left:
        yield Text(f"Left out, and told below: {left}.")


def _population(advice: Advice, spreads: Sequence[Spread], draw: bool) -> list[Section]:
    p = figures.painter(advice, draw)
    title = advice.population.title
    blocks: list[Block] = [_choices(advice)]
    if advice.population.basis is not Basis.MEASURED or advice.population.device_class != "gpu":
        blocks.insert(0, Text(f"These numbers are {label(advice.population)}.", "warn"))
    out = [Section(title, blocks)]
    parts: list[tuple[str, list[Figure | None], list[Block]]] = [
        ("Concurrency and crossover", [figures.curves(p)], _crossings(advice)),
        ("Budget sweep", [figures.budgets(p)], _budget_model(advice)),
        ("Commit length", [figures.commit_lengths(p), figures.depths(p)], []),
        ("Throughput per GPU against per-user speed", [figures.pareto(p)], []),
        ("Latency", [*figures.distributions(p, spreads)], _latency(advice)),
        ("Strategies", [], _strategies(advice)),
        ("All cells", [], [_cells(advice)]),
        ("What to measure next", [], _next(advice)),
    ]
    for name, pictures, more in parts:
        shown: list[Block] = [*(f for f in pictures if f is not None), *more]
        if shown:
            out.append(Section(name, shown, 3))
    return out


def _choices(advice: Advice) -> Table:
    rows = tuple(
        (
            str(level),
            c.chosen.config.name,
            estimate_words(c.chosen.estimate, advice.population.basis),
            str(c.chosen.estimate.launches),
            commit_words(c.chosen),
            c.certainty.value,
            c.why,
        )
        for level, c in advice.choices.items()
    )
    head = ("Requests at once", "Run", "tok/s", "Starts", "Commit", "Sure", "Why")
    return Table(head, rows, frozenset({0, 2, 3, 4}))


def _crossings(advice: Advice) -> list[Block]:
    out: list[Block] = []
    for c in advice.crossovers:
        words = crossover_words(c)
        out.append(Text(f"{words[0].upper()}{words[1:]}."))
        out += [Text(f"{note}.") for note in c.notes]
    return out


def _budget_model(advice: Advice) -> list[Block]:
    plan = advice.budgets
    if plan is None:
        return []
    out: list[Block] = []
    if plan.levels:
        out.append(
            Text(
                "The budget model: expected commit length over the cost of a step, from "
                f"{plan.lengths_from}; costs are straight lines between measured widths."
            )
        )
        rows = tuple(
            (
                str(q.level), str(q.budget), number(q.tps),
                f"{min(q.as_good)} to {max(q.as_good)}" if len(q.as_good) > 1 else "-",
                str(q.measured), number(q.measured_tps),
                "no inner width" if q.error is None else f"{q.error:.1%}",
            )
            for q in plan.levels
        )  # fmt: skip
        head = ("Requests at once", "Predicted best budget", "tok/s", "As good", "Measured best",
                "tok/s", "Left-out error")  # fmt: skip
        out.append(Table(head, rows, frozenset({0, 1, 2, 4, 5, 6})))
    elif plan.why:
        out.append(Text(f"The budget model predicts nothing: {plan.why}."))
    return out + [Text(f"{w}.", "warn") for w in plan.warnings]


def _latency(advice: Advice) -> list[Block]:
    """Medians over runs; the worst p99 of the runs that carry one."""
    sets: dict[tuple[int, str, str], list[tuple[float | None, ...]]] = {}
    names = {}
    for r in advice.population.runs:
        key = (r.level, r.group, r.config.key)
        names[key] = r.config.name
        row = (r.ttft_p50_ms, r.ttft_p99_ms, r.tpot_p50_ms, r.tpot_p99_ms)
        sets.setdefault(key, []).append(row)
    rows = []
    for key, of in sorted(sets.items(), key=lambda kv: (kv[0][0], names[kv[0]])):
        columns = [[v for v in column if v is not None] for column in zip(*of, strict=True)]
        if any(columns):
            cells = [
                opt(sorted(v)[len(v) // 2] if i % 2 == 0 else max(v)) if v else "-"
                for i, v in enumerate(columns)
            ]
            rows.append((str(key[0]), names[key], *cells))
    head = ("Requests at once", "Configuration", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms",
            "TPOT p99 ms")  # fmt: skip
    return [Table(head, tuple(rows[:MOST_ROWS]), frozenset({0, 2, 3, 4, 5}))] if rows else []


def _strategies(advice: Advice) -> list[Block]:
    """The fastest configuration of each strategy; numbers of one column are alike."""
    levels = sorted({c.level for c in advice.candidates})
    shown = levels if len(levels) <= 8 else figures.spaced(levels, 8)
    best: dict[str, dict[int, float]] = {}
    for c in advice.candidates:
        head = advice.choices[c.level]
        if c.group != head.group:
            continue
        of = best.setdefault(strategy(c.config), {})
        of[c.level] = max(of.get(c.level, 0.0), c.estimate.value)
    rows = tuple(
        (name, *(number(of[n]) if n in of else "-" for n in shown))
        for name, of in sorted(best.items(), key=lambda kv: -max(kv[1].values()))
    )
    header = ("Strategy", *(f"{n} at once" for n in shown))
    out: list[Block] = [Table(header, rows, frozenset(range(1, len(shown) + 1)))]
    if len({advice.choices[n].group for n in shown}) > 1:
        parts = (f"at {n}, {group_words(advice, advice.choices[n].group)}" for n in shown)
        out.append(Text(f"Columns were not measured alike: {'. '.join(parts)}."))
    return out


def _cells(advice: Advice) -> Table:
    gpus = advice.population.gpus
    several = len(advice.population.alike) > 1
    rows = [
        (
            str(c.level), c.config.name,
            estimate_words(c.estimate, advice.population.basis),
            number(c.estimate.value / gpus.get(c.config.key, 1)),
            number(c.estimate.value / c.level), commit_words(c),
            f"{c.estimate.launches} / {c.estimate.runs}",
            *([group_words(advice, c.group)] if several else []),
        )
        for c in sorted(advice.candidates, key=lambda c: (c.level, c.group, -c.estimate.value))
    ]  # fmt: skip
    head = ("Requests at once", "Configuration", "tok/s", "a GPU", "a user", "Commit",
            "Starts / runs", *(["Measured"] if several else []))  # fmt: skip
    return Table(head, tuple(rows[:MOST_ROWS]), frozenset({0, 2, 3, 4, 5, 6}))


def _next(advice: Advice) -> list[Block]:
    if not advice.next:
        return [Text("Nothing: no lead is in doubt, and no crossover is wide.")]
    items = tuple(
        f"{n.why}: levels {', '.join(map(str, n.levels))} in {n.suite}, then {n.command}"
        for n in advice.next
    )
    return [Bullets(items)]
