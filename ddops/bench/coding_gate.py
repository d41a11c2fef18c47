"""Two coding runs of one task set: has the candidate lost anything against its reference? Pure.

164 tasks are few: unpaired they show differences of 5 points at best. So the gate compares task by
task, passes only when a loss of more than 3 points is excluded, and otherwise says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scipy import stats as scipy_stats

from ddops.bench.coding import OURS, CodingResult
from ddops.bench.stats import CONFIDENCE, Interval, mcnemar
from ddops.model import GateResult, Verdict

ALPHA = 0.05
#: The loss that must be excluded, as a share of the tasks.
MARGIN = 0.03
#: A reference that solves less has nothing to lose: the gate has no power then.
FLOOR = 0.2
#: A shift of a rule's share that is worth a look.
SHIFT = 0.10
NAME = "coding"


@dataclass(frozen=True, slots=True)
class PairedTasks:
    """What two runs have in common and in what they differ. `loss` is reference minus candidate."""

    tasks: int
    only_reference: int
    only_candidate: int
    p: float
    loss: Interval


def paired(reference: CodingResult, candidate: CodingResult) -> PairedTasks:
    """Compare task by task (McNemar, exact)."""
    lost, won, p = mcnemar(reference.solved, candidate.solved)
    n = len(set(reference.solved) & set(candidate.solved))
    return PairedTasks(n, lost, won, p, _difference(lost, won, n))


def _difference(lost: int, won: int, n: int) -> Interval:
    """Paired difference of proportions with the interval of Agresti and Min (Wald+2)."""
    if n == 0:
        return Interval(0.0, -1.0, 1.0, 0)
    b, c, m = lost + 0.5, won + 0.5, n + 2
    middle = (b - c) / m
    z = float(scipy_stats.norm.ppf((1 + CONFIDENCE) / 2))
    reach = z * math.sqrt(b + c - (b - c) ** 2 / m) / m
    value = (lost - won) / n
    return Interval(value, min(middle - reach, value), max(middle + reach, value), n)


def pass_interval(result: CodingResult) -> Interval | None:
    """pass@1 with its Wilson interval; None without a graded task."""
    n, solved = len(result.solved), sum(result.solved.values())
    if not n:
        return None
    found = scipy_stats.binomtest(solved, n).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(solved / n, float(found.low), float(found.high), n)


def judge(reference: CodingResult, candidate: CodingResult) -> GateResult:
    """PASS, FAIL, or UNKNOWN with the reason; UNKNOWN is never taken for PASS."""
    both = paired(reference, candidate)
    evidence = {
        "sha256": candidate.sha256,
        "reference": _shown(reference),
        "candidate": _shown(candidate),
        "only_reference": both.only_reference,
        "only_candidate": both.only_candidate,
        "mcnemar_p": both.p,
        "loss": [both.loss.value, both.loss.low, both.loss.high],
        "shifted_rules": shifted_rules(reference, candidate),
    }
    verdict, message = _verdict(reference, candidate, both)
    return GateResult(NAME, verdict, message, evidence)


def judge_alone(result: CodingResult) -> GateResult:
    """The gate of the measure itself: it is graded whole, and clears the floor."""
    words = _unfit(result, "reference")
    rate = pass_interval(result)
    if rate is not None and not words:
        words = f"{rate.value:.1%} of {rate.n} tasks ({rate.low:.1%} to {rate.high:.1%})"
        return GateResult(NAME, Verdict.PASS, words, {"reference": True, **_shown(result)})
    return GateResult(NAME, Verdict.UNKNOWN, words, {"reference": True, **_shown(result)})


def _unfit(reference: CodingResult, name: str) -> str:
    """Why a result cannot be the measure; empty when it can."""
    if words := _open(reference, name):
        return words
    rate = reference.pass_rate or 0.0
    if rate < FLOOR:
        return f"no_power: the {name} solves {rate:.0%}, below {FLOOR:.0%}"
    return ""


def _open(result: CodingResult, name: str) -> str:
    """What was not answered or graded, in words."""
    if result.conclusive:
        return ""
    lost = {v: n for v, n in result.counts.items() if v in OURS}
    why = ", ".join(f"{n} {v}" for v, n in sorted(lost.items())) or "nothing graded"
    return f"inconclusive: the {name} has {why}"


def _verdict(
    reference: CodingResult, candidate: CodingResult, both: PairedTasks
) -> tuple[Verdict, str]:
    if (reference.tasks, reference.sha256) != (candidate.tasks, candidate.sha256):
        return Verdict.UNKNOWN, "inconclusive: the two runs had different tasks"
    unfit = _unfit(reference, "reference") or _open(candidate, "candidate")
    if unfit:
        return Verdict.UNKNOWN, unfit
    words = (
        f"{both.only_reference} tasks lost and {both.only_candidate} won of {both.tasks}, "
        f"p {both.p:.2g}, loss {both.loss.value:.1%} (at most {both.loss.high:.1%})"
    )
    if both.p <= ALPHA and both.loss.value > 0:
        return Verdict.FAIL, words
    if both.loss.high > MARGIN:
        return Verdict.UNKNOWN, f"inconclusive: a loss of {MARGIN:.0%} is not excluded: {words}"
    return Verdict.PASS, words


def shifted_rules(reference: CodingResult, candidate: CodingResult) -> Mapping[str, list[float]]:
    """Rules of extraction whose share moved by more than `SHIFT`: replies changed their form."""
    out = {}
    for rule in sorted({*reference.rules, *candidate.rules}):
        shares = [r.rules.get(rule, 0) / max(1, len(r.graded)) for r in (reference, candidate)]
        if abs(shares[0] - shares[1]) > SHIFT:
            out[rule] = shares
    return out


def _shown(result: CodingResult) -> dict[str, object]:
    interval = pass_interval(result)
    return {
        "verdicts": dict(result.counts),
        "rules": dict(result.rules),
        "truncated": sum(g.truncated for g in result.graded),
        "pass": [interval.value, interval.low, interval.high] if interval else None,
        "python": result.python,
    }
