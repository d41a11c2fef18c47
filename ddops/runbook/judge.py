"""Conditions held against what was seen. Pure. What is not known is UNKNOWN, never false."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ddops.compat import Finding
from ddops.runbook.conditions import CheckIs, Fact, FileIs, LedgerHas, StateIs, comparisons


class Truth(Enum):
    """Three-valued: a thing that could not be looked at does not fail to hold, it is unknown."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Judged:
    """One condition: what was asked in words, what was seen, and the answer."""

    asked: str
    truth: Truth
    seen: str

    @property
    def line(self) -> str:
        return f"{self.asked}: {self.truth.value} ({self.seen})"


def together(found: Sequence[Judged]) -> Truth:
    """All of a list must hold. One that fails decides, even beside one that is unknown."""
    truths = {j.truth for j in found}
    for truth in (Truth.FAILS, Truth.UNKNOWN):
        if truth in truths:
            return truth
    return Truth.HOLDS


def judge_fact(c: Fact, facts: Mapping[str, object]) -> Judged:
    """A value by its dotted place. Unlike types are UNKNOWN: nobody compares 8 with "8"."""
    asked = f"{c.host}: fact {c.fact} {_wanted(c)}"
    there, value = _at(facts, c.fact)
    if c.exists is not None:
        return _answer(asked, (there and value is not None) is c.exists, _shown(value, there))
    if not there:
        return Judged(asked, Truth.UNKNOWN, "the facts have no such place")
    if value is None:
        return Judged(asked, Truth.UNKNOWN, "the host did not tell")
    held = _compare(c, value)
    if held is None:
        return Judged(asked, Truth.UNKNOWN, f"{_shown(value)} is of another type")
    return _answer(asked, held, _shown(value))


def judge_check(c: CheckIs, findings: Sequence[Finding]) -> Judged:
    """A check's verdict as it is; a waived FAIL is a FAIL. `all`: nothing refuses the host."""
    about = f" for {c.service}" if c.service else ""
    if c.check == "all":
        bad = [f.check for f in findings if f.refuses]
        words = f"refused by {', '.join(bad)}" if bad else f"{len(findings)} findings, none refuses"
        return _answer(f"{c.host}: no check refuses it{about}", not bad, words)
    asked = f"{c.host}: check {c.check}{about} is {' or '.join(c.verdict)}"
    found = next((f for f in findings if f.check == c.check), None)
    if found is None:
        return Judged(asked, Truth.UNKNOWN, "no such check was made")
    verdict = found.verdict.value
    if verdict == "UNKNOWN" and verdict not in c.verdict:
        return Judged(asked, Truth.UNKNOWN, f"UNKNOWN: {found.seen}")
    return _answer(asked, verdict in c.verdict, f"{verdict}: {found.seen}")


def judge_state(c: StateIs, is_so: bool, seen: str) -> Judged:
    """What a host is."""
    which = f" {c.profile}" if c.profile else ""
    word = "is" if c.holds else "is not"
    return _answer(f"{c.host}: {word} {c.state}{which}", is_so is c.holds, seen)


def judge_ledger(c: LedgerHas, count: int) -> Judged:
    """How many rows there are."""
    return _answer(ledger_words(c), _in_bounds(c, count), f"{count} recorded")


def ledger_words(c: LedgerHas) -> str:
    """The question to the ledger, for people."""
    parts = [f"at most {c.at_most}" if c.at_most is not None else f"at least {_least(c)}"]
    parts.append(f"{c.suite} {c.ledger}" if c.suite else c.ledger)
    parts += [f"of {c.service}"] if c.service else []
    parts += [f"of {c.value[:40]}"] if c.value else []
    parts += [f"on {c.host}"] if c.host else []
    parts += [f"within {c.within_h:g} h"] if c.within_h else []
    return f"ledger: {' '.join(parts)}"


def judge_file(c: FileIs, data: bytes | None) -> Judged:
    """A file's bytes; None for one that is missing."""
    asked = file_words(c)
    if data is None or not c.exists:
        there = "there" if data is not None else "missing"
        return _answer(asked, (data is not None) is c.exists, there)
    sha = hashlib.sha256(data).hexdigest()
    good = c.sha256 in (None, sha) and (c.contains is None or c.contains.encode() in data)
    return _answer(asked, good, f"{len(data)} bytes, sha256 {sha[:12]}")


def file_words(c: FileIs) -> str:
    """The question about a file, for people."""
    what = "exists" if c.exists else "is missing"
    what += f", sha256 {c.sha256[:12]}" if c.sha256 else ""
    what += f", contains {c.contains[:40]!r}" if c.contains else ""
    return f"{c.host or 'here'}: {c.file} {what}"


def _wanted(c: Fact) -> str:
    name = comparisons(c)[0]
    value = getattr(c, name)
    shown = " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{name.replace('_', ' ')} {shown}"


def _compare(c: Fact, value: object) -> bool | None:
    """None where the two cannot be compared."""
    name = comparisons(c)[0]
    if name in ("at_least", "at_most"):
        bound = c.at_least if c.at_least is not None else c.at_most
        if not _is_number(value) or not isinstance(value, int | float) or bound is None:
            return None
        return value >= bound if name == "at_least" else value <= bound
    if name == "contains":
        if isinstance(value, str | list):
            return c.contains in value
        return None
    wanted = c.one_of if name == "one_of" else (c.equals,)
    alike = [w for w in wanted if _kind(w) == _kind(value)]
    return value in alike if alike else None


def _kind(value: object) -> str:
    return "number" if _is_number(value) else type(value).__name__


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at(facts: Mapping[str, object], place: str) -> tuple[bool, object]:
    """The value at `a.b.0.c`: whether there is one, and which. `#` counts a list."""
    value: object = facts
    for part in place.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part == "#":
            value = len(value)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return False, None
    return True, value


def _shown(value: object, there: bool = True) -> str:
    return f"it is {str(value)[:80]}" if there else "the facts have no such place"


def _least(c: LedgerHas) -> int:
    return 1 if c.at_least is None else c.at_least


def _in_bounds(c: LedgerHas, count: int) -> bool:
    return count <= c.at_most if c.at_most is not None else count >= _least(c)


def _answer(asked: str, held: bool, seen: str) -> Judged:
    return Judged(asked, Truth.HOLDS if held else Truth.FAILS, seen)
