"""Error counters of two looks, compared. Pure.

Every kind says what a rise of it means. The limit is NVIDIA's own for CRC errors of NVLink (DCGM:
they matter from 100 a second on); for corrected memory errors none is published, and the same
number stands in: far above single events, and a storm all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ddops.probe.error_counts import Counters, Value

#: Errors a second of one counter of one GPU or link, from which on repaired errors fail.
LIMIT_PER_S = 100.0
#: Rises that stand in the evidence; the rest is counted.
KEPT = 64


class Kind(Enum):
    """What a rise means: HARD fails; SOFT warns, and fails from the limit on; OTHER warns."""

    HARD = "hard"
    SOFT = "soft"
    OTHER = "other"
    FLAG = "flag"


#: Parts of names, lower case. What lost a packet, a link or data; the first that fits decides.
_HARD = (
    "uncorrect", "double bit", "recovery", "malformed", "buffer overrun", "link integrity",
    "discard", "fatal",
)  # fmt: skip
#: What ECC, forward error correction or a second sending repaired.
_SOFT = ("correct", "single bit", "replay", "crc", "rx ", "symbol errors", "effective errors")


def kind_of(name: str, value: Value) -> Kind:
    """By its name and what stands there; a name that nobody knows warns and never fails."""
    if isinstance(value, bool):
        return Kind.FLAG
    if isinstance(value, float):
        return Kind.OTHER
    low = name.lower()
    if any(word in low for word in _HARD):
        return Kind.HARD
    return Kind.SOFT if any(word in low for word in _SOFT) else Kind.OTHER


@dataclass(slots=True)
class Since:
    """What two looks say. `rises` and `absent` are evidence."""

    faults: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    rises: list[tuple[str, str, Value, Value]] = field(default_factory=list)
    #: Places that have no such counter at either look.
    absent: set[str] = field(default_factory=set)
    #: Counters that were read twice.
    counted: int = 0

    def add(self, other: Since) -> None:
        self.faults += other.faults
        self.unseen += other.unseen
        self.warnings += other.warnings
        self.rises += other.rises
        self.absent |= other.absent
        self.counted += other.counted


def compare(before: Counters, after: Counters, seconds: float | None) -> Since:
    """Counter by counter. `seconds` lie between the looks; None where the clock does not say."""
    out = Since()
    out.faults += [f"{place} is gone" for place in before.places if place not in after.places]
    out.warnings += [
        f"{place} is new since the first look" for place in after.places
        if place not in before.places
    ]  # fmt: skip
    for place, name in sorted(before.values.keys() | after.values.keys()):
        if place not in before.places or place not in after.places:
            continue
        was, now = before.values.get((place, name)), after.values.get((place, name))
        if was is None and now is None:
            out.absent.add(f"{place}: {name}")
            continue
        _one(out, place, name, was, now, seconds)
    told = set(out.warnings) | set(out.faults)
    volatile = {w.replace(": volatile ", ": aggregate ") for w in told if ": volatile " in w}
    out.warnings = [w for w in out.warnings if w not in volatile]
    return out


def _one(out: Since, place: str, name: str, was: Value, now: Value, seconds: float | None) -> None:
    kind = kind_of(name, now if now is not None else was)
    if was is None or now is None or isinstance(was, str) or isinstance(now, str):
        out.unseen.append(f"{place}: {name} was {_said(was)} and is {_said(now)}")
        return
    out.counted += 1
    if was != now:
        out.rises.append((place, name, was, now))
    if kind is Kind.FLAG:
        if now is True:
            known = ", as before the soak" if was is True else ""
            out.faults.append(f"{place}: {name} is set{known}")
    elif now < was and kind is not Kind.OTHER:
        out.unseen.append(
            f"{place}: {name} went back from {was} to {now}: the driver was loaded anew, or the"
            " GPU or its counters were reset"
        )
    elif now > was:
        _rise(out, kind, f"{place}: {name}", was, now, seconds)


def _rise(out: Since, kind: Kind, what: str, was: float, now: float, seconds: float | None) -> None:
    if kind is Kind.OTHER:
        out.warnings.append(f"{what} rose from {was:g} to {now:g}")
        return
    more = now - was
    words = f"{what} rose by {more:.0f}"
    if kind is Kind.HARD:
        out.faults.append(words)
    elif seconds is None:
        out.unseen.append(f"{words}, and the host's clock does not say within what time")
    elif more / max(seconds, 1.0) >= LIMIT_PER_S:
        out.faults.append(f"{words}, {more / max(seconds, 1.0):.0f} a second")
    else:
        out.warnings.append(words)


def _said(value: Value) -> str:
    return "not told" if value is None else str(value)


def evidence(since: Since) -> Mapping[str, object]:
    """What is kept of a comparison: bounded, and it says what was left out."""
    return {
        "counted": since.counted,
        "rises": [list(r) for r in since.rises[:KEPT]],
        "rises_left_out": max(0, len(since.rises) - KEPT),
        "no_counter": sorted(_by_place(since.absent))[:KEPT],
        "warnings": since.warnings[:KEPT],
    }


def _by_place(absent: set[str]) -> Iterator[str]:
    """One line a GPU or link: a GPU without ECC lacks a dozen counters at once."""
    names: dict[str, int] = {}
    for one in absent:
        place = one.partition(": ")[0]
        names[place] = names.get(place, 0) + 1
    for place, count in names.items():
        yield f"{place}: {count} counters"
