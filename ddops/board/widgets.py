"""The board's own widgets: a table that changes only what changed, and questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, DataTable, Input, Label, Static

from ddops.board.actions import Action
from ddops.board.detail import Line, printable
from ddops.board.lists import Listing
from ddops.board.show import Cell, Tone

STYLES: Mapping[Tone, str] = {
    Tone.PLAIN: "",
    Tone.GOOD: "green",
    Tone.WARN: "yellow",
    Tone.BAD: "bold red",
    Tone.DIM: "dim",
    Tone.HEAD: "bold",
}
VIM: tuple[Binding, ...] = (
    Binding("j", "cursor_down", show=False),
    Binding("k", "cursor_up", show=False),
    Binding("g", "scroll_top", show=False),
    Binding("G", "scroll_bottom", show=False),
    Binding("ctrl+f", "page_down", show=False),
    Binding("ctrl+b", "page_up", show=False),
)


def text_of(cell: Cell, width: int | None = None) -> Text:
    """A cell for drawing, cut to `width`; a host's control characters are left out."""
    text = Text(printable(cell.text), STYLES[cell.tone], no_wrap=True, end="")
    if width is not None:
        text.truncate(width)
    return text


def text_of_line(line: Line) -> Text:
    return Text.assemble(*(text_of(c) for c in line), no_wrap=True)


class Table(DataTable[Text]):
    """Draws a listing. What did not change since the last one is left alone."""

    BINDINGS: ClassVar[list[BindingType]] = list(VIM)

    def __init__(self, name: str) -> None:
        # A line's colours say more than that the cursor is on it.
        super().__init__(
            id=name, cursor_type="row", cell_padding=0, cursor_foreground_priority="renderable"
        )
        self._heads: tuple[tuple[str, int], ...] = ()
        self._order: tuple[str, ...] = ()
        self._cells: dict[tuple[str, int], Cell] = {}

    @property
    def current(self) -> str | None:
        """Key of the row the cursor is on."""
        if 0 <= self.cursor_row < len(self._order):
            return self._order[self.cursor_row]
        return None

    def show(self, listing: Listing) -> None:
        heads = tuple(listing.heads)
        order = tuple(key for key, _ in listing.rows)
        if heads != self._heads or order != self._order:
            self._rebuild(heads, order, listing)
            return
        for key, cells in listing.rows:
            for n, cell in enumerate(cells):
                if self._cells[key, n] != cell:
                    self._cells[key, n] = cell
                    self.update_cell(key, str(n), text_of(cell, heads[n][1]))

    def _rebuild(
        self, heads: tuple[tuple[str, int], ...], order: tuple[str, ...], listing: Listing
    ) -> None:
        """The cursor stays on its row where that is still there."""
        before = self.current
        self._cells = {(k, n): c for k, cells in listing.rows for n, c in enumerate(cells)}
        if heads != self._heads:
            self.clear(columns=True)
            for n, (head, width) in enumerate(heads):
                self.add_column(Text(head, "bold"), width=width + 1, key=str(n))
        else:
            self.clear()
        self._heads, self._order = heads, order
        for key, cells in listing.rows:
            drawn = (text_of(c, width) for c, (_, width) in zip(cells, heads, strict=True))
            self.add_row(*drawn, key=key)
        if before in order:
            self.move_cursor(row=order.index(before), animate=False)


class Pane(VerticalScroll):
    """A page of lines that scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
        Binding("ctrl+f", "page_down", show=False),
        Binding("ctrl+b", "page_up", show=False),
    ]

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self._drawn: list[Line] = []

    def compose(self) -> ComposeResult:
        yield Static(id=f"{self.id}-text")

    def show(self, lines: list[Line]) -> None:
        if lines == self._drawn:
            return
        self._drawn = lines
        text = Text("\n").join(text_of_line(li) for li in lines)
        text.no_wrap = True
        self.query_one(Static).update(text)


class Confirm(ModalScreen[bool]):
    """Asks for the target's name. What destroys has no focus and is off until the name is right."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "no", "Cancel")]

    def __init__(self, action: Action, host: str) -> None:
        super().__init__()
        self._action = action
        self._host = host

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Label(f"{self._action.title}: {self._host}", id="question-title")
            yield Static(f"{self._action.effect}.", id="question-effect")
            yield Static(f"ddops {' '.join(self._action.argv(self._host))}", id="question-line")
            yield Static(f"Type {self._host} and Enter to do it; Escape leaves all as it is.")
            yield Input(placeholder="the host's name", id="question-name")
            doing = Button(self._action.title, id="question-yes", variant="error", disabled=True)
            doing.can_focus = False
            with Horizontal(id="question-buttons"):
                yield Button("Cancel", id="question-no")
                yield doing

    def on_mount(self) -> None:
        self.query_one("#question-name", Input).focus()

    def _right(self) -> bool:
        return self.query_one("#question-name", Input).value == self._host

    def on_input_changed(self) -> None:
        self.query_one("#question-yes", Button).disabled = not self._right()

    def on_input_submitted(self) -> None:
        if self._right():
            self.dismiss(True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "question-yes" and self._right())

    def action_no(self) -> None:
        self.dismiss(False)


class Help(ModalScreen[None]):
    """Every key, and what the signs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        Binding("question_mark", "close", show=False),
        Binding("q", "close", show=False),
        Binding("j", "down", show=False),
        Binding("k", "up", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(self._text, markup=False)

    def on_mount(self) -> None:
        self.query_one("#help").focus()

    def action_close(self) -> None:
        self.dismiss(None)

    def action_down(self) -> None:
        self.query_one("#help").scroll_down(animate=False)

    def action_up(self) -> None:
        self.query_one("#help").scroll_up(animate=False)
