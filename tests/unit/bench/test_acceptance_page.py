"""docs/reference/bench-acceptance.md: every row has a test, and every test named is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "bench-acceptance.md"
#: Reported faults that the page has a row for; a row that goes needs a reason.
ROWS = 60


def rows() -> dict[str, list[str]]:
    """Where each fault was reported, with its tests."""
    out: dict[str, list[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "reported as":
            assert cells[0] not in out, cells[0]
            out[cells[0]] = re.findall(r"`(test_\w+)`", cells[2])
    return out


def test_every_row_has_its_test() -> None:
    found = rows()
    assert len(found) == ROWS
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
