"""`compare` and `regression`: two configurations, or one against its own history.

For `ddops bench compare A B`: call `compare(ledger, a, b)` and print what it answers; it raises
RefusedError (exit 4) when the two are unlike, naming the unlike columns, and
UsageError (exit 2) when they are the same. `A` and `B` are run ids or
cell keys, or the first digits of either; a run stands for all valid runs of its cell on its device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddops.bench.stats import Interval, launch_means, paired_ratio, seed_of
from ddops.bench.stats_verdict import Judgement, Noise, judge, noise_bound, regressed
from ddops.errors import RefusedError, UsageError
from ddops.ledger import Device, Ledger, Run, StoredCell
from ddops.model import short

#: Figures that may be compared, and whether more is better.
FIGURES: Mapping[str, bool] = {
    "output_tps": True,
    "request_tps": True,
    "ttft_p50_ms": False,
    "ttft_p99_ms": False,
    "tpot_p50_ms": False,
    "tpot_p99_ms": False,
    "commit_length": True,
}
#: What happened, not what was asked: each run's own, so not compared. `own` is for seeds and salts.
OWN = ("own", "client", "idle_before", "flushed")
#: Below this a speculating server commits its own token alone: drafting has stopped to help.
HELPS = 1.05


@dataclass(frozen=True, slots=True)
class Side:
    """All valid runs of one cell on one device."""

    cell: StoredCell
    device_class: str
    device: str
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return f"{self.cell.label or short(self.cell.key)} ({len(self.runs)} runs)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B. `paired` is the per-prompt ratio of decode speed, where samples have it."""

    a: Side
    b: Side
    figure: str
    judgement: Judgement
    paired: Interval | None
    varied: Sequence[str]
    notes: Sequence[str]

    @property
    def run_ids(self) -> list[str]:
        """What a finding drawn from this must name."""
        return [r.id for side in (self.a, self.b) for r in side.runs]


@dataclass(frozen=True, slots=True)
class Regression:
    """One run against earlier launches of its family. `noise` is None with too few of them."""

    run: Run
    figure: str
    value: float
    noise: Noise | None
    worse: bool | None
    baseline: Sequence[str]


def compare(ledger: Ledger, a: str, b: str, figure: str = "output_tps") -> Comparison:
    """Compare two cells by their launches. Raises RefusedError when they are unlike."""
    _known(figure)
    one, two = side(ledger, a), side(ledger, b)
    if (one.cell.key, one.device_class, one.device) == (two.cell.key, two.device_class, two.device):
        raise UsageError(
            f"{a} and {b} are one configuration, {one.name}",
            why="a run stands for all valid runs of its cell, so this is a comparison with itself",
            next="name a run of another configuration; for one run against earlier ones:"
            f" ddops bench regression {one.runs[-1].id}",
        )
    unlike = unlike_columns(one, two)
    if unlike:
        raise RefusedError(
            f"{one.name} and {two.name} cannot be compared",
            why="unlike: " + "; ".join(unlike),
            next="measure both with these alike; what an experiment varies belongs into its `vary`",
        )
    seed = seed_of(*(r.id for r in (*one.runs, *two.runs)))
    left, right = (_launches(s, figure) for s in (one, two))
    return Comparison(
        a=one,
        b=two,
        figure=figure,
        judgement=judge(left, right, higher_is_better=FIGURES[figure], seed=seed),
        paired=paired_ratio(_speeds(ledger, one), _speeds(ledger, two), seed=seed),
        varied=list(_unlike("", one.cell.vary, two.cell.vary)),
        notes=[*notes(one), *notes(two)],
    )


def record(ledger: Ledger, found: Comparison, by: str) -> str:
    """The comparison as a conclusion of its runs; the id of the one that says so already, if any.

    So a retraction of one of them lists what was concluded from it.
    """
    j = found.judgement
    subject = f"{found.a.name} against {found.b.name}"
    text = f"{j.word.value}: {found.figure} {j.ratio.value:.3f} ({j.why})"
    runs = list(dict.fromkeys(found.run_ids))
    for known in ledger.conclusions(runs):
        if (known["kind"], known["subject"], known["text"], known["runs"], known["stands"]) == (
            "comparison", subject, text, len(runs), 1,
        ):  # fmt: skip
            return str(known["id"])
    evidence = {"figure": found.figure, "p": j.p, "ratio": [j.ratio.low, j.ratio.high]}
    return ledger.add_finding("comparison", subject, text, runs, by=by, evidence=evidence)


