"""`ddops rollback`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, confirm, lock_wait_option, targets, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.inventory import Host, Service


@click.command()
@targets(required=True)
@click.option("--to", metavar="DIGEST", help="This release, by its first 4 or more digits.")
@click.option("--dry-run", is_flag=True, help="Say what it would go back to; touch nothing.")
@lock_wait_option
@yes
@as_json
@click.pass_obj
def rollback(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    to: str | None,
    dry_run: bool,
    lock_wait: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Go back to the last other release that passed its gates on a host.

    It needs no name: the host knows what it served. The way back is gated as every start is; when
    it fails, what served before comes back, and the exit code is 6.

    \b
    ddops rollback b300
    ddops rollback b300 --to 7feb09fa
    """
    from ddops.cli.app import end_together
    from ddops.cli.deploy import emit_outcomes, in_parties, tools_of, whole
    from ddops.deploy import Stop, on_interrupt, roll_back
    from ddops.deploy.rendered import refuse_kubernetes
    from ddops.inventory import one_service_per_host

    pairs = one_service_per_host(app.select(target, limit, exclude))
    refuse_kubernetes((s for _, s in pairs), "kubectl rollout undo deployment/{service}")
    whole(pairs)
    if dry_run:
        _dry_run(app, pairs, to, as_json)
        return
    if not all(h.origin.kind == "lab" for h, _ in pairs):
        confirm(f"Roll back {', '.join(f'{s.name} on {h.name}' for h, s in pairs)}?", yes)
    stop = Stop()
    tools = tools_of(app, stop, lock_wait)
    with on_interrupt(stop, app.warn):
        shared = in_parties(pairs, tools)
        plain = [p for p in pairs if p[1].router is None]
        outcomes = app.fan_out(
            sorted(plain, key=lambda p: p[1].name),
            lambda p: roll_back(app.transport(p[0]), *p, to, shared[p[1].name]),
            least=max((s.hosts_of_one for _, s in plain), default=1),
        )
        for one in pairs:  # behind a router: each when the one before it serves again
            if one[1].router is not None and not any(isinstance(o, Exception) for _, o in outcomes):
                outcomes += app.fan_out(
                    [one], lambda p: roll_back(app.transport(p[0]), *p, to, tools)
                )
    emit_outcomes([(h, s, o) for (h, s), o in outcomes], as_json)
    end_together([(h.name, o) for (h, _), o in outcomes], app.report)


def _dry_run(
    app: App, pairs: Sequence[tuple[Host, Service]], to: str | None, as_json: bool
) -> None:
    from ddops.cli.app import end_together
    from ddops.cli.output import emit_json, emit_table
    from ddops.model import short

    outcomes = app.fan_out(pairs, lambda p: _choice(app, *p, to))
    rows = [(h.name, s.name, *o) for (h, s), o in outcomes if not isinstance(o, Exception)]
    if as_json:
        keys = ("host", "service", "current", "to")
        emit_json("rollback-plan", [dict(zip(keys, row, strict=True)) for row in rows])
    elif rows:
        shown = [(h, s, short(now) if now else "-", short(to)) for h, s, now, to in rows]
        emit_table(("HOST", "SERVICE", "CURRENT", "WOULD GO BACK TO"), shown)
    end_together([(h.name, o) for (h, _), o in outcomes], app.report)


def _choice(app: App, host: Host, service: Service, to: str | None) -> tuple[str | None, str]:
    from ddops.deploy import look_back
    from ddops.deploy.host import ServiceOnHost
    from ddops.deploy.run import port_of

    port = port_of(host, service)
    found = look_back(
        ServiceOnHost(app.transport(host), host, service, port, app.lookup, app.redactor)
    )
    return found.current, found.choose(host.name, to)
