"""Comparing versions: CUDA, drivers, Python packages. What is unreadable is None, never zero."""

from __future__ import annotations

import re

#: Numbers, then a rank (pre-release -1, release 0, post 1) and its number.
Version = tuple[tuple[int, ...], int, int]

_SHAPE = re.compile(
    r"^v?(\d+(?:\.\d+)*)(?:[.-]?(a|b|rc|dev|alpha|beta|preview|post)\.?(\d*))?", re.IGNORECASE
)


def parse(text: str | None) -> Version | None:
    """`13.0.88`, `2.11.0+cu130`, `0.5.12.post1`; local parts (`+...`) are left out."""
    found = _SHAPE.match((text or "").strip())
    if not found:
        return None
    numbers = [int(n[:9]) for n in found.group(1).split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    word = (found.group(2) or "").lower()
    rank = 0 if not word else 1 if word == "post" else -1
    return tuple(numbers), rank, int(found.group(3)[:9] or 0) if found.group(3) else 0


def minor(text: str | None) -> tuple[int, int] | None:
    """Major and minor: `13.0.88` gives (13, 0). One number alone has no minor."""
    found = re.match(r"^v?(\d{1,9})\.(\d{1,9})", (text or "").strip())
    return (int(found.group(1)), int(found.group(2))) if found else None


def branch(text: str | None) -> int | None:
    """A driver's branch: `580.126.20` gives 580."""
    found = re.match(r"^(\d{3,4})\.\d", (text or "").strip())
    return int(found.group(1)) if found else None


def older(a: str | None, b: str) -> bool | None:
    """Whether `a` comes before `b`; None when either cannot be read."""
    left, right = parse(a), parse(b)
    return None if left is None or right is None else left < right


def satisfies(have: str | None, spec: str) -> bool | None:
    """A plain requirement (`==1.2`, `>=1,<2`, `==1.*`, `~=1.2`); None when it cannot be read."""
    if parse(have) is None:
        return None
    answers = [_one(str(have), part.strip()) for part in spec.split(",") if part.strip()]
    if None in answers:
        return None
    return all(answers)


def _one(have: str, part: str) -> bool | None:
    found = re.match(r"^(===|==|!=|~=|>=|<=|>|<)\s*([^\s;]+)$", part)
    if not found:
        return None
    op, want = found.groups()
    if want.endswith(".*"):
        same = f"{have.split('+')[0]}.".startswith(want[:-1])
        return same if op == "==" else not same if op == "!=" else None
    left, right = parse(have), parse(want)
    if left is None or right is None:
        return None
    if op == "~=":
        stem = right[0][:-1] if want.count(".") >= 1 else None
        return None if not stem else left >= right and left[0][: len(stem)] == stem
    return {
        "==": left == right, "===": left == right, "!=": left != right,
        ">=": left >= right, "<=": left <= right, ">": left > right, "<": left < right,
    }[op]  # fmt: skip
