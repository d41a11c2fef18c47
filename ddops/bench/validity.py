"""What makes a run count, and what makes it none. Pure; every rule gives its reason in words.

`void`: it did not take place as planned. `invalid`: it did, and something was wrong with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddops.bench.answer import Load, Sample
from ddops.bench.figures import Figures
from ddops.bench.stats import percentile
from ddops.bench.window import Window
from ddops.ledger.bench_records import Status

#: Part of the prompt tokens of the window that may come from the prefix cache.
CACHED = 0.01
#: Tokens at the front of every prompt that all share: a begin token, a chat template.
SHARED = {"generate": 4, "completions": 4, "chat": 48}
#: A client that is busy for more than this part of the time may be what is measured.
CLIENT_CPU = 0.8
#: Beyond three missed looks: one at a host that is busy may take its own time limits, 7 s.
LOOK_S = 10.0
#: The clock may be slewed, not set.
CLOCK_STEP_NS = 1_000_000
#: A median whose bound is wider than this says the client was too slow to see it.
BOUND_SHARE = 0.05
#: No engine makes tokens faster than this for one request: the stream was held back on its way.
FASTEST_TPS = 20_000.0
BUFFERED_SHARE, BUFFERED_CHUNKS = 0.02, 4
REPLACED = 0.05
#: A speculative engine that commits no more than this drafts for nothing.
NO_GAIN = 1.02
SIMULATED = "SGLANG_SIMULATE_ACC"
#: What nvidia-smi's bit mask calls thermal and power-brake slowdowns, and a software power cap.
THROTTLED = 0x08 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run was meant to be. `weight_version` None: no start of ours is known."""

    route: str
    concurrency: int | None
    weight_version: str | None
    output_tokens: int
    ignore_eos: bool
    speculative: bool
    max_send_delay_ms: float
    max_noise: float
    max_short: float = 0.01
    max_bound_ms: float = 1.0
    cold_cache: bool = True
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a run does not count; `status` says how."""

    status: Status
    rule: str
    why: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.why}"


def _void(rule: str, why: str) -> Finding:
    return Finding(Status.VOID, rule, why)


def _invalid(rule: str, why: str) -> Finding:
    return Finding(Status.INVALID, rule, why)


def judge_run(load: Load, window: Window, numbers: Figures | None, asked: Asked) -> list[Finding]:
    """All that is wrong with a run; empty when it counts as far as measuring goes."""
    if load.refused:
        return [_void("identity", load.refused)]
    out = [*_server(load, asked), *_client(load, asked), *_requests(load.samples, asked)]
    if not window.steady:
        out.append(_void("window", window.why))
    if numbers is not None and window.ns > 0:
        out += _numbers(load, window, numbers, asked)
    return out


def worst(findings: Sequence[Finding]) -> tuple[Status, str]:
    """The status findings come to, and all reasons in one line."""
    if not findings:
        return Status.VALID, ""
    order = (Status.VOID, Status.INVALID, Status.UNBOUND)
    status = min((f.status for f in findings), key=order.index)
    return status, "; ".join(str(f) for f in findings)


def warnings_of(numbers: Figures | None, asked: Asked) -> list[str]:
    """What does not void a run and should be known."""
    out = []
    commit = numbers.commit if numbers else None
    if asked.speculative and commit is not None and commit.length <= NO_GAIN:
        out.append(f"speculation helps nothing: commit length {commit.length:.2f}")
    if asked.speculative and numbers is not None and commit is None:
        out.append("commit length not measured: the server gave no count of verify steps")
    return out


def _server(load: Load, asked: Asked) -> Iterator[Finding]:
    before, after = load.before, load.after
    if after.weight_version != before.weight_version:
        yield _void(
            "identity",
            f"{before.weight_version!r} answered before, {after.weight_version!r} after the run",
        )
    if asked.weight_version is not None and asked.route == "generate":
        wrong = [s for s in load.samples if s.ok and s.versions != (asked.weight_version,)]
        if wrong:
            yield _invalid(
                "identity",
                f"{len(wrong)} answers came from {', '.join(wrong[0].versions) or 'nobody named'},"
                f" not from {asked.weight_version}",
            )
    ids = [(p.get("pid"), p.get("start_ticks")) for p in (before.process, after.process)]
    if ids[0] != ids[1] or before.process.get("same") is False:
        yield _void("restart", "the engine's process is not the one that was started")
    if load.idle is False:
        yield _void("idle", "the engine was at work on other requests before the run")
    limit = before.running_limit
    if asked.concurrency is not None and limit is not None and asked.concurrency > limit:
        yield _void("level", f"the server runs {limit} requests at once, not {asked.concurrency}")
    simulated = [k for k in before.environment if k.startswith(SIMULATED)]
    if simulated:
        yield _invalid("simulated acceptance", f"{', '.join(simulated)} is set in the engine")
    retracted = sum(s.retractions or 0 for s in load.samples)
    if retracted:
        yield _void("retraction", f"the engine took {retracted} requests back for want of memory")
    hot = _throttled(load.conditions)
    if hot:
        yield _void("throttle", f"clocks were held down at {hot} of {len(load.conditions)} looks")


def _throttled(conditions: Sequence[Mapping[str, object]]) -> int:
    found = 0
    for row in conditions:
        gpus = row.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else ():
            mask = str(gpu.get("clocks_event_reasons.active") or "0")
            try:
                found += bool(int(mask, 16) & THROTTLED)
            except ValueError:
                continue  # "[N/A]": this driver does not tell
    return found


def _client(load: Load, asked: Asked) -> Iterator[Finding]:
    client = load.client
    step = client.get("clock_step_ns")
    if isinstance(step, int) and abs(step) > CLOCK_STEP_NS:
        yield _void("clock", f"the clock was set by {step / 1e6:.1f} ms during the run")
    if client.get("stopped"):
        yield _void("stopped", str(client["stopped"]))
    late = [s.sent - s.free_at for s in load.samples if s.sent is not None]
    if late:
        p99 = percentile(late, 0.99) / 1e6
        if p99 > asked.max_send_delay_ms:
            yield _void(
                "client delay",
                f"requests left {p99:.1f} ms late (p99), at most {asked.max_send_delay_ms:g} ms",
            )
    wall, cpu = client.get("wall_s"), client.get("cpu_s")
    if isinstance(wall, float) and isinstance(cpu, float) and wall > 0 and cpu > CLIENT_CPU * wall:
        able = client.get("capacity_reads_s")
        words = f", which at {able:.0f} reads/s is full" if isinstance(able, float) else ""
        yield _void("client ceiling", f"the client used {cpu / wall:.0%} of its core{words}")
    every, unlooked = client.get("look_every_s"), client.get("unlooked_s")
    if every is not None and unlooked is not None and unlooked > LOOK_S + 3 * every:
        yield _void(
            "looks",
            f"nobody looked at GPUs and engine for {unlooked:.0f} s of the run"
            f" (a look every {every:g} s was asked for)",
        )
    noise = max(load.noise_before, load.noise_after)
    if noise > asked.max_noise:
        yield _void("noise", f"others took {noise:.0%} of the core, at most {asked.max_noise:.0%}")


def _requests(samples: Sequence[Sample], asked: Asked) -> Iterator[Finding]:
    failed = Counter(s.outcome for s in samples if not s.ok)
    if failed:
        words = ", ".join(f"{n} {kind}" for kind, n in sorted(failed.items()))
        first = next(s for s in samples if not s.ok)
        yield _invalid("requests", f"{words} of {len(samples)}; first: {first.why[:160]}")
    if not any(s.ok for s in samples):
        yield _invalid("requests", "no answer at all")
    if asked.ignore_eos:
        short = [s for s in samples if s.ok and s.tokens != asked.output_tokens]
        if short:
            yield _invalid(
                "output length",
                f"{len(short)} answers do not have the {asked.output_tokens} tokens asked for;"
                f" the first has {short[0].tokens}",
            )
    fields = [(s, why) for s in samples if s.ok for why in field_faults(s)]
    if fields:
        yield _invalid("counts", f"{len(fields)} contradictions in answers; {fields[0][1]}")
    held = [s for s in samples if s.ok and held_back(s)]
    if held:
        yield _invalid("buffered", f"{len(held)} streams came in one piece or impossibly fast")
    replaced = sum(s.replacements for s in samples)
    tokens = sum(s.tokens or 0 for s in samples if s.ok)
    if tokens and replaced > REPLACED * tokens:
        yield _invalid("degenerate", f"{replaced} replacement characters in {tokens} tokens")


def field_faults(sample: Sample) -> Iterator[str]:
    """Identities that one answer's own counts must keep (sglang#33518)."""
    if sample.output_ids and len(sample.output_ids) != sample.tokens:
        yield f"{len(sample.output_ids)} ids, {sample.tokens} tokens"
    counts = [c.tokens for c in sample.chunks if c.tokens is not None]
    if any(c < 0 for c in counts) or (sample.counted and sum(counts) != sample.tokens):
        yield f"the stream counted {sum(counts)} tokens, the end {sample.tokens}"
    verify, correct, tokens = sample.verify_ct, sample.correct, sample.tokens
    if verify and correct is not None and tokens is not None and tokens > 1 + verify + correct:
        yield f"{tokens} tokens from 1 + {verify} steps + {correct} accepted drafts"
    if verify and sample.histogram:
        drafts = sum(k * n for k, n in enumerate(sample.histogram))
        if sum(sample.histogram) != verify or (correct is not None and drafts != correct):
            yield f"histogram {list(sample.histogram)} against {verify} steps, {correct} drafts"
    claimed = sample.accept_length
    if (
        verify
        and claimed is not None
        and tokens is not None
        and abs(claimed - tokens / verify) > 1e-6 * max(1.0, claimed)
    ):
        yield f"accept length {claimed}, {tokens} tokens / {verify} steps"


