"""Frozen types that several layers share. Parsed at the edge, never passed on as raw dicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Verdict(Enum):
    """The outcome of a check or a gate. UNKNOWN is never PASS."""

    PASS = "PASS"
    INFO = "INFO"
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    SKIP = "SKIP"


class State(Enum):
    """Three-valued: only positive evidence makes a thing `DOWN`."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Result:
    """What a command answered. Output is bounded; `truncated` says when it was cut."""

    rc: int
    stdout: bytes
    stderr: bytes
    duration_s: float
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.rc == 0

    @property
    def out(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def err(self) -> str:
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate of one launch: `name` is G0 to G6, `evidence` what was seen (redacted)."""

    name: str
    verdict: Verdict
    message: str
    evidence: Mapping[str, object] = field(default_factory=dict)


def canonical(value: object) -> str:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8. Digests are taken of it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """sha256 of the canonical JSON of `value`, 64 hex digits."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def short(digest_hex: str) -> str:
    """The first 12 hex digits: what people read and type."""
    return digest_hex[:12]