def side(ledger: Ledger, name: str) -> Side:
    """The cell of a name with its valid runs. Raises RefusedError when none is valid."""
    cell, chosen = ledger.cell(name), None
    if cell is None:
        chosen = ledger.run(name)
        cell = ledger.cell(chosen.cell)
        if not chosen.valid:
            raise RefusedError(
                f"run {chosen.id} does not count",
                why=why_not(ledger, chosen),
                next=f"measure it again, or look: ddops ledger show {chosen.id}",
            )
    if cell is None:
        raise UsageError(f"the ledger has no cell or run {name!r}", next="ddops ledger show")
    runs = ledger.runs(cell.key)
    devices = sorted({(r.device_class.value, r.device) for r in runs})
    if chosen is not None:
        devices = [(chosen.device_class.value, chosen.device)]
    if len(devices) != 1:
        why = ", ".join(f"{d} ({c})" for c, d in devices) if devices else "it has no valid run"
        raise RefusedError(
            f"cell {cell.label or short(cell.key)} cannot be compared as a whole",
            why=why,
            next="name a run instead: ddops ledger show runs",
        )
    kind, device = devices[0]
    kept = tuple(r for r in runs if (r.device_class.value, r.device) == (kind, device))
    return Side(cell, kind, device, kept)


def why_not(ledger: Ledger, run: Run) -> str:
    """Why a run does not count, in words."""
    reasons = [str(w["reason"]) for w in ledger.withdrawals(run)]
    if reasons:
        return "withdrawn: " + "; ".join(reasons)
    return f"{run.status.value}: {run.reason}" if run.reason else "its gates do not carry it"


def unlike_columns(a: Side, b: Side) -> list[str]:
    """What differs and must not, as `column: left against right`."""
    out = list(_unlike("fix", a.cell.fix, b.cell.fix))
    if a.cell.suite != b.cell.suite:
        out.append(f"suite: {a.cell.suite} against {b.cell.suite}")
    if (a.device_class, a.device) != (b.device_class, b.device):
        out.append(f"device: {a.device} ({a.device_class}) against {b.device} ({b.device_class})")
    for what in ("protocol", "window"):
        left, right = (_alike(s, what) for s in (a, b))
        for key in sorted(left | right):
            if left.get(key, set()) != right.get(key, set()) or len(left.get(key, set())) > 1:
                shown = (" or ".join(sorted(x.get(key, {"nothing"}))) for x in (left, right))
                out.append(f"{what}.{key}: {' against '.join(shown)}")
    if _random_prompts(a) and any(_drafts(s) for s in (a, b)):
        out.append("fix.dataset: random tokens say nothing of how many drafts are accepted")
    return out


def notes(s: Side) -> list[str]:
    """What a reader must know of one side."""
    out = []
    length = commit_length(s.runs)
    if _drafts(s) and length is not None and length < HELPS:
        out.append(f"{s.name}: drafting does not help, commit length {length:.2f}")
    if s.device_class != "gpu":
        out.append(f"{s.name}: measured on {s.device_class}, says nothing about a GPU")
    return out


def commit_length(runs: Sequence[Run]) -> float | None:
    """Committed tokens over verify steps, summed over runs; None where not measured."""
    pairs = [(r.figures["commit_tokens"], r.figures["commit_steps"]) for r in runs]
    known = [(t, s) for t, s in pairs if t is not None and s]
    steps = sum(s for _, s in known)
    return sum(t for t, _ in known) / steps if steps else None


def regression(ledger: Ledger, run_id: str, figure: str = "output_tps") -> Regression:
    """One valid run against all earlier launches of its family on the same device."""
    _known(figure)
    run = ledger.run(run_id)
    cell = ledger.cell(run.cell)
    value = figure_of(run, figure)
    if cell is None or not run.valid or value is None:
        why = f"{figure} was not measured" if run.valid else why_not(ledger, run)
        raise RefusedError(
            f"run {run.id} cannot be judged", why=why, next=f"ddops ledger show {run.id}"
        )
    earlier = [
        r
        for r in history(ledger, cell.family, run.device_class, run.device)
        if r.launch != run.launch and r.started < run.started
    ]
    noise = noise_of(earlier, figure)
    worse = regressed(value, noise, higher_is_better=FIGURES[figure]) if noise else None
    return Regression(run, figure, value, noise, worse, sorted({r.id for r in earlier}))


