"""`ddops lock`: who is at work on a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.inventory import Host
    from ddops.lock import Held


@click.group()
def lock() -> None:
    """The lock lies on the host itself, so that every operator sees it."""


@lock.command("status")
@targets(required=True)
@as_json
@click.pass_obj
def status(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
) -> None:
    """Who holds the lock, and since when.

    \b
    ddops lock status b300
    """
    from ddops import lock as locks
    from ddops.cli.app import end_together
    from ddops.cli.output import emit_json, emit_table
    from ddops.layout import HostLayout

    hosts = app.select(target, limit, exclude).hosts
    outcomes = app.fan_out(hosts, lambda h: locks.read(app.transport(h), HostLayout(h.engine_dir)))
    seen = [(h, o) for h, o in outcomes if not isinstance(o, Exception)]
    if as_json:
        emit_json("lock", [{"host": h.name, "held": _public(o)} for h, o in seen])
    else:
        emit_table(("HOST", "LOCK"), [(h.name, o.describe() if o else "free") for h, o in seen])
    end_together([(h.name, o) for h, o in outcomes], app.report)


@lock.command("release")
@targets(required=True)
@click.option("--stale", is_flag=True, help="Release a lock whose owner has stopped beating.")
@click.option("--force", is_flag=True, help="Release it whoever holds it.")
@click.pass_obj
def release(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    stale: bool,
    force: bool,
) -> None:
    """Take a lock away. Only a stale one, and only when asked; `--force` for the rest.

    \b
    ddops lock release b300 --stale
    """
    from ddops.cli.app import end_together

    hosts = app.select(target, limit, exclude).hosts
    outcomes = app.fan_out(hosts, lambda h: _release(app, h, stale, force))
    for host, outcome in outcomes:
        if isinstance(outcome, str):
            app.say(outcome, host.name)
    end_together([(h.name, o) for h, o in outcomes], app.report)


def _release(app: App, host: Host, stale: bool, force: bool) -> str:
    from ddops import lock as locks
    from ddops.errors import LockHeldError
    from ddops.layout import HostLayout

    transport, layout = app.transport(host), HostLayout(host.engine_dir)
    held = locks.read(transport, layout)
    if held is None:
        return "was free"
    if not (force or (stale and held.stale)):
        raise LockHeldError(
            f"{host.name}: held by {held.describe()}",
            why="its owner is at work"
            if not held.stale
            else "it is stale, but --stale was not said",
            next=f"ddops lock release {host.name} {'--stale' if held.stale else '--force'}",
        )
    # The token makes sure that what is released is what was looked at.
    locks.release(transport, layout, token=held.owner.token if held.owner else "")
    return f"released; it was held by {held.describe()}"


def _public(held: Held | None) -> dict[str, object] | None:
    """All but the token, which is what lets a run call a lock its own."""
    from dataclasses import asdict

    if held is None:
        return None
    owner = {k: v for k, v in asdict(held.owner).items() if k != "token"} if held.owner else None
    return {"owner": owner, "age_s": held.age_s, "stale": held.stale}
