"""The plan that the measuring client runs: data in, JSON out. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddops.bench.prompts import Prompts
from ddops.errors import UsageError
from ddops.inventory.suites import Suite, too_many

SCHEMA = "ddops.load-plan/1"
#: Raw bytes the client may hold; past it the run ends, and is void.
MAX_RAW = 2 << 30
#: Bytes of a plan. While it is sent, the controller holds it three times over, the client as well.
MAX_PLAN = 512 << 20
#: What a request has in a plan besides its text: its id, its salt, names of keys.
_AROUND = 128
#: Seconds that an engine must have been idle, and that are waited for it.
QUIET_S, IDLE_BUDGET_S = 0.5, 30.0
NOISE_S = 0.3


@dataclass(frozen=True, slots=True)
class Point:
    """One load: `level` requests under way, or `rate` requests a second."""

    level: int | None = None
    rate: float | None = None

    @property
    def words(self) -> str:
        return f"C={self.level}" if self.rate is None else f"{self.rate:g}/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The server a plan is for. `service_dir` is where its launch record and API key lie."""

    host: str
    port: int
    model: str
    service_dir: str | None = None
    weight_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: its id, and what its body has besides what all have."""

    id: str
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A plan. Closed loop with `concurrency`, open loop with `at_ns`."""

    where: Where
    route: str
    common: Mapping[str, object]
    requests: Sequence[Request]
    concurrency: int | None = None
    at_ns: Sequence[int] | None = None
    max_connections: int = 1024
    connections: str = "warm"
    timeout_s: float = 300.0
    deadline_s: float = 1800.0
    keep: Mapping[str, object] = field(default_factory=dict)
    flush: bool = True
    noise_s: float = NOISE_S
    sample_s: float = 1.0
    idle_budget_s: float = IDLE_BUDGET_S

    def dump(self) -> bytes:
        mode: dict[str, object] = {"kind": "closed", "concurrency": self.concurrency}
        if self.at_ns is not None:
            mode = {
                "kind": "open",
                "at_ns": list(self.at_ns),
                "max_connections": self.max_connections,
            }
        return json.dumps(
            {
                "schema": SCHEMA,
                "host": self.where.host,
                "port": self.where.port,
                "service_dir": self.where.service_dir,
                "weight_version": self.where.weight_version,
                "route": self.route,
                "mode": mode,
                "connections": self.connections,
                "common": self.common,
                "requests": [{"id": r.id, "body": r.body} for r in self.requests],
                "timeout_s": self.timeout_s,
                "deadline_s": self.deadline_s,
                "max_raw_bytes": MAX_RAW,
                "keep": dict(self.keep),
                "around": {
                    "flush": self.flush,
                    "quiet_s": QUIET_S,
                    "idle_budget_s": self.idle_budget_s,
                    "noise_s": self.noise_s,
                    "sample_s": self.sample_s,
                },
            }
        ).encode("ascii")

    @property
    def patience_s(self) -> float:
        """How long the whole call may take: load, idle proof, looks around it, parsing."""
        return self.deadline_s + self.idle_budget_s + 2 * self.noise_s + self.timeout_s + 120


def count_of(suite: Suite, point: Point) -> int:
    """Requests of one run."""
    if point.rate is not None:
        return suite.arrivals_of(point.rate)
    return suite.requests(point.level or 1)


def refuse_oversize(suite: Suite, prompts: Prompts, points: Sequence[Point]) -> None:
    """Raises UsageError for a load that no client can hold: before anything is asked of a host."""
    each = [len(json.dumps(p.text)) + _AROUND for p in prompts.items]
    for point in points:
        count = count_of(suite, point)
        words = too_many(count)
        # Prompts are drawn in rounds over all of them, the last one cut short.
        size = min(-(-count // len(each)) * sum(each), count * max(each))
        if not words and size > MAX_PLAN:
            words = (
                f"{count} requests with prompts of {max(each) >> 10} KiB or less make"
                f" {size >> 20} MiB in one run, at most {MAX_PLAN >> 20}: the measuring client"
                " holds them"
            )
        if words:
            raise UsageError(
                f"{suite.name}: {point.words} is too much of a load",
                why=words,
                next=f"lower waves, least_requests, rates or rate_s in {suite.name}, or the level",
            )


def common_body(suite: Suite, model: str) -> dict[str, object]:
    """What every request of a suite asks for, by route."""
    if suite.route == "generate":
        return {
            "stream": True,
            "sampling_params": {
                "temperature": suite.temperature,
                "max_new_tokens": suite.output_tokens,
                "ignore_eos": suite.ignore_eos,
            },
        }
    return {
        "model": model,
        "stream": True,
        # Counts in every chunk, and one at the end: nothing is counted by us.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": suite.temperature,
        "max_tokens": suite.output_tokens,
        "ignore_eos": suite.ignore_eos,
    }


def text_body(route: str, text: str) -> dict[str, object]:
    """What one prompt adds."""
    if route == "generate":
        return {"text": text}
    if route == "completions":
        return {"prompt": text}
    return {"messages": [{"role": "user", "content": text}]}
