"""`ddops status`: observed values only, each with its age; the board's model without the board."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.board.fleet import Fleet
    from ddops.board.model import HostState, ServiceSpec
    from ddops.board.watch import HostWatch, LostRouter, RouterWatch

    Routers = Sequence[RouterWatch | LostRouter]
    from ddops.cli.app import App


@click.command()
@targets(required=False)
@as_json
@click.option("--watch", is_flag=True, help="Look again every 5 s, until Ctrl-C.")
@click.pass_obj
def status(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
    watch: bool,
) -> None:
    """What runs where, as observed just now. Without TARGET: your hosts, and the lab's.

    HEALTH is /health asked on the host itself, on a port that our own process holds.
    A service's router has a line for each replica, as the router itself has it.

    \b
    ddops status
    ddops status lab --json
    ddops status --watch
    """
    from ddops.cli.watching import watched, watched_routers

    watches = watched(app, target, limit, exclude, once=not watch)
    routers = watched_routers(app, watches, target, once=not watch)
    wanted = _wanted(app, target, watches, routers)
    if watch:
        _watch(app, watches, routers, wanted, as_json)
    else:
        _once(app, watches, routers, wanted, as_json)


def _wanted(
    app: App, target: Sequence[str], watches: Sequence[HostWatch], routers: Routers
) -> set[str]:
    """Names of the services to show: a service that was named as a target stands alone."""
    from ddops.errors import UsageError

    chosen = app.select(target).services if target else app.inventory.services.values()
    names = {s.name for s in chosen}
    if not routers and not any(s.name in names for w in watches for s in w.services):
        raise UsageError("no service is meant for these hosts", next="see inventory/services")
    return names


def _once(
    app: App,
    watches: Sequence[HostWatch],
    routers: Routers,
    wanted: set[str],
    as_json: bool,
) -> None:
    import time

    from ddops.board.fleet import Fleet, Heard, Kind
    from ddops.cli.app import end_together
    from ddops.cli.watching import read_books

    fleet = Fleet.of((w.spec for w in watches), (r.spec for r in routers))
    asked: list[HostWatch | RouterWatch | LostRouter] = [*watches, *routers]
    outcomes = app.fan_out(asked, _look)
    for one, outcome in outcomes:
        failed = isinstance(outcome, Exception)
        payload = {"error": str(outcome)} if isinstance(outcome, Exception) else outcome
        kind = Kind.ERROR if failed else Kind.LOOK
        clean = app.redactor.tree(payload)
        fleet.apply(Heard(time.time(), one.name, kind, clean if isinstance(clean, dict) else {}))
    if as_json:  # the table shows nothing of the ledger
        fleet.apply(Heard(time.time(), "", Kind.BOOKS, read_books(app, fleet)()))
    _emit(fleet, wanted, as_json)
    where = {r.name: r.spec.host for r in routers}
    failed_hosts = {w.name for w, o in outcomes if isinstance(o, Exception)}
    # A host that failed is named once, whatever else of it was asked.
    told = [
        (where.get(w.name, w.name), o) for w, o in outcomes
        if where.get(w.name) not in failed_hosts
    ]  # fmt: skip
    end_together(told, app.report)


def _look(one: HostWatch | RouterWatch | LostRouter) -> dict[str, Any]:
    """One look, and the connection closed: those of a whole fleet are too many to keep."""
    try:
        return one.look()
    finally:
        one.close()


def _pairs(fleet: Fleet, wanted: set[str]) -> list[tuple[HostState, ServiceSpec]]:
    return [(h, s) for h in fleet.states() for s in h.spec.services if s.name in wanted]


def _emit(fleet: Fleet, wanted: set[str], as_json: bool) -> None:
    import time

    from ddops.board import report
    from ddops.board import routers as behind
    from ddops.cli.output import emit_json, emit_table

    pairs, now = _pairs(fleet, wanted), time.time()
    if as_json:
        rows = [report.document(h, s, fleet.books, now) for h, s in pairs]
        emit_json("status", [*rows, *(behind.document(r, now) for r in fleet.routers.values())])
        return
    if pairs:
        emit_table(report.HEADER, [report.row(h, s, now) for h, s in pairs])
    for n, router in enumerate(fleet.routers.values()):
        if pairs or n:
            click.echo()
        emit_table(behind.HEADER, behind.rows(router, now))


def _watch(
    app: App,
    watches: Sequence[HostWatch],
    routers: Routers,
    wanted: set[str],
    as_json: bool,
) -> None:
    """Show the fleet again and again, in place on a terminal. A slow host is waited for by none."""
    import queue
    import sys
    import time

    from ddops.board.fleet import Fleet, Heard
    from ddops.board.model import EVERY_S
    from ddops.board.poller import Poller
    from ddops.cli.streams import reader_gone
    from ddops.cli.watching import read_books

    fleet = Fleet.of((w.spec for w in watches), (r.spec for r in routers))
    heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
    poller = Poller([*watches, *routers], read_books(app, fleet), heard.put, app.redactor)
    poller.start()
    in_place = sys.stdout.isatty() and not as_json
    shown = time.monotonic() + 1.0  # a moment for the first answers
    try:
        while True:
            while not heard.empty():
                fleet.apply(heard.get())
            if time.monotonic() >= shown:
                if in_place:
                    click.echo("\x1b[H\x1b[2J", nl=False)
                _emit(fleet, wanted, as_json)
                sys.stdout.flush()
                if reader_gone():
                    return
                shown += EVERY_S
            time.sleep(0.1)
    finally:
        poller.stop()
