"""The pictures of one population, as data and as drawn. Each has words that say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddops.recommend.answer import Advice
from ddops.recommend.model import Candidate
from ddops.recommend.pick import commit_length
from ddops.recommend.view import number
from ddops.report.collect import Spread
from ddops.report.document import Figure
from ddops.report.plots import MOST, Axis, Band, Point, Series, lines, spans, steps
from ddops.report.words import group_words, label


@dataclass(frozen=True, slots=True)
class Painter:
    """Draws for one population; with `draw` off only the words are made."""

    advice: Advice
    draw: bool
    styles: Mapping[str, int]

    @property
    def note(self) -> str:
        return label(self.advice.population)

    def group(self, wanted: str) -> list[Candidate]:
        return [c for c in self.advice.candidates if c.group == wanted]


def painter(advice: Advice, draw: bool) -> Painter:
    """Chosen configurations get the first styles, then the fastest ones."""
    chosen = [c.chosen.config.key for c in advice.choices.values()]
    fast = [c.config.key for c in sorted(advice.candidates, key=lambda c: -c.estimate.value)]
    order = list(dict.fromkeys([*chosen, *fast]))
    return Painter(advice, draw, {key: i for i, key in enumerate(order)})


def curves(p: Painter) -> Figure | None:
    """Throughput over concurrency with the crossovers, of the group with most concurrencies."""
    group = _widest(p)
    found = p.group(group)
    levels = sorted({c.level for c in found})
    if len(levels) < 2:
        return None
    crossings = [c for c in p.advice.crossovers if c.group == group]
    series, left_out = _by_config(
        p, found, lambda c: Point(c.level, c.estimate.value, c.estimate.low, c.estimate.high)
    )
    bands = [
        Band(c.low, c.high, c.at, "crossover, its interval" if i == 0 else "", c.ends, c.lines)
        for i, c in enumerate(crossings)
    ]
    svg = (
        lines(
            series,
            Axis(label="requests at once", log=True, ticks=tuple(float(n) for n in levels)),
            Axis(label="output tokens a second, all requests", log=True),
            bands=bands, note=p.note,
        )
        if p.draw
        else ""
    )  # fmt: skip
    words = "; ".join(
        f"{s.name}: " + ", ".join(f"{number(q.y)} at {q.x:g}" for q in s.points) for s in series
    )
    return Figure(_caption("Throughput over concurrency", p, group, left_out), words + ".", svg)


def pareto(p: Painter) -> Figure | None:
    """Throughput per GPU against speed of one user."""
    group = _widest(p)
    found = p.group(group)
    if not found:
        return None
    gpus = p.advice.population.gpus
    series, left_out = _by_config(
        p, found,
        lambda c: Point(
            c.estimate.value / c.level, c.estimate.value / gpus.get(c.config.key, 1),
            label=str(c.level),
        ),
    )  # fmt: skip
    svg = (
        lines(
            series, Axis(label="tokens a second of one user", log=True),
            Axis(label="output tokens a second and GPU", log=True), note=p.note,
        )
        if p.draw
        else ""
    )  # fmt: skip
    front = [
        f"{c.config.name} at {c.level}: {number(c.estimate.value / gpus.get(c.config.key, 1))} a "
        f"GPU, {number(c.estimate.value / c.level)} a user"
        for c in undominated(found, gpus)
    ]
    return Figure(
        _caption("Throughput per GPU against per-user speed; numbers at points are concurrencies",
                 p, group, left_out),
        f"Not beaten on both at once: {'; '.join(front)}.", svg,
    )  # fmt: skip


def undominated(found: Sequence[Candidate], gpus: Mapping[str, int]) -> list[Candidate]:
    """Candidates that no other one beats both per GPU and per user; the fastest user first."""
    out: list[Candidate] = []
    best = 0.0
    for c in sorted(found, key=lambda c: (-c.estimate.value / c.level, -c.estimate.value)):
        per_gpu = c.estimate.value / gpus.get(c.config.key, 1)
        if per_gpu > best:
            out.append(c)
            best = per_gpu
    return out


def budgets(p: Painter) -> Figure | None:
    """Throughput over the tree's budget, a line for each concurrency; 0 is autoregressive."""
    trees = [c for c in p.advice.candidates if c.config.number("budget")]
    if not trees:
        return None
    group = max(
        {c.group for c in trees},
        key=lambda g: (len({c.config.number("budget") for c in trees if c.group == g}), g),
    )
    found = [c for c in p.group(group) if c.config.number("budget") or not c.config.speculative]
    if len({c.config.number("budget") or 0 for c in found}) < 2:
        return None
    levels = sorted({c.level for c in found})
    shown = spaced(levels, MOST)
    series = []
    for i, level in enumerate(shown):
        best: dict[int, Candidate] = {}
        for c in (c for c in found if c.level == level):
            budget = c.config.number("budget") or 0
            if budget not in best or c.estimate.value > best[budget].estimate.value:
                best[budget] = c
        points = tuple(
            Point(b, c.estimate.value, c.estimate.low, c.estimate.high)
            for b, c in sorted(best.items())
        )
        joined, plain = (tuple(q for q in points if bool(q.x) is t) for t in (True, False))
        series.append(Series(f"{level} at once", joined, i, plain))
    every = sorted({q.x for s in series for q in (*s.apart, *s.points)})
    svg = (
        lines(
            series, Axis(label="budget: nodes of the tree (0: autoregressive)", ticks=tuple(every)),
            Axis(label="output tokens a second, all requests", log=len(shown) > 1), note=p.note,
        )
        if p.draw
        else ""
    )  # fmt: skip
    words = "; ".join(
        f"{s.name}: " + ", ".join(f"budget {q.x:g} {number(q.y)}" for q in (*s.apart, *s.points))
        for s in series
    )
    left = f"; {len(levels) - len(shown)} concurrencies are not drawn" if shown != levels else ""
    return Figure(_caption("Budget sweep", p, group, 0) + left, f"{words}.", svg)


