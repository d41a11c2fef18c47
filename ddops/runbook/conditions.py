"""The catalogue of conditions: typed predicates, no expressions. The schema is these types.

A condition is a table; the key that names its kind says what is looked at, the others what it
must be. What cannot be known is UNKNOWN, and UNKNOWN stops a run wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ddops.runbook.model import Scalar, Text

VerdictWord = Literal["PASS", "INFO", "WARN", "FAIL", "UNKNOWN", "SKIP"]
HostState = Literal["trusted", "provisioned", "serving", "unlocked"]
Recorded = Literal["deployment", "snapshot", "drill", "runs", "retraction"]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", description="64 hex digits")]
Least = Annotated[int, Meta(ge=0)]
Hours = Annotated[float, Meta(gt=0)]


class Fact(Struct, frozen=True, kw_only=True):
    """A value of the host's facts, by its place in what `ddops probe` prints.

    Exactly one of the comparisons. Numbers are compared with numbers only, texts with texts.
    """

    fact: Text
    host: Text
    equals: Scalar | None = None
    one_of: tuple[str | int | float, ...] = ()
    at_least: int | float | None = None
    at_most: int | float | None = None
    contains: Text | None = None
    exists: bool | None = None


class CheckIs(Struct, frozen=True, kw_only=True):
    """The verdict of a check, or with `all` that no check refuses the host."""

    check: Text
    host: Text
    service: Text | None = None
    verdict: Annotated[tuple[VerdictWord, ...], Meta(min_length=1)] = ("PASS",)


class StateIs(Struct, frozen=True, kw_only=True):
    """What a host is, as observed now.

    `trusted`: its key is pinned or known here. `provisioned`: provision has nothing left to do.
    `serving`: the release of the profile (the service's own where none is named) is live, says so
    itself, and passed its gates. `unlocked`: nobody is at work there.
    """

    state: HostState
    host: Text
    profile: Text | None = None
    holds: bool = field(name="is", default=True)


class LedgerHas(Struct, frozen=True, kw_only=True):
    """Rows that were recorded: how many at least, or at most, and how recent.

    `deployment`: committed ones. `drill`: passed ones. `runs`: valid ones of a suite. `retraction`:
    those of a `value` (a digest, an id, or a condition).
    """

    ledger: Recorded
    host: Text | None = None
    service: Text | None = None
    suite: Text | None = None
    value: Text | None = None
    within_h: Hours | None = None
    at_least: Least | None = None
    at_most: Least | None = None


class FileIs(Struct, frozen=True, kw_only=True):
    """A file: the project's (or shipped) by its relative path, a host's by its absolute one."""

    file: Text
    host: Text | None = None
    exists: bool = True
    sha256: Sha256 | None = None
    contains: Text | None = None


Condition = Fact | CheckIs | StateIs | LedgerHas | FileIs
#: By the key that names the kind.
CONDITIONS: Mapping[str, type[Condition]] = {
    "fact": Fact, "check": CheckIs, "state": StateIs, "ledger": LedgerHas, "file": FileIs,
}  # fmt: skip


def comparisons(fact: Fact) -> list[str]:
    """The comparisons that a fact is held against."""
    names = ("equals", "at_least", "at_most", "contains", "exists")
    found = [n for n in names if getattr(fact, n) is not None]
    return found + (["one_of"] if fact.one_of else [])
