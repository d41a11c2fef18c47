"""`/metrics` in Prometheus text, with upstream's names and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sglang._sim_engine import Engine
from sglang._sim_stats import STREAMING, Histogram

KIND = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(engine: Engine) -> bytes:
    """All families, one scrape."""
    with engine.stats.lock:
        return ("\n".join(_lines(engine)) + "\n").encode("utf-8")


def _lines(engine: Engine) -> Iterator[str]:
    stats, args = engine.stats, engine.args
    base = {"model_name": str(args["served_model_name"]), "engine_type": "unified"}
    rank = {**base, "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
    used = stats.running / max(1, int(args["max_running_requests"]))
    prompts = sum(stats.prompt_tokens.values())
    gauges = {
        "num_running_reqs": stats.running,
        "num_queue_reqs": stats.queued,
        "num_grammar_queue_reqs": 0,
        "gen_throughput": stats.throughput(),
        "cache_hit_rate": stats.cached_tokens / prompts if prompts else 0.0,
        "token_usage": used,
        "num_used_tokens": 0,
        "utilization": used,
        "max_total_num_tokens": int(args["max_total_tokens"]),
        "ddops_simulated": 1,
    }
    if args.speculative:
        window = int(args["speculative_num_draft_tokens"])
        proposed = stats.verify_calls * (window - 1)
        gauges["spec_accept_length"] = stats.accept_length()
        gauges["spec_accept_rate"] = stats.correct_drafts / proposed if proposed else 0.0
        gauges["spec_num_steps"] = int(args["speculative_num_steps"])
        gauges["spec_num_draft_tokens"] = window
    for name, value in gauges.items():
        yield from _family(name, "gauge")
        yield _sample(name, rank, value)
    for name, counts in (
        ("prompt_tokens_total", stats.prompt_tokens),
        ("generation_tokens_total", stats.generation_tokens),
        ("num_requests_total", stats.requests),
    ):
        yield from _family(name, "counter")
        for streaming in STREAMING:
            if stats.requests[streaming]:
                yield _sample(name, {**base, "is_streaming": streaming}, counts[streaming])
    yield from _family("cached_tokens_total", "counter")
    yield _sample("cached_tokens_total", {**base, "cache_source": "device"}, stats.cached_tokens)
    yield from _family("num_aborted_requests_total", "counter")
    yield _sample("num_aborted_requests_total", base, stats.aborted)
    if args.speculative:
        yield from _family("spec_verify_calls_total", "counter")
        yield _sample("spec_verify_calls_total", base, stats.verify_calls)
    for name, parts in (
        ("time_to_first_token_seconds", stats.ttft),
        ("e2e_request_latency_seconds", stats.e2e),
    ):
        yield from _family(name, "histogram")
        for streaming in STREAMING:
            if stats.requests[streaming]:
                yield from _histogram(name, {**base, "is_streaming": streaming}, parts[streaming])
    yield from _family("inter_token_latency_seconds", "histogram")
    yield from _histogram("inter_token_latency_seconds", base, stats.itl)


def _family(name: str, kind: str) -> Iterator[str]:
    yield f"# HELP sglang:{name} {name.replace('_', ' ')} (sim)"
    yield f"# TYPE sglang:{name} {kind}"


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    inner = ",".join(f"{k}={json.dumps(v)}" for k, v in labels.items())
    return f"sglang:{name}{{{inner}}} {float(value)}"


def _histogram(name: str, labels: dict[str, str], data: Histogram) -> Iterator[str]:
    count = 0
    for place, bound in enumerate([*data.bounds, float("inf")]):
        count += data.counts[place]
        edge = "+Inf" if bound == float("inf") else str(bound)
        yield _sample(f"{name}_bucket", {**labels, "le": edge}, count)
    yield _sample(f"{name}_count", labels, count)
    yield _sample(f"{name}_sum", labels, data.total)