def commit_lengths(p: Painter) -> Figure | None:
    """Commit length of each configuration: measured ones as points, told ones as ranges."""
    rows: dict[str, tuple[str, float, float, float, int]] = {}
    runs = p.advice.population.runs
    for config in {r.config.key: r.config for r in runs if r.config.speculative}.values():
        own = [r for r in runs if r.config.key == config.key]
        length = commit_length(own)
        each = [r.commit_tokens / r.commit_steps for r in own if r.commit_tokens and r.commit_steps]
        told = [r.commit_told for r in own if r.commit_told is not None]
        style = p.styles.get(config.key, len(p.styles))
        if length is not None:
            rows[config.key] = (config.name, min(each), length, max(each), style)
        elif told:
            low, high = min(t[0] for t in told), max(t[1] for t in told)
            rows[config.key] = (config.name, low, (low + high) / 2, high, style)
    if not rows:
        return None
    ordered = sorted(rows.values(), key=lambda r: -r[2])[: 2 * MOST]
    svg = spans(ordered, Axis(label="tokens committed a step"), note=p.note) if p.draw else ""
    words = "; ".join(
        f"{name} {mid:.2f} (runs from {low:.2f} to {high:.2f})"
        if low != high
        else f"{name} {mid:.2f}"
        for name, low, mid, high, _ in ordered
    )
    caption = (
        "Commit length. The bar goes from the lowest to the highest run, or over what was told"
    )
    return Figure(f"{caption}{_note(p)}", f"{words}.", svg)


