"""From what a host printed to typed values. Pure; a wrong answer is an error, never a guess."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ddops.board.model import DriftRow, DriftSeen, Gpu, HostLook, HostSpec, Load, ServiceSeen
from ddops.errors import DdopsError
from ddops.gates import observation_of
from ddops.lock import Held, Owner

SCHEMA = "ddops.look/1"
HTTP_S = 6.0
LOG_BYTES = 3000


def look_spec(host: HostSpec, engine_dir: str) -> str:
    """The one argument of `hostside/board.py`."""
    ports = {s.name: s.port for s in host.services}
    return json.dumps(
        {"engine_dir": engine_dir, "services": ports, "http_s": HTTP_S, "log_bytes": LOG_BYTES}
    )


def parse_look(raw: Mapping[str, Any]) -> HostLook:
    """One look. Raises DdopsError when it is not of the known schema."""
    try:
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}, want {SCHEMA!r}")
        rows = raw["gpus"]["rows"]
        return HostLook(
            host_at=float(raw["at"]),
            provisioned=raw["provisioned"] is True,
            load_1m=number(raw.get("load_1m")),
            held=_held(raw["lock"]),
            services={str(n): _service(s) for n, s in raw["services"].items()},
            gpus=None if rows is None else tuple(_gpu(r) for r in rows),
            gpus_why=str(raw["gpus"]["why"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DdopsError(
            "the host's look is not readable",
            why=f"{type(error).__name__}: {error}",
            next="run `ddops status` with the version that is to be used",
        ) from error


def parse_drift(raw: Mapping[str, Any], at: float) -> DriftSeen:
    """Rows of `ddops drift`, or the error that prevented them."""
    names = ("service", "what", "recorded", "observed", "verdict")
    try:
        rows = tuple(DriftRow(*(str(r[n]) for n in names)) for r in raw.get("rows", ()))
    except (KeyError, TypeError) as error:
        return DriftSeen(at, (), f"not readable: {type(error).__name__}: {error}")
    return DriftSeen(at, rows, str(raw.get("error", "")))


def _service(raw: Mapping[str, Any]) -> ServiceSeen:
    committed = raw.get("committed")
    return ServiceSeen(
        observation_of(dict(raw)), committed if isinstance(committed, str) else None, _load(raw)
    )


def _load(raw: Mapping[str, Any]) -> Load:
    """Sums over data-parallel ranks; of tensor-parallel ones, which tell the same, the first."""
    metrics = raw.get("metrics") or {}
    seen: dict[str, dict[str, float]] = {}
    for name, labels, value in metrics.get("samples", ()):
        if labels.get("mode", "decode") == "decode":
            seen.setdefault(name, {}).setdefault(str(labels.get("dp_rank", "")), float(value))

    def total(name: str) -> float | None:
        return sum(seen[name].values()) if name in seen else None

    def mean(values: list[float]) -> float | None:
        return sum(values) / len(values) if values else None

    states = [s for s in raw.get("states") or () if isinstance(s, Mapping)]
    last = [n for s in states if (n := number(s.get("last_gen_throughput"))) is not None]
    accept = [n for s in states if (n := number(s.get("avg_spec_accept_length"))) is not None]
    lengths = [v for v in seen.get("spec_accept_length", {}).values() if v > 0]
    status = metrics.get("status")
    return Load(
        host_at=number(metrics.get("at")),
        status=status if isinstance(status, int) else None,
        running=total("num_running_reqs"),
        queued=total("num_queue_reqs"),
        gen_tps=total("gen_throughput"),
        accept=mean(lengths),
        decoded=total("realtime_tokens_total"),
        last_tps=sum(last) if last else None,
        lifetime_accept=mean(accept),
    )


def _held(raw: Mapping[str, Any] | None) -> Held | None:
    if raw is None:
        return None
    who, age = raw.get("owner"), number(raw.get("age_s"))
    owner = None
    if isinstance(who, Mapping):
        words = {k: str(who.get(k) or "?") for k in ("who", "where", "purpose", "at")}
        pid = who.get("pid")
        owner = Owner(token="", pid=pid if isinstance(pid, int) else 0, **words)
    return Held(owner, age if age is not None else float("inf"))


def _gpu(raw: Mapping[str, Any]) -> Gpu:
    mask = str(raw.get("clocks_event_reasons.active", "")).strip()
    return Gpu(
        index=str(raw.get("index", "?")),
        name=str(raw.get("name", "")),
        util_pct=number(raw.get("utilization.gpu")),
        used_mb=number(raw.get("memory.used")),
        total_mb=number(raw.get("memory.total")),
        power_w=number(raw.get("power.draw")),
        limit_w=number(raw.get("power.limit")),
        temp_c=number(raw.get("temperature.gpu")),
        throttle=int(mask, 16) if mask.startswith("0x") else None,
    )


def number(value: object) -> float | None:
    """A finite number, or the text of one; everything else, "[N/A]" too, is not seen."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if found - found == 0 else None
