"""`ddops provision`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, confirm, lock_wait_option, targets, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from pathlib import Path

    from ddops.cli.app import App
    from ddops.deploy.stop import Stop
    from ddops.inventory import Host
    from ddops.plan import Plan
    from ddops.provision.apply import Prepared


@dataclass(frozen=True, slots=True)
class Shown:
    """How a plan is told."""

    as_json: bool
    diff: bool
    exit_code: bool


@click.command()
@targets(required=False)
@click.option("--dry-run", is_flag=True, help="Show the plan, change nothing.")
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Do exactly what ddops plan --out wrote; refused when a host has moved on.",
)
@click.option("--undo", is_flag=True, help="Take back what the host's setup changed.")
@click.option("--diff", is_flag=True, help="Show whole diffs.")
@click.option("--exit-code", is_flag=True, help="With --dry-run: exit 8 when changes are pending.")
@lock_wait_option
@yes
@as_json
@click.pass_obj
def provision(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    dry_run: bool,
    plan_file: str | None,
    undo: bool,
    diff: bool,
    exit_code: bool,
    lock_wait: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Prepare hosts: their setup, folders, engine environment and code, weights, supervisor.

    Shows the plan, then does exactly that. Run again after a failure: what is done stays done.
    With --undo what setup/*.toml changed goes back to what was there before, unless somebody has
    changed it since.

    \b
    ddops provision lab
    ddops provision b300 --dry-run
    ddops provision --plan plan.json
    """
    from ddops.cli.plan import planned_targets

    if undo:
        from ddops.cli.provision_undo import undo as undo_hosts
        from ddops.errors import UsageError

        if plan_file:
            raise UsageError("a plan is applied, not undone", next="ddops provision HOST --undo")
        chosen = app.select(target, limit, exclude).hosts
        undo_hosts(app, chosen, dry_run=dry_run, lock_wait=lock_wait, yes=yes, as_json=as_json)
        return
    kept = planned_targets(plan_file, target) if plan_file else {}
    hosts = app.select(tuple(kept) or target, limit, exclude).hosts
    shown = Shown(as_json, diff, exit_code)
    _go(app, hosts, kept, shown, dry_run=dry_run, lock_wait=lock_wait, yes=yes)


def _go(
    app: App,
    hosts: Sequence[Host],
    kept: Mapping[str, Mapping[str, str]],
    shown: Shown,
    *,
    dry_run: bool,
    lock_wait: float,
    yes: bool,
) -> None:
    """Plan, show, and do exactly that."""
    import tempfile
    from pathlib import Path

    from ddops.cli.app import end_together
    from ddops.cli.plan import agreed, show_plans
    from ddops.provision.apply import Prepared

    with tempfile.TemporaryDirectory(prefix="ddops-") as scratch:
        outcomes = app.fan_out(
            hosts, lambda h: agreed(prepare(app, h, Path(scratch) / h.name), kept.get(h.name))
        )
        ready = [(h, p) for h, p in outcomes if isinstance(p, Prepared)]
        show_plans([p.plan for _, p in ready], as_json=shown.as_json, diff=shown.diff)
        if dry_run:
            end_together([(h.name, p) for h, p in outcomes], app.report)
            refuse_pending([p.plan for _, p in ready], shown.exit_code)
            return
        work = [(h, p) for h, p in ready if p.plan.pending]
        if work and not all(h.origin.kind == "lab" for h, _ in work):
            confirm(f"Change {', '.join(h.name for h, _ in work)}?", yes)
        done = _apply_all(app, work, lock_wait) if work else []
        for (host, _), count in done:
            if isinstance(count, int):
                app.say(f"{count} steps done", host.name)
        for host, prepared in ready:
            if not prepared.plan.pending:
                app.say("nothing to do", host.name)
        failed = [(h.name, p) for h, p in outcomes if isinstance(p, Exception)]
        end_together([*failed, *((h.name, c) for (h, _), c in done)], app.report)


def _apply_all(
    app: App, work: Sequence[tuple[Host, Prepared]], lock_wait: float
) -> list[tuple[tuple[Host, Prepared], int | Exception]]:
    # Only here: it brings the ledger with it, which nothing needs where nothing is to do.
    from ddops.deploy.stop import Stop, on_interrupt

    stop = Stop()
    with on_interrupt(stop, app.warn):
        return app.fan_out(work, lambda hp: _apply(app, hp[0], hp[1], lock_wait, stop))


def prepare(app: App, host: Host, workdir: Path) -> Prepared:
    from ddops.inventory import services_on
    from ddops.inventory.router import routers_on
    from ddops.provision.apply import plan_host

    services, routes = services_on(app.inventory, host), bool(routers_on(app.inventory, host))
    return plan_host(app.transport(host), host, services, app.lookup, workdir, routes=routes)


def _apply(app: App, host: Host, prepared: Prepared, lock_wait: float, stop: Stop) -> int:
    from ddops.clock import SystemClock
    from ddops.provision.apply import do_plan

    return do_plan(
        prepared, host, report=app.report, clock=SystemClock(), stopped=lambda: stop.asked,
        lock_wait_s=lock_wait,
        pause=stop.pause,
    )  # fmt: skip


def refuse_pending(plans: Sequence[Plan], asked: bool) -> None:
    from ddops.errors import PendingError

    if asked and any(p.pending for p in plans):
        raise PendingError("changes are pending", next="ddops provision")
