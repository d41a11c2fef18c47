"""The board in a terminal. It draws what the model says and waits for nothing but keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.containers import Vertical
from textual.events import Resize
from textual.filter import LineFilter, NoColor
from textual.widgets import ContentSwitcher, DataTable, Input, Static

from ddops.board import actions, lists
from ddops.board.actions import ACTIONS, Action
from ddops.board.detail import host_page
from ddops.board.fleet import Fleet
from ddops.board.glyphs import ASCII, UNICODE
from ddops.board.help import help_text, hints
from ddops.board.judge import reach_word
from ddops.board.lists import Listing
from ddops.board.model import Event
from ddops.board.router_show import RouterRow, router_page
from ddops.board.routers import in_need
from ddops.board.show import Row, columns_for, matches, trouble
from ddops.board.source import Source
from ddops.board.widgets import Confirm, Help, Pane, Table

#: Ages are shown in whole seconds; drawing a table anew costs more than all else here.
TICK_S = 1.0
PAGES = ("hosts", "host", "runs", "tasks", "events")
LEAST = (60, 16)


class BoardCommands(Provider):
    """What the palette offers: pages, hosts by name, and with `--write` the actions."""

    def _all(self) -> Iterable[tuple[str, Callable[[], object], str]]:
        board = self.app
        if isinstance(board, Board):
            yield from board.commands()

    async def discover(self) -> Hits:
        for name, run, about in self._all():
            yield DiscoveryHit(name, run, help=about)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, run, about in self._all():
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(name), run, help=about)


class Board(App[None]):
    """One fleet: hosts, one host, runs, tasks, events."""

    CSS_PATH = "board.tcss"
    TITLE = "ddops board"
    COMMANDS: ClassVar = {BoardCommands}
    COMMAND_PALETTE_BINDING = "colon"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"page('{p}')", show=False) for n, p in enumerate(PAGES, 1)),
        # Before the table gets it: keys that follow at once, as in a paste, are the filter's.
        Binding("slash", "filter", show=False, priority=True),
        Binding("question_mark", "help", show=False),
        Binding("escape", "leave", show=False),
        Binding("q", "quit", show=False),
        Binding("r", "look_again", show=False),
        Binding("s", "sort", show=False),
        Binding("h,left", "step(-1)", show=False),
        Binding("l,right", "step(1)", show=False),
        *(Binding(a.key, f"act('{a.key}')", show=False) for a in ACTIONS),
    ]

    def __init__(
        self,
        source: Source,
        *,
        project: str = "",
        write: bool = False,
        plain: bool = False,
    ) -> None:
        super().__init__()
        self.source = source
        self.fleet = Fleet.of(source.hosts, source.routers)
        self.signs = ASCII if plain else UNICODE
        self.write_allowed = write and not source.label
        self._project = project
        self._width = 0
        self._page = "hosts"
        self._host = source.hosts[0].name if source.hosts else ""
        self._words: dict[str, str] = {}
        self._by_trouble = False
        self.set_class(plain, "plain")
        self.set_class(self.no_color, "colourless")

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with ContentSwitcher(initial="hosts", id="pages"):
            yield Table("hosts")
            yield Pane("host")
            for name in ("runs", "tasks", "events"):
                with Vertical(id=name):
                    yield Static(id=f"{name}-note")
                    yield Table(f"{name}-table")
        yield Input(placeholder="words that must stand in a line", id="filter")
        yield Static(id="foot")
        yield Static(id="tiny")

    def on_mount(self) -> None:
        self.source.start()
        self.query_one("#filter", Input).display = False
        self.set_focus(self.query_one("#hosts", Table))
        self._take_in()
        self.set_interval(TICK_S, self._take_in)

    def on_unmount(self) -> None:
        self.source.stop()

    def on_resize(self, event: Resize) -> None:
        self._width = event.size.width  # `size` follows later
        small = event.size.width < LEAST[0] or event.size.height < LEAST[1]
        self.screen_stack[0].set_class(small, "tiny")  # a question may lie above it
        words = (
            f"This terminal is too small: {event.size.width}x{event.size.height}.\n"
            f"The board needs {LEAST[0]}x{LEAST[1]}. q leaves it."
        )
        self.screen_stack[0].query_one("#tiny", Static).update(words)
        self.draw()

    def _take_in(self) -> None:
        for heard in self.source.drain():
            self.fleet.apply(heard)
        self.draw()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """With NO_COLOR really none: Textual's own way leaves greys."""
        return [NoColor()] if self.no_color else super().get_line_filters()

    # ---- drawing

    def draw(self) -> None:
        """The page that is seen, from the model as it is now."""
        now, width = self.source.now(), self._width
        if not width or not self.query("#foot"):
            return  # not laid out yet
        self.query_one("#head", Static).update(self._head(now))
        self.query_one("#foot", Static).update(self._foot())
        if self._page == "hosts":
            self.query_one("#hosts", Table).show(self._overview(now, width))
        elif self._page == "host":
            state = self.fleet.hosts.get(self._host)
            router = self.fleet.routers.get(self._host)
            if state is not None:
                lines = host_page(state, self.fleet.books, now, width, self.signs)
                self.query_one("#host", Pane).show(lines)
            elif router is not None:
                self.query_one("#host", Pane).show(router_page(router, now))
        else:
            made = {"runs": lists.runs, "tasks": lists.tasks, "events": lists.events}[self._page]
            listing = made(self.fleet, now, width, self.signs)
            listing = listing.filtered(self._words.get(self._page, ""))
            note = self.query_one(f"#{self._page}-note", Static)
            note.update("" if listing.rows else listing.note)
            note.display = not listing.rows
            self.query_one(f"#{self._page}-table", Table).show(listing)

    def _overview(self, now: float, width: int) -> Listing:
        rows = [
            Row(state, service, self.fleet.books, now)
            for state in self.fleet.states()
            for service in [s.name for s in state.spec.services] or [""]
        ]
        routers = [RouterRow(r, now) for r in self.fleet.routers.values()]
        if words := self._words.get("hosts"):
            rows = [r for r in rows if matches(r, words)]
            routers = [r for r in routers if r.matches(words)]
        tags = {"project": 0, "lab": 6, "shipped": 10}
        names = [s.name + " " * tags.get(s.origin, 0) for s in self.source.hosts]
        columns = columns_for(width - 1, names)
        heads = [(c.head, c.width) for c in columns]
        lines = [(trouble(r), r.key, [c.make(r) for c in columns]) for r in rows]
        lines += [(r.trouble, r.key, r.cells(columns)) for r in routers]
        if self._by_trouble:
            lines.sort(key=lambda line: line[0], reverse=True)
        return Listing(heads, [(key, cells) for _, key, cells in lines])

    def _head(self, now: float) -> Text:
        words = [reach_word(s, now) for s in self.fleet.states()]
        dot = f" {self.signs.dot} "
        parts = [f"ddops board{dot}{len(words)} hosts"]
        parts += [f"{words.count(w)} {w}" for w in ("up", "silent", "no answer", "asking")
                  if w in words]  # fmt: skip
        if many := len(self.fleet.routers):
            bad = in_need(list(self.fleet.routers.values()), now)
            parts.append(f"{many} router{'s' * (many > 1)}" + (f", {bad} not well" if bad else ""))
        text = Text(dot.join(parts), no_wrap=True, overflow="ellipsis")
        if any(s.spec.simulated for s in self.fleet.states()):
            text.append(f"{dot}simulated", "yellow")
        if self.source.label:
            text.append(f"{dot}{self.source.label}", "bold yellow")
        text.append(f"{dot}write" if self.write_allowed else f"{dot}read-only",
                    "bold red" if self.write_allowed else "dim")  # fmt: skip
        return text

    def _foot(self) -> Text:
        words = hints(self._page, self._words.get(self._page, ""), write=self.write_allowed)
        return Text(words, "dim", no_wrap=True, overflow="ellipsis")

    # ---- keys

    def action_page(self, name: str) -> None:
        if name == "host" and self._page == "hosts":
            self._choose_host()
        self._page = name
        self.query_one("#pages", ContentSwitcher).current = name
        place = {"hosts": "#hosts", "host": "#host"}.get(name, f"#{name}-table")
        self.set_focus(self.query_one(place))
        self.draw()

    def _choose_host(self) -> None:
        key = self.query_one("#hosts", Table).current
        if key is not None:
            self._host = key.partition("/")[0]

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "hosts":
            self.action_page("host")

    def action_leave(self) -> None:
        box = self.query_one("#filter", Input)
        if box.display:
            self._close_filter(keep=False)
        elif self._page != "hosts":
            self.action_page("hosts")
        elif self._words.pop("hosts", ""):
            self.draw()

    def action_step(self, by: int) -> None:
        """On a host's page: the host before, or after it."""
        names = [*self.fleet.hosts, *self.fleet.routers]
        if self._page == "host" and self._host in names:
            self._host = names[(names.index(self._host) + by) % len(names)]
            self.query_one("#host", Pane).scroll_home(animate=False)
            self.draw()

    def action_sort(self) -> None:
        """Trouble first, or the order of the inventory."""
        self._by_trouble = not self._by_trouble
        self.draw()

    def action_look_again(self) -> None:
        if self._page == "hosts":
            self._choose_host()
        self.source.look_now(self._host)
        self.notify(f"asking {self._host} again, its drift too", timeout=3)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In a text, and over a question, a slash is a slash."""
        busy = isinstance(self.focused, Input) or len(self.screen_stack) > 1
        return not (action == "filter" and busy)

    def action_filter(self) -> None:
        if self._page == "host":
            return
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = self._words.get(self._page, "")
        self.set_focus(box)  # now, not soon: the next keys are already on their way

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self._words[self._page] = event.value
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            self._close_filter(keep=True)

    def _close_filter(self, *, keep: bool) -> None:
        if not keep:
            self._words.pop(self._page, None)
        self.query_one("#filter", Input).display = False
        self.action_page(self._page)

    def action_help(self) -> None:
        self.push_screen(Help(help_text(write=self.write_allowed)))

    # ---- the palette and actions

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette(placeholder="a page, a host, an action"))

    def commands(self) -> Iterable[tuple[str, Callable[[], object], str]]:
        for name in PAGES:
            yield name, partial(self.action_page, name), f"the page of {name}"
        yield "quit", self.exit, "leave the board"
        yield "look again", self.action_look_again, "ask the host that is chosen, now"
        for host in self.fleet.hosts:
            yield f"host {host}", partial(self.open_host, host), "its page"
        for key, router in self.fleet.routers.items():
            yield f"router {router.spec.name}", partial(self.open_host, key), "its page"
        if self.write_allowed:
            for action in ACTIONS:
                yield action.title.lower(), partial(self.action_act, action.key), action.effect

    def open_host(self, host: str) -> None:
        self._host = host
        self._page = ""
        self.action_page("host")

    def action_act(self, key: str) -> None:
        if not self.write_allowed:
            why = "a recording" if self.source.label else "open it with --write"
            self.notify(f"this board is read-only: {why}", severity="warning", timeout=4)
            return
        if self._page == "hosts":
            self._choose_host()
        if self._host in self.fleet.routers:
            why = "it is deployed with its replicas"
            self.notify(f"no action here is for a router: {why}", severity="warning", timeout=4)
            return
        action, host = next(a for a in ACTIONS if a.key == key), self._host
        if not action.destructive:
            self._do(action, host)
            return

        def answered(sure: bool | None) -> None:
            if sure:
                self._do(action, host)

        self.push_screen(Confirm(action, host), answered)

    def _do(self, action: Action, host: str) -> None:
        def tell(event: Event) -> None:
            self.fleet.events.append(event)  # a deque: threads may append, the next tick draws

        actions.run(action.argv(host), host, self._project, tell, self.source.now)
        self.action_page("events")
