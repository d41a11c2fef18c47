"""Tables and JSON on stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddops.cli.output import GAP, emit_json, emit_table, table_lines

HEADER = ("HOST", "CHECK", "SEEN")


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    assert table_lines(HEADER, [("a", "HOST-LIBC", "x"), ("longer", "B", "y")], 80) == [
        "HOST    CHECK      SEEN",
        "a       HOST-LIBC  x",
        "longer  B          y",
    ]


def test_no_rows_still_show_the_header() -> None:
    assert table_lines(HEADER, [], 80) == ["HOST  CHECK  SEEN"]


def test_the_last_column_wraps_below_itself() -> None:
    lines = table_lines(("A", "B"), [("x", "word " * 30)], 40)
    assert max(len(line) for line in lines) <= 40
    assert all(line.startswith("   word") for line in lines[2:])
    assert " ".join(line[3:] for line in lines[1:]).split() == ["word"] * 30


def test_a_very_long_word_is_broken_rather_than_let_out() -> None:
    lines = table_lines(("A", "B"), [("x", "y" * 200)], 80)
    assert max(len(line) for line in lines) <= 80
    assert "".join(line[3:] for line in lines[1:]) == "y" * 200


def test_a_path_is_not_broken_at_its_hyphens() -> None:
    path = "/srv/some-long-name/with-many-hyphens/in-it"
    lines = table_lines(("A", "B"), [("x", f"free for {path}")], 50)
    assert any(path in line for line in lines)


def test_wide_first_columns_leave_the_last_one_a_little_room() -> None:
    lines = table_lines(("A", "B"), [("x" * 90, "some words that wrap here")], 80)
    assert [line[92:] for line in lines[1:]] == ["some words that", "wrap here"]


#: What `ddops ledger show runs` had to show where it was 105 wide.
RUNS = (
    ("RUN", "STARTED", "STATUS", "COUNTS", "CLASS", "OUTPUT TPS", "LABEL", "REASON"),
    ("27436323e733c331", "2026-11-30 09:45:28", "unbound", "no", "sim", "-", "tiny-dflash C=1",
     "launch: the ledger here does not know the start 057e5618f260: it was lost"),
    ("1d6a4d3f9f1c7b02", "2026-11-30 09:45:31", "valid", "yes", "sim", "1234.5",
     "tiny-dflash-with-a-long-name C=256", "-"),
)  # fmt: skip


def test_a_table_too_wide_gives_way_between_words_and_keeps_its_ids() -> None:
    lines = table_lines(RUNS[0], RUNS[1:], 80, wrapping=2)
    assert max(len(line) for line in lines) <= 80
    text = "\n".join(lines)
    assert all(row[0] in text for row in RUNS[1:])
    assert "2026-11-30  " in text
    assert "09:45:28" in text
    wide = table_lines(RUNS[0], RUNS[1:], 200, wrapping=2)
    assert len(wide) == len(RUNS), "where there is room no cell is cut"


@given(
    st.lists(st.tuples(*[st.text(alphabet="ab ", max_size=30)] * 4), max_size=5),
    st.integers(min_value=40, max_value=120),
    st.integers(min_value=1, max_value=2),
)
def test_what_can_fit_does(
    rows: Sequence[Sequence[str]], width: int, wrapping: int
) -> None:  # fmt: skip
    header = ("A", "B B", "C", "D")
    lines = table_lines(header, rows, width, wrapping=wrapping)
    least = [max(len(w) for row in (header, *rows) for w in row[i].split() or [""])
             for i in range(4)]  # fmt: skip
    if sum(least[: 4 - wrapping]) + 8 * wrapping + 3 * len(GAP) <= width:
        assert max(len(line) for line in lines) <= width
    for i, cell in enumerate(x for row in rows for x in row):
        if i % 4 < 4 - wrapping:  # those are broken between words alone
            assert all(any(w in line for line in lines) for w in cell.split())


def test_cells_are_one_line_and_printable() -> None:
    (_, line) = table_lines(("A", "B"), [("a\nb\tc", "\x1b[31mred\x1b[0m \udc80 \x00")], 80)
    assert line == r"a b c  \x1b[31mred\x1b[0m \udc80 \x00"


def test_unicode_keeps_its_words() -> None:
    lines = table_lines(("A", "B"), [("größe", "naïve café — 100 µs"), ("x", "日本語")], 80)
    assert lines[1:] == ["größe  naïve café — 100 µs", "x      日本語"]


@given(
    st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12), st.text(max_size=300))),
    st.integers(min_value=60, max_value=200),
)
def test_no_line_is_wider_than_the_terminal(rows: Sequence[Sequence[str]], width: int) -> None:
    # Escapes make a character up to ten wide; only rows whose first columns leave room must fit.
    lines = table_lines(HEADER, rows, width)
    first = max(len(HEADER[0]) + len(HEADER[1]), 0)
    assert len(lines) >= 1 + len(rows)
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    plain = all(c.isprintable() for row in rows for cell in row[:2] for c in cell)
    if plain and first + 24 + 2 * len(GAP) + 16 <= width:
        assert max(len(line) for line in lines) <= width


def test_the_table_takes_the_terminals_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    emit_table(("A", "B"), [("x", "word " * 20)])
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 30


def test_json_has_a_schema_and_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json("thing", [{"name": "café \udcff", "n": 1.5, "none": None}])
    text = capsys.readouterr().out
    assert text.isascii()
    assert json.loads(text) == {
        "schema": "ddops.thing/1",
        "data": [{"name": "café \udcff", "n": 1.5, "none": None}],
    }


def test_json_takes_what_is_not_json(capsys: pytest.CaptureFixture[str]) -> None:
    from pathlib import Path

    emit_json("thing", {"path": Path("/x"), "set": {1}, "tuple": (1, 2), "bytes": b"\xff"})
    data = json.loads(capsys.readouterr().out)["data"]
    assert data == {"path": "/x", "set": [1], "tuple": [1, 2], "bytes": "\\xff"}