def held_back(sample: Sample) -> bool:
    """Whether what came after the first chunk came all at once: a buffer on the way."""
    first, last = sample.first, sample.last
    if first is None or last is None or sample.sent is None or not sample.counted:
        return False
    later = sum(c.tokens or 0 for c in sample.chunks[1:])
    took, whole = last.hi - first.lo, last.hi - sample.sent
    if later and later / max(took, 1) * 1e9 > FASTEST_TPS:
        return True
    return len(sample.chunks) > BUFFERED_CHUNKS and took < BUFFERED_SHARE * whole


def _numbers(load: Load, window: Window, numbers: Figures, asked: Asked) -> Iterator[Finding]:
    if (
        asked.concurrency is not None
        and numbers.in_flight < (1 - asked.max_short) * asked.concurrency
    ):
        yield _void(
            "delivered concurrency", f"{numbers.in_flight:.2f} of {asked.concurrency} in flight"
        )
    ran = numbers.at_once
    if asked.concurrency is not None and ran is not None and ran < 0.9 * asked.concurrency:
        said = running(load.conditions, window)
        words = "" if said is None else f"; it says itself that it ran at most {said:g}"
        yield _void(
            "effective concurrency",
            f"C_eff={ran}: at most {ran} of {asked.concurrency} requests ran at once{words}",
        )
    peak, mean = numbers.peak_tps, numbers.output_tps
    if peak is not None and mean is not None and peak < mean * 0.999:
        yield _invalid("peak", f"peak {peak:.1f} tok/s below the mean {mean:.1f}")
    inside = [s for s in load.samples if s.ok and window.whole(s)]
    prompts = sum(s.prompt_tokens or 0 for s in inside)
    shared = SHARED[asked.route]
    cached = sum(max(0, (s.cached_tokens or 0) - shared) for s in inside)
    if all(s.cached_tokens is None for s in inside):
        prompts, cached = _counted(load, shared)  # the answers do not tell: the counters do
    if asked.cold_cache and prompts and cached > CACHED * prompts:
        yield _invalid("prefix cache", f"{cached} of {prompts} prompt tokens were cached")
    bounds = numbers.more.get("ttft_bounds_p50_ms")
    if isinstance(bounds, list):
        width = bounds[1] - bounds[0]
        if width > asked.max_bound_ms and width > BOUND_SHARE * bounds[1]:
            yield _void("client bound", f"the median TTFT is known to {width:.1f} ms only")
    commit = numbers.commit
    most = load.before.info.get("speculative_num_draft_tokens")
    if commit is not None and isinstance(most, int) and not 1 <= commit.length <= most:
        yield _invalid("commit length", f"{commit.length:.2f} is outside 1 to {most}")
    if asked.rate is not None and load.samples:
        yield from _rate(load.samples, asked.rate)


