"""Numbers of other tools, taken into the ledger as what they are: unbound.

Neither file proves which server answered, nor that it computed right, so no imported run is ever
valid. They can be looked at and exported beside ours. Pure: text in, records out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from ddops.bench.stats import carries, percentile
from ddops.errors import UsageError
from ddops.ledger import Cell, Device, Identity, NewRun, NewSample, Status

#: Entries of SGLang's server_info that may be kept: the whole can hold API keys.
_SERVER = (
    *("version", "model_path", "tp_size", "dp_size", "pp_size", "ep_size", "attention_backend"),
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "speculative_draft_model_path", "disable_cuda_graph"),
    *("disable_overlap_schedule", "disable_radix_cache", "max_running_requests", "quantization"),
)
_SETUP = (
    *("backend", "dataset_name", "request_rate", "max_concurrency", "sharegpt_output_len"),
    *("random_input_len", "random_output_len", "random_range_ratio"),
)
#: Their figures, kept under their own names: definitions differ from ours.
_THEIRS = ("_ms", "_throughput", "accept_length", "concurrency", "max_output_tokens_per_s")


class Source(StrEnum):
    """Whose file it is."""

    SGLANG = "sglang"
    AIPERF = "aiperf"


@dataclass(frozen=True, slots=True)
class Imported:
    """One run of a file. `sha` is that of its text: the same text is imported once."""

    cell: Cell
    run: NewRun
    samples: Sequence[NewSample]
    sha: str


def parse(source: Source, text: str, name: str, at: datetime) -> list[Imported]:
    """The runs of a file called `name`, written at `at`. Raises UsageError with the line."""
    lines = [(n, x) for n, x in enumerate(text.splitlines(), 1) if x.strip()]
    if not lines:
        raise UsageError(f"{name} is empty", why="it has no line", next="give a results file")
    records = [(n, _object(x, name, n), x) for n, x in lines]
    if source is Source.AIPERF:
        return [_aiperf([(n, r) for n, r, _ in records], text, name)]
    return [_sglang(r, x, name, n, at) for n, r, x in records]


def _object(line: str, name: str, n: int) -> Mapping[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise UsageError(
            f"{name}:{n} is not JSON",
            why=str(e),
            next="give the JSON lines file itself; a truncated one cannot be imported",
        ) from e
    if not isinstance(value, dict):
        raise UsageError(f"{name}:{n} is no JSON object", next="give a results file")
    return value


# SGLang's bench_serving: one line a run.


def _sglang(r: Mapping[str, object], line: str, name: str, n: int, at: datetime) -> Imported:
    duration = _number(r, "duration", name, n)
    tokens, done = _number(r, "total_output_tokens", name, n), _number(r, "completed", name, n)
    errors = [e for e in _list(r, "errors") if e]
    server = r.get("server_info")
    known = {k: server[k] for k in _SERVER if k in server} if isinstance(server, Mapping) else {}
    setup = {k: _plain(r[k]) for k in _SETUP if k in r}
    cell = Cell(
        suite="imported",
        vary={"tool": "sglang.bench_serving", "server": _plain(known)},
        fix={"setup": setup},
        label=f"{r.get('backend')} {r.get('dataset_name')} C={r.get('max_concurrency')}",
        concurrency=_whole(r.get("max_concurrency")),
    )
    sha = hashlib.sha256(line.encode()).hexdigest()
    run = NewRun(
        cell=cell.key,
        status=Status.UNBOUND,
        reason="imported: nothing proves which server answered, and no gate was passed",
        identity=Identity.NONE,
        device_class=Device.UNKNOWN,
        started=at - timedelta(seconds=duration),
        ended=at,
        concurrency=cell.concurrency,
        c_eff=_float(r.get("concurrency")),
        requests=int(done) + len(errors),
        failed=len(errors),
        output_tokens=int(tokens),
        window_ms=duration * 1000,
        output_tps=_float(r.get("output_throughput")),
        request_tps=_float(r.get("request_throughput")),
        ttft_p50_ms=_float(r.get("median_ttft_ms")),
        ttft_p99_ms=_float(r.get("p99_ttft_ms")) if carries(int(done), 0.99) else None,
        tpot_p50_ms=_float(r.get("median_tpot_ms")),
        tpot_p99_ms=_float(r.get("p99_tpot_ms")) if carries(int(done), 0.99) else None,
        tool="sglang.bench_serving",
        protocol={"route": str(r.get("backend")), "own": {"file": name, "line": n, "sha256": sha}},
        window={"rule": "whole run, with ramp and drain"},
        environment={"times": "of the file's last change; the tool writes none"},
        metrics={k: _plain(v) for k, v in r.items() if k.endswith(_THEIRS)}
        | {"tokens_from": _token_source(str(r.get("backend")))},
    )
    return Imported(cell, run, list(_sglang_samples(r)), sha)


def _token_source(backend: str) -> str:
    if backend in ("sglang", "sglang-native"):
        return "the server's own count"
    return "usage if the server sent it, else the requested length: may be too high"


def _sglang_samples(r: Mapping[str, object]) -> Iterator[NewSample]:
    """Only where the tool ran with --output-details. It has no absolute times."""
    lengths, ttfts = _list(r, "output_lens"), _list(r, "ttfts")
    inputs, itls, errors = _list(r, "input_lens"), _list(r, "itls"), _list(r, "errors")
    for n, length in enumerate(lengths):
        error = str(errors[n])[:500] if n < len(errors) and errors[n] else ""
        ttft = _float(ttfts[n]) if n < len(ttfts) else None
        gaps = itls[n] if n < len(itls) else []
        detail: dict[str, object] = {}
        if ttft:  # the tool writes 0.0 for "not measured"
            detail["ttft_ms"] = ttft * 1000
        if isinstance(gaps, list) and gaps:
            detail["gaps_ms_sum"] = 1000 * math.fsum(g for g in map(_float, gaps) if g)
        yield NewSample(
            n=n,
            prompt=f"#{n}",
            outcome="failed" if error else "ok",
            reason=error,
            prompt_tokens=_whole(inputs[n]) if n < len(inputs) else None,
            tokens=_whole(length),
            detail=detail,
        )


# AIPerf's profile_export.jsonl: one line a request, the file is one run.


def _aiperf(records: Sequence[tuple[int, Mapping[str, object]]], text: str, name: str) -> Imported:
    metas = [(n, _meta(r, name, n), r) for n, r in records]
    measured = [(n, m, r) for n, m, r in metas if m.get("benchmark_phase") != "warmup"]
    if not measured:
        raise UsageError(f"{name} holds warm-up requests only", next="give a whole profile run")
    starts = [_number(m, "request_start_ns", name, n) for n, m, _ in metas]
    ends = [_number(m, "request_end_ns", name, n) for n, m, _ in metas]
    t0 = min(starts)
    samples = [_aiperf_sample(i, m, r, int(t0)) for i, (_, m, r) in enumerate(metas)]
    window = [s for s in samples if s.phase == "window"]
    good = [s for s in window if s.outcome == "ok"]
    first = min(s.sent_ns or 0 for s in window)
    span_s = (max(s.end_ns or 0 for s in window) - first) / 1e9
    tokens = sum(s.tokens or 0 for s in good)
    ttfts = [
        (s.first_token_ns - s.sent_ns) / 1e6
        for s in good
        if s.first_token_ns and s.sent_ns is not None
    ]
    sha = hashlib.sha256(text.encode()).hexdigest()
    cell = Cell(
        suite="imported",
        vary={"tool": "aiperf"},
        fix={"file": name, "requests": len(window)},
        label=f"aiperf {name}",
    )
    run = NewRun(
        cell=cell.key,
        status=Status.UNBOUND,
        reason="imported: nothing proves which server answered, and no gate was passed",
        identity=Identity.NONE,
        device_class=Device.UNKNOWN,
        started=datetime.fromtimestamp(t0 / 1e9, UTC),
        ended=datetime.fromtimestamp(max(ends) / 1e9, UTC),
        requests=len(window),
        failed=len(window) - len(good),
        output_tokens=tokens,
        window_ms=span_s * 1000,
        output_tps=tokens / span_s if span_s > 0 else None,
        request_tps=len(good) / span_s if span_s > 0 else None,
        ttft_p50_ms=percentile(ttfts, 0.5) if carries(len(ttfts), 0.5) else None,
        ttft_p99_ms=percentile(ttfts, 0.99) if carries(len(ttfts), 0.99) else None,
        tool="aiperf",
        protocol={"own": {"file": name, "sha256": sha}},
        window={"rule": "all requests of the phase profiling"},
        metrics={"tokens_from": "the tool's tokenizer, unless told to take the server's count"},
    )
    return Imported(cell, run, samples, sha)


def _meta(r: Mapping[str, object], name: str, n: int) -> Mapping[str, object]:
    meta = r.get("metadata")
    if isinstance(meta, Mapping) and isinstance(r.get("metrics", {}), Mapping):
        return meta
    raise UsageError(
        f"{name}:{n} is no record of AIPerf",
        why="it lacks `metadata` or `metrics`",
        next="give profile_export.jsonl (aiperf profile --export-level records)",
    )


def _aiperf_sample(
    i: int, meta: Mapping[str, object], r: Mapping[str, object], t0: int
) -> NewSample:
    error = r.get("error")
    cancelled = bool(meta.get("was_cancelled"))
    start, end = _whole(meta.get("request_start_ns")), _whole(meta.get("request_end_ns"))
    issued = _whole(meta.get("credit_issued_ns"))
    sent = start - t0 if start is not None else None
    ttft = _milliseconds(r, "time_to_first_token")
    return NewSample(
        n=i,
        prompt=str(meta.get("conversation_id") or f"#{meta.get('session_num', i)}"),
        phase="warmup" if meta.get("benchmark_phase") == "warmup" else "window",
        outcome="failed" if error or cancelled else "ok",
        reason=json.dumps(error)[:500] if error else "cancelled" if cancelled else "",
        scheduled_ns=issued - t0 if issued is not None else None,
        sent_ns=sent,
        first_token_ns=sent + round(ttft * 1e6) if sent is not None and ttft else None,
        end_ns=end - t0 if end is not None else None,
        prompt_tokens=_metric(r, "input_sequence_length"),
        tokens=_metric(r, "output_sequence_length"),
    )


def _value(r: Mapping[str, object], tag: str) -> tuple[object, str]:
    metrics = r.get("metrics")
    found = metrics.get(tag) if isinstance(metrics, Mapping) else None
    if isinstance(found, Mapping):
        return found.get("value"), str(found.get("unit", ""))
    return None, ""


def _metric(r: Mapping[str, object], tag: str) -> int | None:
    return _whole(_value(r, tag)[0])


def _milliseconds(r: Mapping[str, object], tag: str) -> float | None:
    value, unit = _value(r, tag)
    scale = {"ms": 1.0, "ns": 1e-6, "us": 1e-3, "s": 1e3, "sec": 1e3}.get(unit)
    number = _float(value)
    return number * scale if number is not None and scale is not None else None


# JSON to numbers: what is not there or not finite is "not measured".


def _number(r: Mapping[str, object], key: str, name: str, n: int) -> float:
    found = _float(r.get(key))
    if found is None or found < 0:
        raise UsageError(
            f"{name}:{n} has no usable {key!r}",
            why=f"it is {str(r.get(key))[:60]!r}",
            next="give the results file of the tool itself",
        )
    return found


def _float(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good and isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**63 else None
    found = _float(value)
    return int(found) if found is not None and abs(found) < 2**63 else None


def _list(r: Mapping[str, object], key: str) -> list[object]:
    found = r.get(key)
    return found if isinstance(found, list) else []


def _plain(value: object) -> object:
    """JSON that is the same once stored: infinities and NaN become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value