def depths(p: Painter) -> Figure | None:
    """Share of steps that committed a draft at each depth, from histograms of valid runs."""
    sums: dict[str, dict[int, int]] = {}
    names: dict[str, str] = {}
    for run in p.advice.population.runs:
        for tokens, n in run.histogram.items():
            of = sums.setdefault(run.config.key, {})
            of[tokens] = of.get(tokens, 0) + n
            names[run.config.key] = run.config.name
    series, parts = [], []
    for key, of in sorted(sums.items(), key=lambda kv: p.styles.get(kv[0], 99))[:MOST]:
        total = sum(of.values())
        shares = [sum(n for t, n in of.items() if t > d) / total for d in range(1, max(of))]
        if shares:
            points = tuple(Point(d, s) for d, s in enumerate(shares, 1))
            series.append(Series(names[key], points, p.styles.get(key, 0)))
            parts.append(f"{names[key]}: " + ", ".join(f"{s:.0%}" for s in shares))
    if not series:
        return None
    deepest = max(len(s.points) for s in series)
    svg = (
        lines(
            series, Axis(label="depth of the draft", ticks=tuple(range(1, deepest + 1))),
            Axis(label="share of steps that committed it"), note=p.note,
        )
        if p.draw
        else ""
    )  # fmt: skip
    return Figure(f"Commit length by depth{_note(p)}", "; ".join(parts) + ".", svg)


def distributions(p: Painter, spreads: Sequence[Spread]) -> list[Figure]:
    """TTFT and time per token, cumulative, at the lowest and the highest concurrency."""
    out = []
    for level in sorted({s.level for s in spreads}):
        here = [s for s in spreads if s.level == level][:MOST]
        for what, axis in (
            ("ttft", "ms from sending a request to its first token"),
            ("interval", "ms between tokens, mean of each request"),
        ):
            series = []
            for s in here:
                values = s.ttft if what == "ttft" else s.interval
                if values:
                    last = len(values) - 1
                    points = tuple(Point(v, i / last) for i, v in enumerate(values))
                    series.append(Series(f"{s.name} (n={s.n})", points, p.styles[s.config]))
            if not series:
                continue
            svg = (
                steps(series, Axis(label=axis, log=_wide(series)), Axis(label="share of requests"),
                      note=p.note)
                if p.draw
                else ""
            )  # fmt: skip
            title = "Time to first token" if what == "ttft" else "Time per token"
            words = "; ".join(f"{s.name} median {_middle(s):.1f} ms" for s in series)
            out.append(Figure(f"{title} at {level} at once{_note(p)}", f"{words}.", svg))
    return out


def _middle(s: Series) -> float:
    return s.points[len(s.points) // 2].x


def _wide(series: Sequence[Series]) -> bool:
    xs = [q.x for s in series for q in s.points]
    return min(xs) > 0 and max(xs) / min(xs) > 20


def _widest(p: Painter) -> str:
    """The group with most concurrencies, then most configurations."""
    found = p.advice.candidates
    sizes = {
        g: (len({c.level for c in found if c.group == g}), sum(c.group == g for c in found), g)
        for g in {c.group for c in found}
    }
    return max(sizes, key=lambda g: sizes[g]) if sizes else ""


def _by_config(
    p: Painter, found: Sequence[Candidate], point: Callable[[Candidate], Point]
) -> tuple[list[Series], int]:
    """A series for each configuration, the first styles first; how many are left out."""
    sets: dict[str, list[Candidate]] = {}
    for c in found:
        sets.setdefault(c.config.key, []).append(c)
    keys = sorted(sets, key=lambda k: p.styles[k])
    series = [
        Series(
            sets[k][0].config.name,
            tuple(point(c) for c in sorted(sets[k], key=lambda c: c.level)),
            p.styles[k],
        )
        for k in keys[:MOST]
    ]
    return series, len(keys) - len(series)


def spaced(levels: Sequence[int], most: int) -> list[int]:
    """At most so many, both ends among them."""
    if len(levels) <= most:
        return list(levels)
    step = (len(levels) - 1) / (most - 1)
    return [levels[round(i * step)] for i in range(most)]


def _caption(title: str, p: Painter, group: str, left_out: int) -> str:
    words = group_words(p.advice, group)
    more = f". Not drawn: {left_out} slower configurations" if left_out else ""
    others = len(p.advice.population.alike) - 1
    apart = f". {others} other ways of measuring are not drawn with it" if others else ""
    return f"{title}{_note(p)}{f' ({words})' if words else ''}{apart}{more}"


def _note(p: Painter) -> str:
    return f" [{p.note}]" if p.note else ""