def _counted(load: Load, shared: int) -> tuple[int, int]:
    """Prompt tokens and cached tokens of the whole run, by the server's counters."""
    before, after = load.before.counters, load.after.counters
    if "cached_tokens" not in after or "prompt_tokens" not in after:
        return 0, 0
    prompts = after["prompt_tokens"] - before.get("prompt_tokens", 0.0)
    cached = after["cached_tokens"] - before.get("cached_tokens", 0.0)
    return round(prompts), round(max(0.0, cached - shared * len(load.samples)))


def _rate(samples: Sequence[Sample], rate: float) -> Iterator[Finding]:
    sent = [s.sent for s in samples if s.sent is not None]
    due = [s.scheduled for s in samples]
    if len(sent) > 1 and max(due) > min(due):
        off = (max(sent) - min(sent)) / (max(due) - min(due)) - 1
        if abs(off) > 0.005:
            yield _void("rate", f"sent {off:+.2%} off the {rate:g} requests/s asked for")


def running(conditions: Sequence[Mapping[str, object]], window: Window) -> float | None:
    """The most requests the server said it runs, at looks inside the window.

    A witness only: SGLang renews this gauge every 40 decode steps, so it can be old.
    """
    seen = [
        float(r)
        for row in conditions
        if isinstance(at := row.get("at"), int) and window.holds(at)
        and isinstance(r := row.get("running"), int | float)
    ]  # fmt: skip
    return max(seen, default=None)
