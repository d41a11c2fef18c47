"""The board as it is drawn, page by page: SVG pictures that were looked at.

A change that is meant: run with DDOPS_PICTURES=write and look at the pictures. To see it fail: give
another style to `Tone.BAD`. Unlike pictures are left in the test's own folder.
"""

from __future__ import annotations

import asyncio
import html
import os
import re
from pathlib import Path

import pytest

from ddops.board.app import Board
from tests.board.scene import Still

PICTURES = Path(__file__).parent / "pictures"
SMALL, WIDE = (80, 24), (120, 40)
SCENES: dict[str, tuple[tuple[int, int], str, bool]] = {
    "hosts-80x24": (SMALL, "", False),
    "hosts-120x40": (WIDE, "", False),
    "hosts-200x30": ((200, 30), "", False),
    "hosts-ascii-80x24": (SMALL, "", True),
    "host-80x24": (SMALL, "2", False),
    "host-120x40": (WIDE, "2", False),
    "host-ascii-120x40": (WIDE, "2", True),
    "host-drifted-120x40": (WIDE, "j enter", False),
    "host-silent-80x24": (SMALL, "j j j enter", False),
    "host-lost-80x24": (SMALL, "j j j j enter", False),
    "runs-80x24": (SMALL, "3", False),
    "runs-120x40": (WIDE, "3", False),
    "tasks-80x24": (SMALL, "4", False),
    "events-80x24": (SMALL, "5", False),
    "filter-80x24": (SMALL, "slash o l d enter", False),
    "help-80x24": (SMALL, "question_mark", False),
    "confirm-80x24": (SMALL, "B", False),
    "confirm-ascii-80x24": (SMALL, "B", True),
    "tiny-50x10": ((50, 10), "", False),
}


def normal(svg: str) -> str:
    """Without the name that Rich draws anew for each picture."""
    return re.sub(r"terminal-\d+", "terminal-0", svg)


async def _picture(size: tuple[int, int], keys: str, plain: bool) -> str:
    board = Board(Still(), write="B" in keys, plain=plain)
    async with board.run_test(size=size) as pilot:
        await pilot.pause()
        for key in keys.split():
            await pilot.press(key)
        await pilot.pause()
        return normal(board.export_screenshot())


@pytest.mark.parametrize("name", SCENES)
def test_pictures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    drawn = asyncio.run(_picture(*SCENES[name]))
    kept = PICTURES / f"{name}.svg"
    if os.environ.get("DDOPS_PICTURES") == "write":
        kept.write_text(drawn, encoding="utf-8")
    (tmp_path / kept.name).write_text(drawn, encoding="utf-8")
    assert kept.exists(), f"no picture yet; this one is {tmp_path / kept.name}"
    assert drawn == kept.read_text(encoding="utf-8"), f"drawn now: {tmp_path / kept.name}"


def test_ascii_is_ascii() -> None:
    for name, (_, _, plain) in SCENES.items():
        if plain:
            svg = (PICTURES / f"{name}.svg").read_text(encoding="utf-8")
            drawn = "".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
            wrong = {c for c in html.unescape(drawn) if not c.isascii()} - {"\xa0"}
            assert not wrong, name
