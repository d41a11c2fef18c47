"""`ddops bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.inventory import Host, Service
    from ddops.report.bundle import Bundle


@click.command()
@targets(required=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write here.")
@as_json
@click.pass_obj
def bundle(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """One archive for somebody who shall help: facts, unit, logs, journal, ledger, versions.

    Secrets are masked: those of well-known shapes, and every value that lies with a release on the
    host. Where these cannot be read, nothing of that host is taken. Look into it before you send
    it.

    \b
    ddops bundle pcie
    ddops bundle lab --out failure.tar.gz
    """
    from ddops.cli.output import emit_json, emit_line
    from ddops.clock import SystemClock
    from ddops.errors import DdopsError, PartialError
    from ddops.report import bundle as archive

    now = SystemClock().now()
    path = out or Path(f"ddops-bundle-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    made = archive.Bundle(app.redactor)
    pairs = _pairs(app, target, limit, exclude)
    archive.add_here(made, now, _settings(app))
    services, hosts = sorted({s.name for _, s in pairs}), sorted({h.name for h, _ in pairs})
    try:
        with app.ledger(readonly=True) as book:
            archive.add_ledger(made, book, services, hosts)
    except DdopsError as error:  # it may be what failed
        made.without("ledger", str(error))
    lost = _hosts(app, made, pairs)
    made.remask()
    size = archive.write(made, path, now)
    if as_json:
        emit_json("bundle", {"file": str(path), "bytes": size, "files": sorted(made.files),
                             "left_out": made.left_out})  # fmt: skip
    else:
        emit_line(str(path))
        for part in made.left_out:
            app.warn(f"left out: {part['what']}: {part['why']}")
    if lost:
        raise PartialError(
            f"{len(lost)} of {len(pairs)} services could not be looked at: {', '.join(lost)}",
            why=f"{path} has what is on record here",
            next=f"ddops status {lost[0]}",
        )


def _pairs(
    app: App, target: tuple[str, ...], limit: tuple[str, ...], exclude: tuple[str, ...]
) -> list[tuple[Host, Service]]:
    from ddops.errors import UsageError
    from ddops.inventory import services_on

    selection = app.select(target, limit, exclude)
    wanted = set(selection.services)
    pairs = [(h, s) for h in selection.hosts for s in services_on(app.inventory, h) if s in wanted]
    if not pairs:
        raise UsageError("no service is meant for these hosts", next="ddops host list")
    return pairs


def _settings(app: App) -> dict[str, object]:
    """Settings as they hold, with where each came from."""
    return {"project": str(app.project.root), **app.settings.show(origin=True)}


def _hosts(app: App, made: Bundle, pairs: list[tuple[Host, Service]]) -> list[str]:
    """Take what each host gives; names of those that gave nothing."""
    from ddops.deploy import port_of
    from ddops.deploy.host import ServiceOnHost
    from ddops.errors import DdopsError
    from ddops.report.bundle_host import add_host

    lost = []
    for host, service in pairs:
        try:
            place = ServiceOnHost(
                app.transport(host), host, service, port_of(host, service), app.lookup,
                app.redactor,
            )  # fmt: skip
            add_host(made, place)
        except DdopsError as error:
            made.without(f"hosts/{host.name}/{service.name}", str(error))
            lost.append(host.name)
    return lost
