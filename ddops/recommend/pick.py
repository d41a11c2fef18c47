"""The best configuration at one concurrency. Pure.

Launches are compared, never runs. A lead counts when it is significant on launches, at least 2 %,
and its interval leaves out 1; with several rivals each test is made that much stricter. At a tie
the simpler configuration stays: autoregressive before a chain, a chain before a tree, a small
tree before a big one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from scipy import stats as scipy_stats

from ddops.bench.stats import CONFIDENCE, launch_means, seed_of
from ddops.bench.stats_verdict import ALPHA, EFFECT, Word, judge
from ddops.recommend.model import (
    Candidate,
    Certainty,
    Choice,
    Estimate,
    Measured,
    Rival,
)


def candidates(runs: Sequence[Measured]) -> list[Candidate]:
    """Configurations with a throughput, by group, concurrency and rank of simplicity."""
    sets: dict[tuple[str, int, str], list[Measured]] = defaultdict(list)
    for run in runs:
        if run.output_tps is not None and run.output_tps > 0:
            sets[(run.group, run.level, run.config.key)].append(run)
    found = [_candidate(of) for of in sets.values()]
    return sorted(found, key=lambda c: (c.group, c.level, c.config.rank))


def _candidate(runs: Sequence[Measured]) -> Candidate:
    means = launch_means((r.launch, float(r.output_tps or 0)) for r in runs)
    first = runs[0]
    told = [r.commit_told for r in runs if r.commit_told is not None]
    return Candidate(
        config=first.config,
        level=first.level,
        group=first.group,
        estimate=estimate(list(means.values()), len(runs)),
        by_launch=means,
        commit_length=commit_length(runs),
        commit_told=(min(t[0] for t in told), max(t[1] for t in told)) if told else None,
        run_ids=tuple(sorted(r.id for r in runs)),
    )


def commit_length(runs: Sequence[Measured]) -> float | None:
    """Committed tokens over verify steps: a ratio of sums."""
    known = [(r.commit_tokens, r.commit_steps) for r in runs]
    pairs = [(t, s) for t, s in known if t is not None and s]
    steps = sum(s for _, s in pairs)
    return sum(t for t, _ in pairs) / steps if steps else None


def estimate(launches: Sequence[float], runs: int) -> Estimate:
    """Mean over launches with its 95 % interval (Student's t); none from one launch."""
    n = len(launches)
    mean = math.fsum(launches) / n
    if n < 2:
        return Estimate(value=mean, low=None, high=None, launches=n, runs=runs)
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in launches) / (n - 1) / n)
    reach = float(scipy_stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * spread
    return Estimate(
        value=mean, low=max(0.0, mean - reach), high=mean + reach, launches=n, runs=runs
    )


def choose(group: Sequence[Candidate]) -> Choice:
    """The one to run, of candidates of one group and concurrency (at least one)."""
    order = sorted(group, key=lambda c: (-c.estimate.value, c.config.rank))
    best, others = order[0], order[1:]
    if not others:
        return _choice(best, Certainty.ALONE, "nothing else was measured alike", [])
    rivals = {c.config.key: _against(best, c, len(others)) for c in others}
    tied = [
        r
        for r in rivals.values()
        if r.word == Word.TIE.value and r.candidate.config.rank < best.config.rank
    ]
    if tied:
        simple = min(tied, key=lambda r: r.candidate.config.rank)
        chosen = simple.candidate
        rest = [
            simple_rival(best, simple.why),
            *(_against(chosen, c, len(others)) for c in others if c is not chosen),
        ]
        why = f"{best.config.name} is not proven better: {simple.why}"
        return _choice(chosen, Certainty.TIE, why, rest)
    open_ones = [r for r in rivals.values() if r.word != Word.BETTER.value]
    few = [r for r in open_ones if r.word == Word.TOO_FEW.value]
    if few:
        launches = min(best.estimate.launches, *(r.candidate.estimate.launches for r in few))
        name, word = few[0].candidate.config.name, "launch" if launches == 1 else "launches"
        why = f"ahead of {name}; {launches} {word} a side cannot prove it"
        return _choice(best, Certainty.LEADS, why, list(rivals.values()))
    if open_ones:
        names = ", ".join(r.candidate.config.name for r in open_ones)
        why = f"level with {names}, which is no simpler"
        return _choice(best, Certainty.TIE, why, list(rivals.values()))
    weakest = min(rivals.values(), key=lambda r: -r.candidate.estimate.value)
    return _choice(best, Certainty.PROVEN, f"better than all others: {weakest.why}",
                   list(rivals.values()))  # fmt: skip


def simple_rival(best: Candidate, why: str) -> Rival:
    """The fastest one, seen from the simpler one that was chosen over it."""
    return Rival(candidate=best, word=Word.TIE.value, why=why)


def _choice(chosen: Candidate, certainty: Certainty, why: str, rivals: Sequence[Rival]) -> Choice:
    return Choice(
        level=chosen.level, group=chosen.group, chosen=chosen, certainty=certainty, why=why,
        rivals=sorted(rivals, key=lambda r: -r.candidate.estimate.value),
    )  # fmt: skip


def _against(a: Candidate, b: Candidate, tests: int) -> Rival:
    """What is known of `a` against `b`; within 2 % with too few launches is a tie as well."""
    found = judge(
        a.by_launch, b.by_launch, higher_is_better=True,
        seed=seed_of(*a.run_ids, *b.run_ids), alpha=ALPHA / max(1, tests),
    )  # fmt: skip
    word, why = found.word, found.why
    gap = a.estimate.value / b.estimate.value - 1
    if word is Word.TOO_FEW and abs(gap) < EFFECT:
        word, why = Word.TIE, f"the difference of {abs(gap):.1%} is below {EFFECT:.0%}"
    return Rival(candidate=b, word=word.value, why=why)


def choices(found: Sequence[Candidate]) -> dict[str, dict[int, Choice]]:
    """Group: concurrency: choice."""
    sets: dict[str, dict[int, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
    for candidate in found:
        sets[candidate.group][candidate.level].append(candidate)
    return {
        group: {level: choose(of) for level, of in sorted(levels.items())}
        for group, levels in sorted(sets.items())
    }


def headline(found: Mapping[str, Mapping[int, Choice]]) -> dict[int, Choice]:
    """One choice a concurrency: of the group that compared most, then of most launches."""
    out: dict[int, Choice] = {}
    for levels in found.values():
        for level, choice in levels.items():
            if level not in out or _weight(choice) > _weight(out[level]):
                out[level] = choice
    return dict(sorted(out.items()))


def _weight(choice: Choice) -> tuple[int, int, int, str]:
    everyone = [choice.chosen, *(r.candidate for r in choice.rivals)]
    launches = min(c.estimate.launches for c in everyone)
    return len(everyone), launches, sum(len(c.run_ids) for c in everyone), choice.group
