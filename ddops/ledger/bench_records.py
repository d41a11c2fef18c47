"""What the bench hands to the ledger, and what it gets back. Units are in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from ddops.model import digest


class Status(StrEnum):
    """What a run counts for. Only VALID ones are ever shown as numbers.

    INVALID: measured, but something was wrong. UNBOUND: no proof of what was measured.
    VOID: the measurement did not take place as planned, so there is nothing to judge.
    """

    VALID = "valid"
    INVALID = "invalid"
    UNBOUND = "unbound"
    VOID = "void"


class Identity(StrEnum):
    """How the server was known. PROVEN: by every sample. BRACKETED: before and after the run."""

    PROVEN = "proven"
    BRACKETED = "bracketed"
    NONE = "none"


class Device(StrEnum):
    """What computed. Runs of different classes are never compared or ranked together."""

    GPU = "gpu"
    CPU = "cpu"
    SIM = "sim"
    UNKNOWN = "unknown"


#: Parts of `vary` that change with every build, so do not tell one family of cells from another.
BUILD = ("release", "tree", "series", "plugin", "lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of an experiment, addressed by its content.

    `vary` holds what the experiment compares (algorithm, budget, topk, draft, release, resolved
    server arguments ...), `fix` all that must be alike for a comparison to mean something (model,
    dataset hash, sampling, load plan, concurrency, cache protocol, graph mode, overlap, host's
    hardware ...). Neither may hold a nonce, a time or a repeat's number: they would make
    every run a cell of its own.
    """

    suite: str
    vary: Mapping[str, object]
    fix: Mapping[str, object]
    service: str = ""
    label: str = ""
    concurrency: int | None = None

    @property
    def key(self) -> str:
        return digest({"suite": self.suite, "vary": dict(self.vary), "fix": dict(self.fix)})

    @property
    def comparable(self) -> str:
        """Cells with the same value may be compared."""
        return digest(dict(self.fix))

    @property
    def family(self) -> str:
        """The same for one configuration over many builds: the line of a history."""
        kept = {k: v for k, v in self.vary.items() if k not in BUILD}
        return digest({"suite": self.suite, "vary": kept, "fix": dict(self.fix)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """One repeat of one cell on one server start.

    `gates` are ids of gate rows (`add_gate`) of the same launch. A valid run needs a launch, an
    identity and at least one gate, all of them passed. Everything else needs a `reason`.
    Figures cover the steady window; a figure that was not measured is None. Commit length is
    commit_tokens / commit_steps. `protocol` is how it was measured (client version, route,
    connections, cache protocol): alike for runs that are compared, but for what stands below its
    key `own` (seeds, salts, argv). `window` holds the cuts, and under `rule` the rule that chose
    them; `environment` what was around (driver, clocks, versions); `metrics` every other number,
    with its unit in its name.
    """

    cell: str
    status: Status
    identity: Identity
    device_class: Device
    started: datetime
    ended: datetime
    repeat: int = 1
    launch: str | None = None
    reason: str = ""
    gates: tuple[str, ...] = ()
    tree: str | None = None
    host: str | None = None
    device: str = ""
    concurrency: int | None = None
    c_eff: float | None = None
    requests: int = 0
    failed: int = 0
    output_tokens: int | None = None
    window_ms: float | None = None
    output_tps: float | None = None
    request_tps: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    commit_tokens: int | None = None
    commit_steps: int | None = None
    tool: str = "ddops"
    by: str = ""
    protocol: Mapping[str, object] = field(default_factory=dict)
    window: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    metrics: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSample:
    """One request. Times are ns since the run's t0; None is "not measured", never 0.

    `prompt` names the prompt (its id or hash: what a bootstrap clusters by). `outcome` is `ok`, or
    what kind of failure it was, with its `reason`. `tokens` is the server's own count.
    `verdict` is what a grader said of the answer, `detail` anything more.
    """

    n: int
    prompt: str
    phase: str = "window"
    outcome: str = "ok"
    reason: str = ""
    scheduled_ns: int | None = None
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    uncertainty_ns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    first_tokens: int | None = None
    chunks: int | None = None
    verify_ct: int | None = None
    correct_drafts: int | None = None
    finish: str = ""
    identity_ok: bool | None = None
    verdict: str | None = None
    detail: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCondition:
    """One look at one device during a run. `noise` is the share of time a spin probe lost."""

    n: int
    at_ns: int
    device: str
    sm_mhz: int | None = None
    mem_mhz: int | None = None
    power_w: float | None = None
    limit_w: float | None = None
    temp_c: float | None = None
    util_pct: float | None = None
    memory_mb: int | None = None
    throttle: str = ""
    noise: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawData:
    """What was received, whole: event arrays, or the bytes of a stream. Stored compressed.

    `text` says that people's or a server's words are in it: it is redacted then. Packed
    numbers must not be, since a masked number would be a wrong one.
    """

    kind: str
    data: bytes
    text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it is stored, with what the ledger says of it now.

    `valid` is the view's answer: the stored status may say more than still holds.
    """

    id: str
    cell: str
    launch: str | None
    release: str | None
    tree: str | None
    repeat: int
    status: Status
    reason: str
    valid: bool
    identity: Identity
    device_class: Device
    device: str
    started: datetime
    ended: datetime
    figures: Mapping[str, float | int | None]
    tool: str
    by: str
    protocol: Mapping[str, object]
    window: Mapping[str, object]
    environment: Mapping[str, object]
    metrics: Mapping[str, object]
    ledger: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCell:
    """A cell as it is stored."""

    key: str
    suite: str
    family: str
    comparable: str
    service: str
    label: str
    concurrency: int | None
    vary: Mapping[str, object]
    fix: Mapping[str, object]
    ledger: str = ""
    seq: int = 0


#: Columns of `run` that are figures, in their order.
FIGURES = (
    *("concurrency", "c_eff", "requests", "failed", "output_tokens", "window_ms", "output_tps"),
    *("request_tps", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms"),
    *("commit_tokens", "commit_steps"),
)
