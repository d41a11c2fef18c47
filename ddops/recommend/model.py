"""What a recommendation is made of. Frozen, no I/O.

`Population`: one service on one kind of machine, measured in one way of knowing (`Basis`).
Nothing is ever ranked across populations. Inside one, numbers may be ranked only within one
`group`: all that must be alike for a comparison, but the concurrency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ddops.ledger.bench_records import BUILD


class Basis(StrEnum):
    """How numbers are known. They are never ranked together."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    REPORTED = "reported"


class Certainty(StrEnum):
    """How sure the choice at one concurrency is."""

    PROVEN = "proven"  #: better than every other one, on launches
    TIE = "tie"  #: not proven better than a simpler one, so the simpler one it is
    LEADS = "leads"  #: ahead, with too few launches to prove it
    ALONE = "alone"  #: nothing to compare it with


#: From simple to elaborate: at a tie the earlier one stays.
SIMPLICITY = ("none", "NGRAM", "EAGLE3", "DFLASH", "DDTREE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One configuration: what an experiment varies, concurrency aside."""

    key: str
    name: str
    vary: Mapping[str, object] = field(default_factory=dict, compare=False, hash=False)

    @property
    def algorithm(self) -> str:
        return str(self.vary.get("algorithm") or "none")

    @property
    def speculative(self) -> bool:
        return self.algorithm != "none"

    def number(self, name: str) -> int | None:
        """`budget`, `topk` or `block`; None where it has none, or nobody told."""
        value = self.vary.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Simpler ones sort first."""
        known = self.algorithm in SIMPLICITY
        place = SIMPLICITY.index(self.algorithm) if known else len(SIMPLICITY)
        return place, self.number("budget") or 0, self.number("topk") or 0, self.name

    def like(self, other: Config) -> bool:
        """Whether both may be the same one: builds aside, nothing is known of both that differs.

        What was not told of one of them may be equal.
        """
        if self.algorithm != other.algorithm:
            return False
        keys = (self.vary.keys() & other.vary.keys()) - set(BUILD) - {"algorithm"}
        pairs = ((self.vary[k], other.vary[k]) for k in keys)
        return all(a in (None, "") or b in (None, "") or a == b for a, b in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One valid run, as far as a conclusion needs it. None is "not measured"."""

    id: str
    launch: str
    release: str
    tree: str
    cell: str
    group: str
    config: Config
    level: int
    started: str
    output_tps: float | None
    c_eff: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    commit_tokens: int | None = None
    commit_steps: int | None = None
    commit_told: tuple[float, float] | None = None
    histogram: Mapping[int, int] = field(default_factory=dict, hash=False)
    requests: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Runs that are of one kind. `alike` says what each group has in common, flat."""

    service: str
    host: str
    host_class: str
    device_class: str
    device: str
    basis: Basis
    gpus: Mapping[str, int]  #: GPUs a configuration uses, by its key
    runs: Sequence[Measured]
    alike: Mapping[str, Mapping[str, str]]

    @property
    def title(self) -> str:
        label = "" if self.basis is Basis.MEASURED else f", {self.basis.value}"
        klass = "" if self.device_class == "gpu" else f" [{self.device_class}]"
        return f"{self.service} on {self.device or self.host}{klass} ({self.host_class}{label})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over launches. `low` and `high` are None where one launch says nothing of spread."""

    value: float
    low: float | None
    high: float | None
    launches: int
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration at one concurrency in one group."""

    config: Config
    level: int
    group: str
    estimate: Estimate
    by_launch: Mapping[str, float]
    commit_length: float | None
    commit_told: tuple[float, float] | None
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """What the chosen one was compared with, and what came of it."""

    candidate: Candidate
    word: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The configuration for one concurrency."""

    level: int
    group: str
    chosen: Candidate
    certainty: Certainty
    why: str
    rivals: Sequence[Rival]

    @property
    def run_ids(self) -> tuple[str, ...]:
        """All runs behind it: its own, and those of what it was chosen over."""
        ids = [*self.chosen.run_ids, *(i for r in self.rivals for i in r.candidate.run_ids)]
        return tuple(dict.fromkeys(ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Where one configuration overtakes another, between two measured concurrencies.

    `at` is None where the two were not both measured at both ends. `low` to `high` is the
    interval; it never leaves the measured ends, and is all between them where launches say
    nothing of spread.
    """

    group: str
    below: Config
    above: Config
    ends: tuple[int, int]
    at: float | None
    low: float
    high: float
    how: str
    notes: Sequence[str]
    run_ids: tuple[str, ...]
    #: Throughput of both sides at both ends; empty where `at` is None.
    lines: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlike:
    """Two numbers that look alike and may not be put side by side."""

    level: int
    a: Candidate
    b: Candidate
    columns: Sequence[str]

    @property
    def run_ids(self) -> tuple[str, ...]:
        return (*self.a.run_ids, *self.b.run_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """One measurement that would make the answer surer."""

    why: str
    command: str
    levels: Sequence[int]
    suite: str
    lines: Sequence[str]
