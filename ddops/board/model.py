"""What the board knows of a fleet: frozen values, each with the moment it was seen. Pure.

Times are seconds since the epoch on the controller's clock, but where `host_at` is said: a host's
clock may be wrong, so it is used for differences on that host alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ddops.gates import Observation
from ddops.lock import Held

#: Seconds between two looks at a host that answers.
EVERY_S = 5.0
#: A value older than this is dimmed: two looks were missed.
STALE_S = 2.5 * EVERY_S
#: A value older than this is not shown any more: `?`.
LOST_S = 60.0
#: Looking for drift hashes an engine's files, so it is done rarely; its age is shown.
DRIFT_EVERY_S = 300.0


class Fresh(Enum):
    """How much a value still says."""

    NOW = "now"
    STALE = "stale"
    LOST = "lost"


def freshness(age_s: float | None, every_s: float = EVERY_S) -> Fresh:
    """Of a value of that age, looked at every `every_s`; one that was never seen is lost."""
    if age_s is None or age_s > LOST_S / EVERY_S * every_s:
        return Fresh.LOST
    return Fresh.NOW if age_s <= STALE_S / EVERY_S * every_s else Fresh.STALE


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A service as the inventory means it for this host."""

    name: str
    port: int
    listen: str = "127.0.0.1"
    #: Of several hosts that make one engine, one that answers for no requests.
    follower: bool = False


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host as the inventory names it."""

    name: str
    origin: str = "project"
    groups: tuple[str, ...] = ()
    kind: str = ""
    simulated: bool = False
    services: tuple[ServiceSpec, ...] = ()
    #: Seconds between two looks; another only in a recording that was made more slowly.
    every_s: float = EVERY_S

    def follows(self, service: str) -> bool:
        return any(s.follower for s in self.services if s.name == service)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi told; None where it did not. `throttle` is its bit mask."""

    index: str
    name: str = ""
    util_pct: float | None = None
    used_mb: float | None = None
    total_mb: float | None = None
    power_w: float | None = None
    limit_w: float | None = None
    temp_c: float | None = None
    throttle: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine said of its work at `host_at`. `decoded` counts tokens since its start."""

    host_at: float | None = None
    status: int | None = None
    running: float | None = None
    queued: float | None = None
    gen_tps: float | None = None
    accept: float | None = None
    decoded: float | None = None
    last_tps: float | None = None
    lifetime_accept: float | None = None


@dataclass(frozen=True, slots=True)
class ServiceSeen:
    """One look at one service."""

    observation: Observation
    committed: str | None
    load: Load


@dataclass(frozen=True, slots=True)
class HostLook:
    """One look at one host. `gpus` is None where they could not be seen, `gpus_why` says why."""

    host_at: float
    provisioned: bool
    load_1m: float | None
    held: Held | None
    services: Mapping[str, ServiceSeen]
    gpus: tuple[Gpu, ...] | None
    gpus_why: str = ""


@dataclass(frozen=True, slots=True)
class DriftRow:
    """One thing that a release fixes, as `ddops drift` says it."""

    service: str
    what: str
    recorded: str
    observed: str
    verdict: str


@dataclass(frozen=True, slots=True)
class DriftSeen:
    """One look for drift; `error` where it could not be looked for."""

    at: float
    rows: tuple[DriftRow, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class HostState:
    """All that is known of a host. `look` is the last one that came, `before` the one before it.

    `error` is why the last try brought nothing, empty when it brought a look; `since` is when the
    tries began to fail.
    """

    spec: HostSpec
    look: HostLook | None = None
    look_at: float | None = None
    before: HostLook | None = None
    error: str = ""
    error_at: float | None = None
    since: float | None = None
    failures: int = 0
    drift: DriftSeen | None = None

    def age(self, now: float) -> float | None:
        return None if self.look_at is None else max(0.0, now - self.look_at)

    def fresh(self, now: float) -> Fresh:
        """How much the values of the last look still say. A failed try makes them stale."""
        seen = freshness(self.age(now), self.spec.every_s)
        return Fresh.STALE if seen is Fresh.NOW and self.error else seen


@dataclass(frozen=True, slots=True)
class GateSeen:
    """A gate of one server start, from the ledger."""

    name: str
    verdict: str
    message: str
    evidence: Mapping[str, object]
    at: float


@dataclass(frozen=True, slots=True)
class RunSeen:
    """A benchmark run, from the ledger. `counts` is the ledger's word on it now."""

    id: str
    at: float
    host: str
    release: str
    status: str
    counts: bool
    device_class: str
    label: str
    family: str
    suite: str
    concurrency: int | None = None
    output_tps: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    commit: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CheckSeen:
    """A finding that is not a pass."""

    check: str
    verdict: str
    title: str
    seen: str
    refuses: bool


@dataclass(frozen=True, slots=True)
class HostBooks:
    """What the ledger holds of one host. Ages are of what was recorded, not of the reading."""

    snapshot_at: float | None = None
    snapshot_copies: str = ""
    drill_at: float | None = None
    drill_verdict: str = ""
    facts_at: float | None = None
    simulated: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[CheckSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskSeen:
    """A task of a runbook, or one that a person added."""

    id: int
    run: str
    content: str
    priority: str
    status: str
    owner: str
    evidence: str
    at: str


@dataclass(frozen=True, slots=True)
class Books:
    """One reading of the ledger. `error` says why there is none."""

    at: float
    error: str = ""
    hosts: Mapping[str, HostBooks] = field(default_factory=dict)
    gates: Mapping[str, Sequence[GateSeen]] = field(default_factory=dict)
    runs: tuple[RunSeen, ...] = ()
    tasks: tuple[TaskSeen, ...] | None = None
    deployments: tuple[tuple[float, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """A change that the board saw, or one that the ledger recorded."""

    at: float
    host: str
    text: str
    bad: bool = False
