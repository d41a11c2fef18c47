"""`ddops board`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ddops.cli.options import targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.board.fleet import Heard
    from ddops.board.poller import Poller
    from ddops.board.source import Source
    from ddops.cli.app import App

_FILE = click.Path(dir_okay=False)


@click.command()
@targets(required=False)
@click.option("--write", is_flag=True, help="Allow actions; a destructive one wants a name typed.")
@click.option("--record", type=_FILE, metavar="FILE", help="Keep what is heard, redacted.")
@click.option("--replay", type=_FILE, metavar="FILE", help="Show a recording; ask no host.")
@click.option("--demo", is_flag=True, help="Show the recorded fleet that ddops brings along.")
@click.option("--ascii", "plain", is_flag=True, help="Draw with ASCII signs alone.")
@click.pass_obj
def board(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    write: bool,
    record: str | None,
    replay: str | None,
    demo: bool,
    plain: bool,
) -> None:
    """A live view of hosts, runs and tasks. Without TARGET: your hosts, and the lab's.

    It shows what was observed, each value with its age. It changes nothing without --write.

    \b
    ddops board
    ddops board lab --write
    ddops board --demo
    """
    import sys

    from ddops.errors import UsageError

    if sum((bool(replay), demo, bool(target))) > 1 or (record and (replay or demo)):
        raise UsageError("a recording is shown by itself", next="ddops board --demo")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("the board needs a terminal", next="ddops status --watch")
    source = (
        _replayed(app, replay) if replay or demo else _live(app, target, limit, exclude, record)
    )
    from ddops.board.app import Board

    root = "" if source.label else str(app.project.root)
    Board(source, project=root, write=write, plain=plain or not _unicode(sys.stderr)).run()


def _unicode(stream: object) -> bool:
    """Whether the terminal's encoding has the signs that are drawn."""
    try:
        "━▁".encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _replayed(app: App, file: str | None) -> Source:
    from pathlib import Path

    from ddops.board.recording import Replay, read_recording
    from ddops.board.source import Replayed

    path = Path(file) if file else app.lookup("lab/hosts/demo-fleet.jsonl.gz")
    label = f"replay of {path.name}" if file else "demo: a recording"
    return Replayed(Replay(read_recording(path)), label)


def _live(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    record: str | None,
) -> Source:
    import time
    from pathlib import Path

    from ddops.board.fleet import Fleet, Kind
    from ddops.board.poller import Poller
    from ddops.board.recording import Recorder
    from ddops.board.source import Live
    from ddops.cli.watching import read_books, watched, watched_routers

    watches = watched(app, target, limit, exclude)
    hosts = [w.spec for w in watches]
    routers = watched_routers(app, watches, target)
    behind = [r.spec for r in routers]
    recorder = Recorder(Path(record), hosts, time.time(), behind) if record else None
    # The ledger is asked for the server starts that were seen, so its thread keeps the looks too.
    known = Fleet.of(hosts, behind)

    def make(tell: Callable[[Heard], None]) -> Poller:
        def both(heard: Heard) -> None:
            if heard.kind is not Kind.BOOKS:
                known.apply(heard)
            tell(heard)

        return Poller([*watches, *routers], read_books(app, known), both, app.redactor)

    return Live(hosts, make, recorder, behind)
