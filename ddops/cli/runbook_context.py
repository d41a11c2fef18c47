"""What a runbook is given, made of the program's own parts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from ddops.cli.app import App
from ddops.runbook.context import Context

if TYPE_CHECKING:
    from ddops.deploy import Stop
    from ddops.inventory import Host
    from ddops.ledger import Ledger
    from ddops.snapshot import Tools
    from ddops.transport import Transport


def context_of(
    app: App, stop: Stop, ledger: Callable[[], AbstractContextManager[Ledger]] | None = None
) -> Context:
    """`ledger` stands in for the project's own where nothing may be written."""
    from ddops.clock import SystemClock
    from ddops.deploy import Settings

    s = app.settings
    return Context(
        root=app.project.root,
        state=app.project.state,
        inventory=app.inventory,
        settings=Settings(s.load_budget_s, s.ready_quiet_s, s.keep_releases, s.gate_timeout_s),
        policy=app.policy,
        transport=_one_each(app),
        ssh_target=app.ssh_target,
        lookup=app.lookup,
        ledger=ledger or app.ledger,
        open_ledger=app.ledger,
        resolve=app.resolve,
        snapshots=lambda host: _snapshots(app, host),
        redactor=app.redactor,
        report=app.report,
        clock=SystemClock(),
        stop=stop,
        confirm=_asker(),
    )


def _one_each(app: App) -> Callable[[Host], Transport]:
    """One connection a host, not one for every look."""
    made: dict[str, Transport] = {}

    def transport(host: Host) -> Transport:
        if host.name not in made:
            made[host.name] = app.transport(host)
        return made[host.name]

    return transport


def _snapshots(app: App, host: Host) -> Tools:
    from ddops.cli.backups import tools_for

    return tools_for(app, host)


def _asker() -> Callable[[str], bool] | None:
    """Asks the person at the terminal; None where there is none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return lambda words: click.confirm(f"{words}\nApprove this?", err=True)