def history(ledger: Ledger, family: str, device_class: Device, device: str) -> list[Run]:
    """All valid runs of one configuration over many builds, on one device, oldest first."""
    found = [
        run
        for cell in ledger.cells()
        if cell.family == family
        for run in ledger.runs(cell.key)
        if (run.device_class, run.device) == (device_class, device)
    ]
    return sorted(found, key=lambda r: (r.started, r.ledger, r.seq))


def noise_of(runs: Sequence[Run], figure: str) -> Noise | None:
    """What one more launch may read and still be the same: G5's bound. None: below 3 launches."""
    return noise_bound(list(launch_means(_values(runs, figure)).values()))


def _known(figure: str) -> None:
    if figure not in FIGURES:
        raise UsageError(
            f"no figure {figure!r} to compare",
            why=f"there are {', '.join(FIGURES)}",
            next="give one of these",
        )


def figure_of(run: Run, figure: str) -> float | None:
    """A figure of a run; None is "not measured"."""
    if figure == "commit_length":
        return commit_length([run])
    value = run.figures[figure]
    return None if value is None else float(value)


def _launches(s: Side, figure: str) -> dict[str, float]:
    found = launch_means(_values(s.runs, figure))
    if not found or min(found.values()) <= 0:
        raise RefusedError(
            f"{s.name} has no {figure}",
            why="it was not measured, or too few samples carry it",
            next="measure longer, or compare another figure",
        )
    return found


def _values(runs: Sequence[Run], figure: str) -> Iterator[tuple[str, float]]:
    for run in runs:
        value = figure_of(run, figure)
        if value is not None:
            yield str(run.launch), value


def _speeds(ledger: Ledger, s: Side) -> dict[str, float]:
    """Tokens a second of each prompt, over all its requests in the windows."""
    tokens: dict[str, float] = {}
    times: dict[str, float] = {}
    for run in s.runs:
        for x in ledger.samples(run):
            if x.phase != "window" or x.outcome != "ok" or None in (x.tokens, x.first_tokens):
                continue
            if x.first_token_ns is None or x.last_token_ns is None:
                continue
            # Divided by the tokens that came after the first chunk, which took no time here.
            after = (x.tokens or 0) - (x.first_tokens or 0)
            if after > 0 and x.last_token_ns > x.first_token_ns:
                tokens[x.prompt] = tokens.get(x.prompt, 0) + after
                times[x.prompt] = times.get(x.prompt, 0) + x.last_token_ns - x.first_token_ns
    return {p: 1e9 * tokens[p] / times[p] for p in tokens}


def _alike(s: Side, what: str) -> dict[str, set[str]]:
    """Each entry of the runs' protocols (or windows' rules) with all values it has."""
    out: dict[str, set[str]] = {}
    for run in s.runs:
        whole = run.protocol if what == "protocol" else {"rule": run.window.get("rule", "")}
        for key, value in _flat("", {k: v for k, v in whole.items() if k not in OWN}):
            out.setdefault(key, set()).add(value)
    return out


def _unlike(name: str, a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[str]:
    left, right = dict(_flat(name, a)), dict(_flat(name, b))
    for key in sorted(left.keys() | right.keys()):
        if left.get(key) != right.get(key):
            yield f"{key}: {left.get(key, 'nothing')} against {right.get(key, 'nothing')}"


def _flat(name: str, value: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        path = f"{name}.{key}" if name else key
        if isinstance(item, Mapping):
            yield from _flat(path, item)
        else:
            yield path, str(item)


def _drafts(s: Side) -> bool:
    return str(s.cell.vary.get("algorithm", "none")).lower() not in ("", "none")


def _random_prompts(s: Side) -> bool:
    found = dict(_flat("", s.cell.fix))
    return any(k.startswith("dataset") and v.startswith("random") for k, v in found.items())
