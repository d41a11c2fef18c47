"""What can go wrong with a lab host, as data. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddops.errors import UsageError

#: Each fault with what its value is; None where it takes none.
KINDS: Mapping[str, str | None] = {
    "reboot": None,
    "netdown": None,
    "netloss": "percent of packets lost each way, 20 or 20%",
    "netdelay": "milliseconds that a round trip takes longer, 50 or 50ms",
    "netrate": "bits per second each way, 256kbit or 10mbit",
    "diskfull": None,
    "freeze": None,
}
_EXAMPLES = {"netloss": "20%", "netdelay": "50ms", "netrate": "1mbit"}
_SHAPES = {
    "netloss": re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?)%?"),
    "netdelay": re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)(?:ms)?"),
    "netrate": re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([kmg])bit"),
}
_LIMITS = {"netloss": (0.01, 100.0), "netdelay": (0.1, 10_000.0), "netrate": (8e3, 1e10)}
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `amount` is percent, milliseconds or bits per second, by `kind`."""

    kind: str
    amount: float = 0.0

    def __str__(self) -> str:
        shown = {
            "netloss": f" {self.amount:g}%",
            "netdelay": f" {self.amount:g}ms",
            "netrate": f" {self.amount / 1e3:g}kbit",
        }
        return self.kind + shown.get(self.kind, "")


def parse_fault(kind: str, value: str | None) -> Fault:
    """A fault from the words of a command line; what cannot be is a `UsageError`."""
    if kind not in KINDS:
        raise UsageError(f"no such fault: {kind}", next=f"one of: {', '.join(KINDS)}")
    if KINDS[kind] is None:
        if value is not None:
            raise UsageError(f"{kind} takes no value", next=f"ddops lab fault HOST {kind}")
        return Fault(kind)
    again = f"ddops lab fault HOST {kind} {_EXAMPLES[kind]}"
    match = _SHAPES[kind].fullmatch(value or "")
    if match is None:
        raise UsageError(f"{kind} wants {KINDS[kind]}; not {value!r}", next=again)
    amount = float(match[1]) * (_UNITS[match[2]] if kind == "netrate" else 1)
    low, high = _LIMITS[kind]
    if not low <= amount <= high:
        raise UsageError(f"{kind} {value} is out of range", why=f"{low:g} to {high:g}", next=again)
    return Fault(kind, amount)
