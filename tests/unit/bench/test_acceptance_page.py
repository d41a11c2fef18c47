"""docs/reference/bench-acceptance.md: every row has a test, and every test named is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "bench-acceptance.md"
ROWS = {
    "A": (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16, 17, 19, 20),
    "B": (1, 3, 4, 6, 7, 8, 10, 11, 12),
    "C": (1, 2, 3, 5, 6, 8, 9),
    "D": (1, 2, 4, 5, 7, 8, 9, 10),
    "E": (1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 14, 15, 16, 17),
    "F": (1, 2, 4, 5, 7),
}


def rows() -> dict[str, list[str]]:
    out = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if re.fullmatch(r"[A-F]\d+", cells[0]):
            out[cells[0]] = re.findall(r"`(test_\w+)`", cells[3])
    return out


def test_every_row_has_its_test() -> None:
    wanted = {f"{letter}{n}" for letter, numbers in ROWS.items() for n in numbers}
    found = rows()
    assert set(found) == wanted
    assert not [row for row, tests in found.items() if not tests]


def test_every_test_named_is_there() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    named = {name for tests in rows().values() for name in tests}
    assert len(named) > 50
    assert named <= defined, named - defined
