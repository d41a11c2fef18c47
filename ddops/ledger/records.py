"""What readers get back: frozen rows, times as aware datetimes, JSON as mappings.

`host` is the host's name, `host_id` the key of its row. `ledger` and `seq` say where the row
stands in which chain; both have defaults so that a record is easy to make by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ddops.model import Verdict


class Outcome(StrEnum):
    """How a transition of a deployment ended."""

    OK = "ok"
    SKIP = "skip"
    FAIL = "fail"
    UNKNOWN = "unknown"


#: States that end a deployment. `committed` does so only with the outcome `ok`.
COMMITTED = "committed"
ENDED_BADLY = ("restored", "stuck", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHost:
    """A host and what was pinned of it. New pins make a new row, with a new id."""

    id: str
    name: str
    pins: Mapping[str, object]
    ledger: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFacts:
    """One collection of facts, redacted. `digest` is what the collector took of the original."""

    id: str
    host: str
    host_id: str
    at: datetime
    digest: str
    simulated: bool
    json: Mapping[str, object]
    ledger: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release. Text fields are empty where the release has no such part."""

    digest: str
    service: str
    upstream: str
    spec: Mapping[str, object]
    series: str
    lock: str
    plugin: str
    model: str
    draft: str
    at: datetime
    ledger: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One attempt to make `release` live. `previous` is the digest that served before."""

    op_id: str
    service: str
    release: str
    host: str
    host_id: str
    at: datetime
    by: str
    previous: str | None
    ledger: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One step of a deployment; `n` counts from 1 within it."""

    op_id: str
    n: int
    state: str
    verdict: Outcome
    evidence: Mapping[str, object]
    at: datetime
    ledger: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server start. `release` may be the previous one: a rollback starts it again."""

    nonce: str
    deployment: str
    host: str
    host_id: str
    release: str
    started: datetime
    ledger: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One gate's verdict. `launch` is None for a gate that ran before any start."""

    id: str
    launch: str | None
    deployment: str
    name: str
    verdict: Verdict
    message: str
    evidence: Mapping[str, object]
    at: datetime
    ledger: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest row of a chain. Noted elsewhere, it shows later that nothing was cut off."""

    ledger: str
    seq: int
    hash: str
