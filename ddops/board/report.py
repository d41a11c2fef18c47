"""`ddops status`: the board's model as rows of text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ddops.board.figures import Figure, commit_length, speed
from ddops.board.judge import device_word, drift_word, health_word, reach_word, throttle_words
from ddops.board.model import Books, Fresh, Gpu, HostState, ServiceSeen, ServiceSpec
from ddops.gates import Job, Observation
from ddops.model import State, short

HEADER = ("HOST", "SERVICE", "RELEASE", "ENGINE", "HEALTH", "UP", "URL", "NOTE")


def span(seconds: float) -> str:
    """A duration in one unit: 3s, 12m, 5h, 9d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def row(state: HostState, service: ServiceSpec, now: float) -> tuple[str, ...]:
    """One service of one host, as it was last seen; what is too old to say is `?`."""
    spec = state.spec
    name = spec.name + ("" if spec.origin == "project" else f" [{spec.origin}]")
    url = f"{service.listen}:{service.port}"
    if state.look is None or state.fresh(now) is Fresh.LOST:
        words = "no answer from the host" if state.error else "not asked yet"
        return name, service.name, "?", "unknown", "?", "?", url, words
    look, seen = state.look, state.look.services[service.name]
    if not look.provisioned:
        return name, service.name, "-", "-", "-", "-", url, "not provisioned"
    o = seen.observation
    if o.engine is not State.UP or o.launch is None:
        return name, service.name, "-", o.engine.value, "-", "-", url, _note(state, seen, now)
    return (
        name, service.name, short(o.launch.release), o.engine.value,
        health_word(o, seen.committed, follower=service.follower),
        span(o.uptime_s or 0.0), where(o, url, service), _note(state, seen, now),
    )  # fmt: skip


def where(seen: Observation, url: str, service: ServiceSpec) -> str:
    """Where it answers: on the first node of its job, if it is one."""
    nodes = seen.job.nodes if seen.job else ()
    return f"{nodes[0]}:{service.port}" if nodes else url


def _note(state: HostState, seen: ServiceSeen, now: float) -> str:
    notes = []
    if seen.observation.job is not None:
        notes.append(seen.observation.job.why)
    if seen.observation.unproven:
        notes.append("started again and not gated since: ddops deploy proves it")
    if state.fresh(now) is not Fresh.NOW:
        notes.append(f"seen {span(state.age(now) or 0.0)} ago, no answer since")
    o = seen.observation
    if o.engine is not State.UP and o.engine_why and o.engine_why not in notes:
        notes.append(o.engine_why)
    if device := device_word(o):
        notes.append(device)
    if state.look is not None and state.look.held is not None:
        notes.append(f"locked by {state.look.held.describe()}")
    return ", ".join(notes)


def document(state: HostState, service: ServiceSpec, books: Books, now: float) -> dict[str, Any]:
    """The same with all that was seen, for programs."""
    base: dict[str, Any] = {
        "host": state.spec.name,
        "origin": state.spec.origin,
        "service": service.name,
        "url": f"http://{service.listen}:{service.port}",
        "reach": reach_word(state, now),
        "age_s": _rounded(state.age(now)),
    }
    if state.look is None:
        return {**base, "state": "unknown", "why": state.error or "not asked yet"}
    look, seen = state.look, state.look.services[service.name]
    more = {
        "simulated": state.spec.simulated,
        "gpus": None if look.gpus is None else [_gpu(g) for g in look.gpus],
        "gpus_why": look.gpus_why,
        "locked": look.held.describe() if look.held else None,
        **({"why": state.error} if state.error else {}),
    }
    if not look.provisioned:
        return {**base, "state": "not provisioned", **more}
    o = seen.observation
    launch = o.launch if o.engine is State.UP else None
    return {
        **base,
        "state": o.engine.value,
        "release": launch.release if launch else None,
        "nonce": launch.nonce if launch else None,
        "committed": seen.committed,
        "health": health_word(o, seen.committed, follower=service.follower) if launch else None,
        "pid": o.pid if launch else None,
        "uptime_s": o.uptime_s,
        "rss_bytes": o.rss_bytes,
        "unit": o.unit.active if o.unit else None,
        "job": _job(o.job) if o.job else None,
        "unproven": o.unproven or None,
        "server": dict(o.server_info.values) if o.server_info else {},
        "running": seen.load.running,
        "queued": seen.load.queued,
        "output_tps": _figure(speed(state, service.name, books.runs), now),
        "commit_length": _figure(commit_length(state, service.name, books.runs), now),
        "drift": drift_word(state) or None,
        **more,
        **_recorded(state, books, now),
        "observed_at": o.at,
    }


def _job(job: Job) -> dict[str, Any]:
    return asdict(job) | {"ranks": [asdict(r) | {"state": r.state.value} for r in job.ranks]}


def _figure(figure: Figure | None, now: float) -> Mapping[str, Any] | None:
    if figure is None:
        return None
    age = None if figure.at is None else round(now - figure.at, 1)
    return {"value": figure.value, "source": figure.source, "age_s": age}


def _recorded(state: HostState, books: Books, now: float) -> dict[str, Any]:
    kept = books.hosts.get(state.spec.name)

    def age(at: float | None) -> float | None:
        return None if at is None else round(now - at, 1)

    return {
        "snapshot_age_s": age(kept.snapshot_at) if kept else None,
        "drill_age_s": age(kept.drill_at) if kept else None,
        "drill": (kept.drill_verdict or None) if kept else None,
        "checks": dict(kept.counts) if kept else {},
        "checks_age_s": age(kept.facts_at) if kept else None,
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index, "name": gpu.name, "util_pct": gpu.util_pct, "used_mb": gpu.used_mb,
        "total_mb": gpu.total_mb, "power_w": gpu.power_w, "limit_w": gpu.limit_w,
        "temp_c": gpu.temp_c, "throttle": throttle_words(gpu),
    }  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
