"""Bars, sparklines and signs, in Unicode and in ASCII. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs. `spark` goes from low to high."""

    full: str
    part: str
    empty: str
    spark: str
    good: str
    bad: str
    open: str
    dot: str
    border: str


UNICODE = Glyphs("━", "╸", "─", "▁▂▃▄▅▆▇█", "✓", "✗", "?", "·", "round")
ASCII = Glyphs("#", "=", ".", "_.-=+*#@", "+", "x", "?", "-", "ascii")


def bar(share: float | None, width: int, signs: Glyphs) -> str:
    """A bar of `width` cells; question marks where the share is not known."""
    if share is None:
        return "?" * min(1, width) + " " * max(0, width - 1)
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    text = signs.full * (halves // 2) + (signs.part if halves % 2 else "")
    return text + signs.empty * (width - len(text))


def sparkline(values: Sequence[float], signs: Glyphs) -> str:
    """One sign a value, scaled from zero: a small change stays small."""
    if not values:
        return ""
    top, steps = max(values), len(signs.spark) - 1
    if top <= 0:
        return signs.spark[0] * len(values)
    return "".join(signs.spark[round(max(0.0, v) / top * steps)] for v in values)
