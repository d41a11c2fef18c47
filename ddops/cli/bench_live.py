"""On a terminal: a bar with the time left, and the table of runs as they end. Elsewhere: lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ddops.events import Event, Reporter, TextReporter

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from rich.console import Console
    from rich.table import Table

    from ddops.bench.runner import Measured
    from ddops.cli.app import App

#: Rows that the live table shows; all of them stand in the table at the end.
SHOWN = 12


class View:
    """Lines: what a log file or a pipe gets."""

    def __init__(self, app: App) -> None:
        self.app = app

    def total(self, runs: int) -> None:
        """How many runs there will be more."""

    def close(self) -> None:
        """Nothing more is shown live."""

    def ended(self, measured: Measured, n: int, of: int, left: str) -> None:
        """One run is stored."""
        words = f"{n}/{of} {measured.label} run {measured.repeat}"
        if measured.reason:
            self.app.warn(f"{words}: {measured.status.value}: {measured.reason}{left}")
        else:
            self.app.say(f"{words}: {figures(measured)}{left}")
        self.warnings(measured)

    def warnings(self, measured: Measured) -> None:
        for warning in measured.warnings:
            self.app.warn(f"{measured.label}: {warning}")


class Switch:
    """A reporter that can be pointed elsewhere: others may hold it already."""

    def __init__(self, to: Reporter) -> None:
        self.to = to

    def emit(self, event: Event) -> None:
        self.to.emit(event)


class Live(View):
    """A bar and a table that stay at the bottom; what is reported is printed above them.

    They appear with the first `total`: before it, a question may be asked.
    """

    def __init__(self, app: App, console: Console, switch: Switch) -> None:
        from rich.live import Live as RichLive
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        super().__init__(app)
        self.switch = switch
        self.rows: list[Measured] = []
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console,
        )  # fmt: skip
        self.task = self.bar.add_task("measuring", total=0)
        self.live = RichLive(console=console, refresh_per_second=4, transient=True)

    def close(self) -> None:
        self.live.stop()

    def total(self, runs: int) -> None:
        if not self.live.is_started:
            self.live.start()
            # rich has put itself in the place of stderr, so this lands above the table.
            self.switch.to = TextReporter(sys.stderr, self.app.redactor)
        known = self.bar.tasks[0].total or 0
        self.bar.update(self.task, total=known + runs)
        self._draw()

    def ended(self, measured: Measured, n: int, of: int, left: str) -> None:
        self.rows.append(measured)
        self.bar.advance(self.task)
        self.warnings(measured)
        self._draw()

    def _draw(self) -> None:
        from rich.console import Group

        self.live.update(Group(self._table(), self.bar))

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in ("CELL", "N", "STATUS", "TOK/S", "WHY"):
            table.add_column(name, overflow="ellipsis", no_wrap=True)
        for m in self.rows[-SHOWN:]:
            why = self.app.redactor(m.reason)
            table.add_row(m.label, str(m.repeat), m.status.value, figures(m), why)
        return table


def figures(measured: Measured) -> str:
    """Throughput and commit length; nothing for a run that does not count."""
    numbers = measured.numbers
    if numbers is None or measured.reason:
        return ""
    commit = f", commit {numbers.commit.length:.2f}" if numbers.commit else ""
    value = "-" if numbers.output_tps is None else f"{numbers.output_tps:.1f}"
    return f"{value} tok/s{commit}"


@contextmanager
def view(app: App) -> Iterator[View]:
    """The way to show runs that fits where stderr goes."""
    if not sys.stderr.isatty() or app.quiet:
        yield View(app)
        return
    from rich.console import Console

    before = app.report
    app.report = switch = Switch(before)
    made = Live(app, Console(stderr=True), switch)
    try:
        yield made
    finally:
        made.close()
        app.report = before
