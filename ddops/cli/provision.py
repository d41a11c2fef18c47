"""`ddops provision`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, confirm, targets, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from pathlib import Path

    from ddops.cli.app import App
    from ddops.deploy.stop import Stop
    from ddops.inventory import Host
    from ddops.plan import Plan, Step
    from ddops.transport import Transport

SHOWN_LINES = 6
_SIGN = {"none": " ", "create": "+", "update": "~", "unknown": "?"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """One host with its steps and the plan made of them."""

    transport: Transport
    steps: list[Step]
    plan: Plan


@click.command()
@targets(required=True)
@click.option("--dry-run", is_flag=True, help="Show the plan, change nothing.")
@click.option("--diff", is_flag=True, help="Show whole diffs.")
@click.option("--exit-code", is_flag=True, help="With --dry-run: exit 8 when changes are pending.")
@click.option("--lock-wait", type=float, default=0.0, metavar="SECONDS", help="Wait for the lock.")
@yes
@as_json
@click.pass_obj
def provision(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    dry_run: bool,
    diff: bool,
    exit_code: bool,
    lock_wait: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Prepare hosts: folders, engine environment, weights, supervisor.

    Shows the plan, then does exactly that. Run again after a failure: what is done stays done.

    \b
    ddops provision lab
    ddops provision b300 --dry-run
    """
    import tempfile
    from pathlib import Path

    from ddops.cli.app import end_together
    from ddops.cli.output import emit_json
    from ddops.deploy.stop import Stop, on_interrupt
    from ddops.errors import PendingError

    hosts = app.select(target, limit, exclude).hosts
    with tempfile.TemporaryDirectory(prefix="ddops-") as scratch:
        outcomes = app.fan_out(hosts, lambda h: _prepare(app, h, Path(scratch) / h.name))
        ready = [(h, p) for h, p in outcomes if isinstance(p, Prepared)]
        if as_json:
            emit_json("plan", [_plan_json(p.plan) for _, p in ready])
        else:
            for _, prepared in ready:
                show(prepared.plan, diff=diff)
        if dry_run:
            end_together([(h.name, p) for h, p in outcomes], app.report)
            if exit_code and any(p.plan.pending for _, p in ready):
                raise PendingError("changes are pending", next="the same without --dry-run")
            return
        work = [(h, p) for h, p in ready if p.plan.pending]
        if work and not all(h.origin.kind == "lab" for h, _ in work):
            confirm(f"Change {', '.join(h.name for h, _ in work)}?", yes)
        stop = Stop()
        with on_interrupt(stop, app.warn):
            done = app.fan_out(work, lambda hp: _apply(app, hp[0], hp[1], lock_wait, stop))
        for (host, _), count in done:
            if isinstance(count, int):
                app.say(f"{count} steps done", host.name)
        for host, prepared in ready:
            if not prepared.plan.pending:
                app.say("nothing to do", host.name)
        failed = [(h.name, p) for h, p in outcomes if isinstance(p, Exception)]
        end_together([*failed, *((h.name, c) for (h, _), c in done)], app.report)


def _prepare(app: App, host: Host, workdir: Path) -> Prepared:
    from ddops.inventory import services_on
    from ddops.plan import make_plan
    from ddops.provision import Provision

    transport = app.transport(host)
    services = services_on(app.inventory, host)
    steps = Provision(transport, host, services, app.lookup, workdir).steps()
    return Prepared(transport, steps, make_plan(host.name, steps))


def _apply(app: App, host: Host, prepared: Prepared, lock_wait: float, stop: Stop) -> int:
    import json
    import secrets

    from ddops import lock
    from ddops.clock import SystemClock
    from ddops.command import sh
    from ddops.errors import CommandFailed
    from ddops.layout import HostLayout
    from ddops.plan import apply_plan

    layout, clock = HostLayout(host.engine_dir), SystemClock()
    op_id = f"{clock.now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    owner = lock.owner(op_id, f"provision {prepared.plan.digest[:12]}", clock)

    def journal(step: str, state: str) -> None:
        row = {"at": clock.now().isoformat(timespec="seconds"), "op": op_id, "step": step,
               "state": state}  # fmt: skip
        line = (json.dumps(row) + "\n").encode()
        done = prepared.transport.run(sh('umask 077; cat >> "$1"', layout.journal).with_stdin(line))
        if not done.ok:
            raise CommandFailed(f"{host.name}: no journal", rc=done.rc, stderr=done.err)

    with lock.holding(prepared.transport, layout, owner, wait_s=lock_wait):
        return apply_plan(
            prepared.plan, prepared.steps, report=app.report, journal=journal,
            stopped=lambda: stop.asked,
        )  # fmt: skip


def show(plan: Plan, *, diff: bool) -> None:
    """The plan as text: one line a step, its diff below."""
    from ddops.cli.output import emit_line

    emit_line(f"{plan.host}: {plan.pending} of {len(plan.rows)} steps pending")
    for _, title, proposal in plan.rows:
        emit_line(f"  {_SIGN[proposal.change.value]} {title}")
        lines = proposal.lines if diff else proposal.lines[:SHOWN_LINES]
        for line in lines:
            emit_line(f"      {line if diff or len(line) <= 90 else line[:87] + '...'}")
        if len(lines) < len(proposal.lines):
            emit_line(f"      ... {len(proposal.lines) - len(lines)} more lines, see --diff")


def _plan_json(plan: Plan) -> dict[str, object]:
    return {
        "host": plan.host,
        "digest": plan.digest,
        "pending": plan.pending,
        "steps": [
            {"id": i, "title": t, "change": p.change.value, "lines": list(p.lines)}
            for i, t, p in plan.rows
        ],
    }
