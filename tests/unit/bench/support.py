"""Answers as bytes with a time for each read: what the loop would have collected, made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddops.bench.answer import Load, Look, Sample, parse_sample
from ddops.hostside.load.loop import Exchange
from ddops.hostside.load.parse import sample

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def exchange(reads: Sequence[tuple[float, bytes]], *, n: int = 0, error: str = "") -> Exchange:
    """One answer. `reads` are (ms since it was sent, body bytes of one read); the end is added."""
    made = Exchange(n, 0, 0)
    made.started = made.sent = 1
    for ms, body in reads:
        made.raw += body
        made.reads.append(len(made.raw))
        made.stamps.append(round(ms * MS) + 1)
        made.lows.append(0)
    made.framing.done(made.raw)
    made.error = error
    made.ended = made.stamps[-1] if reads else 2
    return made


def stream(
    events: Sequence[tuple[float, bytes]], *, ending: bytes = DONE
) -> list[tuple[float, bytes]]:
    """Reads of a chunked stream, one for each event; the head comes with the first one."""
    out = []
    for i, (ms, data) in enumerate(events):
        out.append((ms, (HEAD if i == 0 else b"") + chunk(data)))
    last = events[-1][0] if events else 0.0
    closing = (chunk(ending) if ending else b"") + END
    if not events:
        closing = HEAD + closing
    out.append((last + 0.01, closing))
    return out


def native(count: int, **meta: Any) -> bytes:
    """One `/generate` event with `count` tokens so far."""
    info = {"completion_tokens": count, "prompt_tokens": 10, "cached_tokens": 0,
            "weight_version": "v", "finish_reason": None, "num_retractions": 0, **meta}  # fmt: skip
    return event({"text": "x" * count, "output_ids": list(range(count)), "meta_info": info})


def usage(count: int, content: str | None = "x", *, reasoning: str | None = None) -> bytes:
    """One chat chunk with a running count."""
    delta = {"role": None, "content": content, "reasoning_content": reasoning}
    return event({
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        "usage": {"completion_tokens": count, "prompt_tokens": 10},
    })  # fmt: skip


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})


def closing(count: int) -> bytes:
    return event({"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": 10}})


def read(
    reads: Sequence[tuple[float, bytes]], route: str = "generate", *, n: int = 0, error: str = "",
    keep: Mapping[str, object] | None = None,
) -> Sample:  # fmt: skip
    """Through the host's parser and the controller's, as a real answer goes."""
    wish = dict(keep or {"ids": True, "text": True})
    raw = sample(exchange(reads, n=n, error=error), {"id": f"p{n}"}, route, 1, wish)
    return parse_sample(json.loads(json.dumps(raw)))


def even(
    tokens: int, gap_ms: float, *, each: int = 1, first_ms: float = 50.0, n: int = 0, **meta: Any
) -> Sample:
    """A native answer of `tokens`, `each` a chunk, evenly spaced."""
    counts = [*range(each, tokens, each), tokens]
    events = [
        (first_ms + i * gap_ms, native(c, **(meta | _finish(c, tokens))))
        for i, c in enumerate(counts)
    ]
    return read(stream(events), n=n)


def _finish(count: int, tokens: int) -> dict[str, object]:
    return {"finish_reason": {"type": "length", "length": tokens}} if count == tokens else {}


def later(sample: Sample, ms: float, *, n: int, slot: int = 0) -> Sample:
    """The same answer, `ms` later, as the n-th request on a slot."""
    by = round(ms * MS)
    return replace(
        sample, n=n, slot=slot, prompt=f"p{n}",
        scheduled=sample.scheduled + by, free_at=sample.free_at + by,
        sent=None if sample.sent is None else sample.sent + by,
        first_byte=None if sample.first_byte is None else sample.first_byte + by,
        end=None if sample.end is None else sample.end + by,
        chunks=tuple(c._replace(lo=c.lo + by, hi=c.hi + by) for c in sample.chunks),
    )  # fmt: skip


def closed(sample: Sample, slots: int, per_slot: int) -> list[Sample]:
    """A closed loop of equal answers, each sent when the one before has ended."""
    assert sample.end is not None
    took = sample.end / MS
    return [
        later(sample, took * round_, n=round_ * slots + slot, slot=slot)
        for round_ in range(per_slot)
        for slot in range(slots)
    ]


def load(samples: Sequence[Sample], **changes: Any) -> Load:
    """A run of them by a client that did well, on a server called `v`."""
    look = Look(weight_version="v", running_limit=1000, process={"pid": 1, "start_ticks": 2})
    client = {
        "clock_step_ns": 0, "stopped": "", "kernel_stamps": True, "cpu_s": 0.1, "wall_s": 10.0,
        "reads": 1000, "capacity_reads_s": 10000.0,
    }  # fmt: skip
    end = max((s.end or 0 for s in samples), default=0)
    base = Load(samples=tuple(samples), before=look, after=look, idle=True, flushed=True,
                client=client, t0_unix_ns=1, end=end)  # fmt: skip
    return replace(base, **changes)
