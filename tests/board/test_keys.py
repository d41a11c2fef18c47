"""Keys, filters, sizes and questions, on a board without a terminal.

To see it fail: give the destructive button its focus back in `Confirm`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, DataTable, Input, Static

from ddops.board import actions
from ddops.board.app import Board
from ddops.board.widgets import Confirm, Table
from tests.board.scene import Still

Talk = Callable[[Board, "Pilot[None]"], Awaitable[None]]


def talk(body: Talk, size: tuple[int, int] = (80, 24), **more: Any) -> Board:
    board = Board(more.pop("source", None) or Still(), **more)

    async def main() -> None:
        async with board.run_test(size=size) as pilot:
            await pilot.pause()
            await body(board, pilot)

    asyncio.run(main())
    return board


def names(board: Board) -> list[str]:
    table = board.query_one("#hosts", Table)
    return [str(table.get_row_at(n)[0]) for n in range(table.row_count)]


def test_pages_and_vim_keys() -> None:
    async def body(board: Board, pilot: Pilot[None]) -> None:
        table = board.query_one("#hosts", Table)
        await pilot.press("j", "j", "k")
        assert table.current == "b300-2/k26"
        await pilot.press("G")
        assert table.current == "spare/"
        await pilot.press("g", "down")
        assert table.current == "b300-2/k26"
        await pilot.press("enter")
        assert "b300-2" in str(board.query_one("#host-text", Static).render())
        await pilot.press("l", "l")
        assert "pcie-1" in str(board.query_one("#host-text", Static).render())
        await pilot.press("h", "left", "left", "left")
        assert "spare" in str(board.query_one("#host-text", Static).render())
        await pilot.press("escape")
        assert board.query_one("#pages").current == "hosts"  # type: ignore[attr-defined]
        for key, place in (("3", "runs"), ("4", "tasks"), ("5", "events"), ("1", "hosts")):
            await pilot.press(key)
            assert board.query_one("#pages").current == place  # type: ignore[attr-defined]

    talk(body)


def test_a_filter_narrows_and_goes() -> None:
    async def body(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"old", "space", *"answer")
        assert names(board) == ["pcie-2", "pcie-3"]
        await pilot.press("enter", "j")
        assert board.query_one("#hosts", Table).current == "pcie-3/k26"
        await pilot.press("slash", "escape")
        assert len(names(board)) == 7
        await pilot.press("slash", "slash", *"zzz", "enter")
        assert "[filter: /zzz]" in str(board.query_one("#foot", Static).render())
        assert names(board) == []
        await pilot.press("enter")  # nothing is chosen: nothing opens, nothing falls over
        assert board.query_one("#pages").current == "hosts"  # type: ignore[attr-defined]
        await pilot.press("escape")
        assert len(names(board)) == 7

    talk(body)


def test_trouble_comes_first_when_asked_and_the_cursor_stays_on_its_host() -> None:
    async def body(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("G", "s")
        assert names(board)[-1] in ("spare", "b300-1")
        assert board.query_one("#hosts", Table).current == "spare/"
        await pilot.press("s")
        assert names(board)[0] == "b300-1"

    talk(body)


def test_it_is_read_only_unless_told() -> None:
    async def body(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("B")
        assert not isinstance(board.screen, Confirm)
        assert not [n for n, _, _ in board.commands() if "roll" in n]

    talk(body)
    talk(body, write=True, source=Still(label="replay"))


def test_a_router_has_a_line_and_a_page_and_no_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "run", lambda *_more: pytest.fail("an action was run"))

    async def body(board: Board, pilot: Pilot[None]) -> None:
        def text(place: str) -> str:
            return str(board.query_one(place, Static).render())

        table = board.query_one("#hosts", Table)
        assert "1 router, 1 not well" in text("#head")
        await pilot.press("G")
        assert table.current == "router:k26/"
        assert [str(x) for x in table.get_row_at(7)][:2] == ["spare", "DOWN"]
        await pilot.press("enter")
        assert "k26.router DOWN on spare" in text("#host-text")
        assert "left out" in text("#host-text") and "drained" in text("#host-text")
        await pilot.press("B", "C", "r")
        assert not isinstance(board.screen, Confirm)
        assert source.asked == ["router:k26"]
        await pilot.press("l")
        assert "b300-1" in text("#host-text").splitlines()[0]
        await pilot.press("h", "escape", "slash", *"k26.router", "enter")
        assert names(board) == ["spare"]
        assert "router k26.router" in [n for n, _, _ in board.commands()]

    source = Still(routed=True)
    talk(body, size=(120, 30), write=True, source=source)


def test_what_destroys_wants_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(actions, "run", lambda argv, *_more: ran.append(tuple(argv)))

    async def body(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("j", "B")
        assert isinstance(board.screen, Confirm)
        doing = board.screen.query_one("#question-yes", Button)
        assert isinstance(board.focused, Input)
        seen: list[object] = []
        for _ in range(6):
            await pilot.press("tab")
            seen.append(board.focused)
        assert all(one is not doing for one in seen)
        board.screen.query_one(Input).focus()
        await pilot.press(*"b300-1", "enter")  # another host's name
        assert isinstance(board.screen, Confirm)
        assert doing.disabled
        await pilot.click("#question-yes")
        assert ran == []
        await pilot.press("escape")
        await pilot.press("B", *"b300-2")
        assert not board.screen.query_one("#question-yes", Button).disabled
        await pilot.press("enter")
        assert ran == [("rollback", "b300-2", "--yes")]
        assert board.query_one("#pages").current == "events"  # type: ignore[attr-defined]

    talk(body, write=True)


def test_what_an_action_says_stands_among_the_events(tmp_path: Path) -> None:
    """The command line is a real one; it fails, since the project has no such host."""

    async def body(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("C")
        for _ in range(600):
            said = [e.text for e in board.fleet.events]
            if "ended with 2: ddops probe b300-1" in said:
                break
            await pilot.pause(0.05)
        assert said[-1] == "ended with 2: ddops probe b300-1"
        assert "started: ddops probe b300-1" in said
        assert any("unknown target" in words for words in said)

    talk(body, write=True, project=str(tmp_path))


def test_sizes_come_and_go() -> None:
    async def body(board: Board, pilot: Pilot[None]) -> None:
        for size, heads in (((200, 50), 18), ((120, 40), 13), ((80, 24), 9), ((60, 16), 6)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            table = board.query_one("#hosts", DataTable)
            assert len(table.columns) == heads
            assert sum(c.width for c in table.columns.values()) <= size[0]
        await pilot.resize_terminal(50, 10)
        await pilot.pause()
        assert not board.query_one("#pages").display
        assert "too small: 50x10" in str(board.query_one("#tiny", Static).render())
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert board.query_one("#pages").display

    talk(body)


def test_asking_again_goes_to_the_host_of_the_cursor() -> None:
    source = Still()

    async def body(_board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("j", "r", "enter", "l", "r")

    talk(body, source=source)
    assert source.asked == ["b300-2", "b300-3"]


def test_the_palette_opens_a_host() -> None:
    async def body(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("colon", *"pcie-3")
        await pilot.pause(0.5)
        await pilot.press("down", "enter")
        await pilot.pause(0.2)
        assert "pcie-3" in str(board.query_one("#host-text", Static).render())

    talk(body)


def test_a_board_of_no_hosts() -> None:
    async def body(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "2", "j", "l", "r", "1", "slash", "a", "enter")
        assert board.is_running

    talk(body, source=Still(hosts=()))
