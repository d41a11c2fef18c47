"""`ddops drift`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.deploy import Row
    from ddops.inventory import Host, Service


@click.command()
@targets(required=True)
@as_json
@click.option("--all", "everything", is_flag=True, help="Show what is the same, too.")
@click.pass_obj
def drift(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
    everything: bool,
) -> None:
    """Does a host still run what was released there?

    Holds the running command line and environment, the staged files, the engine's own code and
    what the inventory would deploy now against the release. Exit 8 when something differs or
    cannot be seen, on one of the hosts or on all; 9 when some of them could not be asked.

    \b
    ddops drift b300
    ddops drift lab --json
    """
    from ddops.cli.output import emit_json, emit_line, emit_table
    from ddops.cli.verdicts import end_verdicts
    from ddops.deploy import Same
    from ddops.deploy.rendered import refuse_kubernetes
    from ddops.errors import PendingError
    from ddops.inventory import one_service_per_host

    pairs = one_service_per_host(app.select(target, limit, exclude))
    refuse_kubernetes((s for _, s in pairs), "kubectl diff -f DIR, of rendered manifests")
    outcomes = app.fan_out(pairs, lambda p: _rows(app, *p))
    seen = [(h, s, o) for (h, s), o in outcomes if not isinstance(o, Exception)]
    if as_json:
        emit_json(
            "drift",
            [
                {"host": h.name, "service": s.name, "what": r.what, "recorded": r.recorded,
                 "observed": r.observed, "verdict": r.verdict.value}
                for h, s, rows in seen
                for r in rows
            ],
        )  # fmt: skip
    else:
        shown = [
            (h.name, s.name, r.verdict.value, r.what, r.recorded, r.observed)
            for h, s, rows in seen
            for r in rows
            if everything or r.verdict is not Same.YES
        ]
        header = ("HOST", "SERVICE", "VERDICT", "WHAT", "RECORDED", "OBSERVED")
        if shown:
            emit_table(header, shown, wrapping=2)
        for h, s, rows in seen:
            if all(r.verdict is Same.YES for r in rows):
                emit_line(f"{h.name}: {s.name}: no drift, {len(rows)} things looked at")
    ends = [(h.name, _outcome(h, s, o)) for (h, s), o in outcomes]
    end_verdicts(ends, app.report, PendingError, "drifted")


def _rows(app: App, host: Host, service: Service) -> list[Row]:
    from ddops.cli.routers import drift_of_router
    from ddops.deploy import drift_of, look, port_of, prepare
    from ddops.deploy.host import ServiceOnHost
    from ddops.errors import DdopsError, RefusedError

    target = ServiceOnHost(
        app.transport(host), host, service, port_of(host, service), app.lookup, app.redactor
    )
    seen = look(target)
    if seen is None:
        raise RefusedError(f"{host.name}: not provisioned", next=f"ddops provision {host.name}")
    profile = app.inventory.profile_of(service)
    try:
        wanted: str | None = prepare(host, service, profile, app.lookup).digest
    except DdopsError as error:  # the host can be looked at still
        app.warn(f"what would be deployed is not known: {error.what}", host.name)
        wanted = None
    return [*drift_of(target, seen, wanted), *drift_of_router(app, host, service)]


def _outcome(host: Host, service: Service, outcome: list[Row] | Exception) -> Exception | None:
    from ddops.deploy import Same
    from ddops.deploy.drift import mends
    from ddops.errors import PendingError

    if isinstance(outcome, Exception):
        return outcome
    odd = [r.what for r in outcome if r.verdict is not Same.YES]
    if not odd:
        return None
    return PendingError(
        f"{host.name}: {service.name} drifted: {', '.join(odd)}", next=mends(host.name, outcome)
    )
