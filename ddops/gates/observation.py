"""One look at a service on its host, typed. Three-valued: what was not seen is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddops.command import ALONE, cmd
from ddops.config.files import parse_json
from ddops.errors import CommandFailed
from ddops.layout import HostLayout
from ddops.model import State
from ddops.transport import Transport

SCHEMA = "ddops.observation/1"
#: SGLang's `/health` generates a token and polls once a second; shorter limits can never pass.
HTTP_TIMEOUT_S = 6.0
#: Of a log's end, in bytes.
LOG_BYTES = 32_000


@dataclass(frozen=True, slots=True)
class Launch:
    """The guard's record of one start."""

    nonce: str
    weight_version: str
    release: str
    op_id: str
    pid: int
    guard_pid: int
    started: float


@dataclass(frozen=True, slots=True)
class Port:
    """The service's port: listened on at all, and by a process of ours?"""

    number: int
    listening: bool
    owned: bool
    owner: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What one HTTP call gave: status, or the error that prevented one; `values` allow-listed."""

    status: int | None = None
    error: str = ""
    seconds: float = 0.0
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unit:
    """What systemd says of the service's unit; `active` is its own word, or `unknown`."""

    name: str
    active: str
    main_pid: int | None = None
    restarts: int | None = None
    result: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Rank:
    """One node of a job, and the engine's rank on it."""

    node: str
    state: State
    why: str
    nonce: str | None
    owned: bool
    health: int | None


@dataclass(frozen=True, slots=True)
class Job:
    """What a scheduler says of the service's job; `state` is its own word.

    `proven` is the nonce of the start that last passed its gates. `ranks` is empty while the job
    does not run.
    """

    id: int
    state: str
    why: str
    restarts: int = 0
    proven: str | None = None
    ranks: tuple[Rank, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(r.node for r in self.ranks)

    @property
    def waits(self) -> bool:
        """It has no nodes yet, and may get some."""
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED")


@dataclass(frozen=True, slots=True)
class Observation:
    """`log_tail` is raw: it is redacted before it is shown or stored."""

    at: float
    current: str | None
    launch: Launch | None
    engine: State
    engine_why: str
    pid: int | None
    uptime_s: float | None
    rss_bytes: int | None
    port: Port
    log_size: int
    log_tail: str
    health: Answer | None = None
    model_info: Answer | None = None
    server_info: Answer | None = None
    unit: Unit | None = None
    job: Job | None = None

    @property
    def healthy(self) -> bool:
        """The engine says it is well, and systemd, where it is asked, that the start is over."""
        started = self.unit is None or self.unit.active == "active"
        ranks = self.job.ranks if self.job else ()
        well = all(r.health == 200 for r in ranks)
        return started and well and self.health is not None and self.health.status == 200

    @property
    def unproven(self) -> str:
        """Why this start counts for nothing yet, where it came without a deploy behind it."""
        if self.job is None or self.launch is None or self.job.proven == self.launch.nonce:
            return ""
        return f"job {self.job.id} was started again, and this start has not passed its gates"


def observe(
    transport: Transport,
    layout: HostLayout,
    python: str,
    service: str,
    port: int,
    *,
    http: bool = True,
    deadline_s: float = 40.0,
) -> Observation:
    """Look once. Raises what the transport raises: then nothing is known, not `down`."""
    where = layout.service(service)
    words = [python, *ALONE, f"{layout.hostside}/observe.py", where.dir, str(port)]
    if http:
        words += ["--http", str(HTTP_TIMEOUT_S)]
    done = transport.run(cmd(*words), deadline_s=deadline_s)
    if not done.ok:
        raise CommandFailed(
            f"{transport.host}: the service {service} cannot be observed",
            rc=done.rc,
            stderr=done.err,
            next=f"ddops provision {transport.host}",
        )
    return parse_observation(done.out)


def parse_observation(text: str) -> Observation:
    """Parse what `hostside/observe.py` printed; a wrong schema is an error, never a guess."""
    try:
        return observation_of(parse_json(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandFailed(
            "the host's observation is not readable",
            rc=0,
            why=f"{type(error).__name__}: {error}",
            next="ddops provision brings the host's scripts up to date",
        ) from error


def observation_of(raw: dict[str, Any]) -> Observation:
    """The same of what is parsed already. Raises ValueError, KeyError, TypeError and their kin."""
    if raw["schema"] != SCHEMA:
        raise ValueError(f"schema {raw['schema']!r}, want {SCHEMA!r}")
    engine, port, log = raw["engine"], raw["port"], raw["log"]
    return Observation(
        at=float(str(raw["at"])),
        current=_text(raw["current"]),
        launch=_launch(raw["launch"]),
        engine=State(engine["state"]),
        engine_why=str(engine.get("why", "")),
        pid=_whole(engine.get("pid")),
        uptime_s=_number(engine.get("uptime_s")),
        rss_bytes=_whole(engine.get("rss_bytes")),
        port=Port(
            int(str(port["port"])),
            port["listening"] is True,
            port["owned"] is True,
            _text(port.get("owner")),
        ),
        log_size=int(str(log["size"])),
        log_tail=str(log["tail"]),
        health=_answer(raw.get("health")),
        model_info=_answer(raw.get("model_info")),
        server_info=_answer(raw.get("server_info")),
        unit=_unit(raw.get("unit")),
        job=_job(raw.get("job")),
    )


def _job(raw: dict[str, Any] | None) -> Job | None:
    if raw is None:
        return None
    ranks = tuple(
        Rank(
            str(r["node"]), State(r["state"]), str(r["why"]), _text(r["nonce"]),
            r["owned"] is True, _whole(r["health"]),
        )
        for r in raw["ranks"]
    )  # fmt: skip
    return Job(
        int(raw["id"]), str(raw["state"]), str(raw["why"]), int(raw["restarts"]),
        _text(raw["proven"]), ranks,
    )  # fmt: skip


def _unit(raw: dict[str, object] | None) -> Unit | None:
    if raw is None:
        return None
    return Unit(
        str(raw["name"]), str(raw["active"]), _whole(raw.get("main_pid")),
        _whole(raw.get("restarts")), str(raw.get("result", "")), str(raw.get("why", "")),
    )  # fmt: skip


def _launch(raw: dict[str, object] | None) -> Launch | None:
    if raw is None:
        return None
    return Launch(
        nonce=str(raw["nonce"]),
        weight_version=str(raw["weight_version"]),
        release=str(raw["release"]),
        op_id=str(raw["op_id"]),
        pid=int(str(raw["pid"])),
        guard_pid=int(str(raw["guard_pid"])),
        started=float(str(raw["started"])),
    )


def _answer(raw: dict[str, object] | None) -> Answer | None:
    if raw is None:
        return None
    values = raw.get("values")
    return Answer(
        _whole(raw.get("status")),
        str(raw.get("error", "")),
        _number(raw.get("s")) or 0.0,
        values if isinstance(values, dict) else {},
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
