"""From a measured run to the ledger's rows. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from ddops import __version__
from ddops.bench.answer import Load, Sample
from ddops.bench.figures import Figures, uncertainty_ns
from ddops.bench.plan import Point
from ddops.bench.prompts import Prompts
from ddops.bench.validity import running
from ddops.bench.window import Window
from ddops.engines.sglang import draft_tokens
from ddops.inventory.model import Host, Profile, Service
from ddops.inventory.suites import Suite
from ddops.ledger.bench_records import Cell, NewCondition, NewSample, RawData

#: Launch options that decide whether two configurations may be compared at all.
_LIKE = {
    "graph": ("disable-cuda-graph", True),
    "overlap": ("disable-overlap-schedule", True),
    "prefix_cache": ("disable-radix-cache", True),
}


def cell_of(
    service: Service, host: Host, profile: Profile, release: str, suite: Suite, prompts: Prompts,
    point: Point,
) -> Cell:  # fmt: skip
    """The point of the experiment. Nothing in it changes from one server start to the next."""
    spec = profile.spec
    speculative = spec.algorithm != "none"
    launch = {k: list(v) if isinstance(v, tuple) else v for k, v in profile.launch.items()}
    alike = {name: not bool(launch.pop(key, False)) for name, (key, _) in _LIKE.items()}
    vary: dict[str, object] = {
        "release": release,
        "engine": profile.engine,
        "algorithm": spec.algorithm,
        "budget": spec.budget,
        "topk": spec.topk,
        "block": spec.block,
        "draft_tokens": draft_tokens(profile) if speculative else None,
        "draft": _named(service.draft, service.draft_revision) if speculative else "",
        "launch": launch,
        "env": {k: v for k, v in profile.env.items() if ":" not in v},
    }
    fix: dict[str, object] = {
        "model": _named(service.model, service.revision),
        # Another machine is unlike until somebody has shown the contrary.
        "host": host.name,
        "host_class": host.host_class or "unknown",
        "engine_env": host.engine_env,
        "simulated": host.simulated,
        "prompts": prompts.sha256,
        "route": suite.route,
        "output_tokens": suite.output_tokens,
        "ignore_eos": suite.ignore_eos,
        "temperature": suite.temperature,
        **_load(suite, point),
        "connections": suite.connections,
        "cache": "flushed, every prompt salted",
        "seed": suite.seed,
        "client": "ddops.load/1",
        **alike,
    }
    return Cell(
        suite=suite.kind, vary=vary, fix=fix, service=service.name,
        label=f"{profile.name} {point.words}", concurrency=point.level,
    )  # fmt: skip


def _load(suite: Suite, point: Point) -> dict[str, object]:
    """The load plan, as far as it decides what is compared."""
    if point.level is not None:
        return {
            "loop": "closed", "concurrency": point.level, "warm_waves": suite.warm_waves,
            "requests": suite.requests(point.level),
        }  # fmt: skip
    return {
        "loop": "open", "rate": point.rate, "seconds": suite.rate_s, "arrivals": suite.arrivals,
    }  # fmt: skip


def _named(name: str | None, revision: str | None) -> str:
    return f"{name or ''}@{revision}" if revision else name or ""


def sample_rows(load: Load, window: Window, *, proven: str | None) -> Iterator[NewSample]:
    """One row a request. `proven` is the start every native answer must name."""
    for s in load.samples:
        first, last, answer = s.first, s.last, s.first_answer
        yield NewSample(
            n=s.n,
            prompt=s.prompt,
            phase=window.phase(s),
            outcome=s.outcome,
            reason=s.why[:500],
            scheduled_ns=s.scheduled,
            sent_ns=s.sent,
            first_byte_ns=s.first_byte,
            first_token_ns=first.hi if first else None,
            first_answer_ns=answer.hi if answer else None,
            last_token_ns=last.hi if last else None,
            end_ns=s.end,
            uncertainty_ns=uncertainty_ns(s),
            prompt_tokens=s.prompt_tokens,
            cached_tokens=s.cached_tokens,
            tokens=s.tokens,
            first_tokens=first.tokens if first else None,
            chunks=len(s.chunks),
            verify_ct=s.verify_ct,
            correct_drafts=s.correct,
            finish=s.finish,
            identity_ok=(s.versions == (proven,)) if proven and s.versions else None,
            detail={"connection": s.connection, "slot": s.slot},
        )


def raw_data(load: Load) -> Iterator[RawData]:
    """All arrivals, and the bytes of what failed."""
    rows = [
        [s.n, [c.lo for c in s.chunks], [c.hi for c in s.chunks], [c.tokens for c in s.chunks],
         [c.verify for c in s.chunks], [c.kind for c in s.chunks], list(s.histogram)]
        for s in load.samples
    ]  # fmt: skip
    if rows:
        yield RawData(kind="chunks", data=json.dumps(rows).encode(), text=False)
    failed = {s.n: s.raw.decode("utf-8", "replace") for s in load.samples if s.raw}
    if failed:
        yield RawData(kind="failed", data=json.dumps(failed).encode(), text=True)


def condition_rows(load: Load) -> Iterator[NewCondition]:
    """The host at each look, each GPU at each look, and the two noise probes."""
    n = 0
    yield NewCondition(n=n, at_ns=0, device="host before", noise=load.noise_before)
    for row in load.conditions:
        cpu = row.get("cpu") or {}
        at = int(row["at"])
        n += 1
        busy = cpu.get("busy")
        yield NewCondition(
            n=n, at_ns=at, device="host", util_pct=None if busy is None else 100.0 * busy,
            throttle="",
        )  # fmt: skip
        for gpu in row.get("gpus") or ():
            if "error" in gpu:
                continue  # no driver behind this host; the run's environment says so
            n += 1
            yield _gpu(n, at, gpu)
    yield NewCondition(n=n + 1, at_ns=load.end, device="host after", noise=load.noise_after)


def _gpu(n: int, at: int, gpu: Mapping[str, object]) -> NewCondition:
    return NewCondition(
        n=n,
        at_ns=at,
        device=str(gpu.get("uuid") or "gpu"),
        sm_mhz=_whole(gpu.get("clocks.sm")),
        mem_mhz=_whole(gpu.get("clocks.mem")),
        power_w=_number(gpu.get("power.draw")),
        limit_w=_number(gpu.get("power.limit")),
        temp_c=_number(gpu.get("temperature.gpu")),
        util_pct=_number(gpu.get("utilization.gpu")),
        memory_mb=_whole(gpu.get("memory.used")),
        throttle=str(gpu.get("clocks_event_reasons.active") or ""),
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) else None


def protocol_of(load: Load, suite: Suite, prompts: Prompts) -> dict[str, object]:
    """How it was measured."""
    return {
        "ddops": __version__,
        "client": {k: v for k, v in load.client.items() if k != "why" or v},
        "suite": suite.name,
        "prompts": {"name": prompts.name, "sha256": prompts.sha256, "count": len(prompts.items)},
        "stamps": "kernel" if load.client.get("kernel_stamps") else "user clock",
        "idle_before": load.idle,
        "flushed": load.flushed,
        "where": "on the host, over loopback",
    }


def environment_of(load: Load, window: Window) -> dict[str, object]:
    """What was around, and what the server says it was started with."""
    return {
        "machine": dict(load.machine),
        "resolved": dict(load.before.info),
        "running_limit": load.before.running_limit,
        "running_most": running(load.conditions, window),
        "engine_env": dict(load.before.environment),
        "process": dict(load.before.process),
        "counters_before": dict(load.before.counters),
        "counters_after": dict(load.after.counters),
        "gpu_error": next(
            (g["error"] for c in load.conditions for g in c.get("gpus") or () if "error" in g), ""
        ),
    }


def window_of(window: Window) -> dict[str, object]:
    return {
        "start_ns": window.start, "end_ns": window.end, "rule": window.rule,
        "steady": window.steady, "why": window.why, "cut_stretches": window.cut_tiles,
    }  # fmt: skip


def metrics_of(numbers: Figures | None, warnings: list[str]) -> dict[str, object]:
    """Every number that has no column of its own."""
    if numbers is None:
        return {"warnings": warnings}
    commit = numbers.commit
    return {
        **numbers.spread,
        **numbers.more,
        "tps_rule": numbers.tps_rule,
        "peak_tps": numbers.peak_tps,
        "in_flight": numbers.in_flight,
        "decoding": numbers.decoding,
        "at_once": numbers.at_once,
        "commit": None
        if commit is None
        else {
            "length": commit.length,
            "source": commit.source,
            "accepted": commit.accepted,
            "histogram": {str(k): v for k, v in sorted(commit.histogram.items())},
        },
        "warnings": warnings,
    }


def span(load: Load) -> tuple[datetime, datetime]:
    """When the run began and ended, UTC."""
    began = load.t0_unix_ns / 1e9
    if not began:
        now = datetime.now(UTC)
        return now, now
    return datetime.fromtimestamp(began, UTC), datetime.fromtimestamp(began + load.end / 1e9, UTC)


def failed(samples: tuple[Sample, ...]) -> int:
    return sum(not s.ok for s in samples)
