"""What the measuring client answers, typed. Times are nanoseconds since the run's t0."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ddops.errors import CommandFailed
from ddops.hostside.load.parse import ANSWER, NOTHING

SCHEMA = "ddops.load/1"


class Chunk(NamedTuple):
    """One event that brought tokens: it arrived in `[lo, hi]`.

    `tokens` is the rise of the server's count, None where the server gave no running count.
    `verify` is the running count of verify steps, where the stream carries one.
    """

    lo: int
    hi: int
    tokens: int | None
    verify: int | None
    kind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request. None is "not measured"."""

    n: int
    prompt: str
    slot: int
    connection: str = "warm"
    scheduled: int = 0
    free_at: int = 0
    #: The first byte was handed to the kernel between these two.
    sent: int | None = None
    sent_by: int | None = None
    first_byte: int | None = None
    end: int | None = None
    outcome: str = "ok"
    why: str = ""
    finish: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    verify_ct: int | None = None
    correct: int | None = None
    proposed: int | None = None
    histogram: tuple[int, ...] = ()
    accept_length: float | None = None
    retractions: int | None = None
    versions: tuple[str, ...] = ()
    replacements: int = 0
    chunks: tuple[Chunk, ...] = ()
    output_ids: tuple[int, ...] = ()
    #: (log probability, token) of the best tokens at the first place, where they were asked for.
    top: tuple[tuple[float, int], ...] = ()
    #: (log probability or None, token) of the prompt's last tokens, where they were asked for.
    read: tuple[tuple[float | None, int], ...] = ()
    text: str = ""
    raw: bytes = b""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def counted(self) -> bool:
        """Whether the rise of the token count is known for every chunk."""
        return bool(self.chunks) and all(c.tokens is not None for c in self.chunks)

    @property
    def first(self) -> Chunk | None:
        return self.chunks[0] if self.chunks else None

    @property
    def last(self) -> Chunk | None:
        return self.chunks[-1] if self.chunks else None

    @property
    def first_answer(self) -> Chunk | None:
        """The first chunk outside the reasoning; None when all of it was reasoning."""
        return next((c for c in self.chunks if c.kind == ANSWER), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the server and its process said, before or after."""

    weight_version: str | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    running_limit: int | None = None
    process: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One run as the client saw it. `refused` says why nothing was sent, if so."""

    samples: tuple[Sample, ...] = ()
    before: Look = Look()
    after: Look = Look()
    idle: bool | None = None
    flushed: bool | None = None
    noise_before: float = 0.0
    noise_after: float = 0.0
    client: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    conditions: tuple[Mapping[str, Any], ...] = ()
    t0_unix_ns: int = 0
    end: int = 0
    refused: str = ""


def parse_load(data: bytes) -> Load:
    """Parse the client's answer. What cannot be read is an error, never an empty run."""
    try:
        raw = json.loads(zlib.decompress(data))
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}, want {SCHEMA!r}")
        return _load(raw)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise CommandFailed(
            "what the measuring client answered is not readable",
            rc=0,
            why=f"{type(error).__name__}: {error}",
            next="ddops provision brings the host's scripts up to date",
        ) from error


def _load(raw: dict[str, Any]) -> Load:
    if raw.get("refused"):
        return Load(before=_look(raw["before"]), refused=str(raw["refused"]))
    return Load(
        samples=tuple(parse_sample(s) for s in raw["samples"]),
        before=_look(raw["before"]),
        after=_look(raw["after"]),
        idle=raw["idle"],
        flushed=raw["flushed"],
        noise_before=float(raw["noise_before"]["fraction"]),
        noise_after=float(raw["noise_after"]["fraction"]),
        client=raw["client"],
        machine=raw.get("machine") or {},
        conditions=tuple(raw["conditions"]),
        t0_unix_ns=int(raw["t0"]),
        end=int(raw["end"]),
    )


def _look(raw: dict[str, Any]) -> Look:
    return Look(
        weight_version=raw.get("weight_version"),
        info=raw.get("info") or {},
        running_limit=raw.get("running_limit"),
        process=raw.get("process") or {},
        environment=raw.get("environment") or {},
        counters=raw.get("counters") or {},
    )


def parse_sample(raw: Mapping[str, Any]) -> Sample:
    """One request of the client's answer."""
    return Sample(
        n=int(raw["n"]),
        prompt=str(raw["id"]),
        slot=int(raw["slot"]),
        connection=str(raw["connection"]),
        scheduled=int(raw["scheduled"]),
        free_at=int(raw["free_at"]),
        sent=raw["sent"],
        sent_by=raw.get("sent_by"),
        first_byte=raw["first_byte"],
        end=raw["end"],
        outcome=str(raw["outcome"]),
        why=str(raw["why"]),
        finish=str(raw.get("finish") or ""),
        prompt_tokens=raw.get("prompt_tokens"),
        cached_tokens=raw.get("cached_tokens"),
        tokens=raw.get("tokens"),
        verify_ct=raw.get("verify_ct"),
        correct=raw.get("correct"),
        proposed=raw.get("proposed"),
        histogram=tuple(raw.get("histogram") or ()),
        accept_length=raw.get("accept_length"),
        retractions=raw.get("retractions"),
        versions=tuple(raw.get("weight_versions") or ()),
        replacements=int(raw.get("replacements") or 0),
        chunks=_chunks(raw),
        output_ids=tuple(raw.get("output_ids") or ()),
        top=tuple((float(x[0]), int(x[1])) for x in ((raw.get("top_logprobs") or [()])[0] or ())),
        read=tuple((x[0], int(x[1])) for x in raw.get("read") or ()),
        text=str(raw.get("text") or ""),
        raw=zlib.decompress(base64.b64decode(raw["raw"])) if raw.get("raw") else b"",
    )


def _chunks(raw: Mapping[str, Any]) -> tuple[Chunk, ...]:
    """The events that brought tokens; a role, a count or an empty text is none."""
    out: list[Chunk] = []
    before = 0
    counts: Sequence[int | None] = raw.get("counts") or ()
    for lo, hi, count, verify, kind in zip(
        raw.get("lo") or (), raw.get("hi") or (), counts, raw.get("verify") or (),
        raw.get("kinds") or (), strict=True,
    ):  # fmt: skip
        if kind == NOTHING:
            continue
        out.append(Chunk(lo, hi, None if count is None else count - before, verify, kind))
        before = before if count is None else count
    return tuple(out)
