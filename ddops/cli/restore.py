"""`ddops restore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, complete_targets, confirm, lock_wait_option, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.inventory import Host, Service
    from ddops.snapshot.model import Snapshot
    from ddops.snapshot.store import Store


@click.command()
@click.argument("snapshot_id", metavar="ID")
@click.option(
    "--to", "target", required=True, metavar="HOST", shell_complete=complete_targets,
    help="The host it goes to.",
)  # fmt: skip
@click.option(
    "--path", "paths", multiple=True, metavar="PATH",
    help="Only this file or folder of the tree; nothing is started.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace what is there; the old is kept beside it.")
@lock_wait_option
@yes
@as_json
@click.pass_obj
def restore(
    app: App,
    snapshot_id: str,
    target: str,
    paths: tuple[str, ...],
    force: bool,
    lock_wait: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Bring a snapshot back onto a host: environment, tree, release, started and gated.

    On an empty host it rebuilds the same release digest and proves it. A place that is not empty
    is refused. A snapshot that is not here is fetched from its backup place.

    \b
    ddops restore 3f2a --to lab1
    ddops restore 3f2a --to b300 --path srt/server_args.py --force
    """
    from ddops.errors import UsageError

    hosts = app.select([target]).hosts
    if len(hosts) != 1:
        raise UsageError(f"{target} is {len(hosts)} hosts", why="a restore goes to one",
                         next=f"--to {hosts[0].name}")  # fmt: skip
    host = hosts[0]
    store, snapshot = _find(app, snapshot_id, host)
    if host.origin.kind != "lab":
        what = f"{len(paths)} paths of " if paths else ""
        confirm(f"Restore {what}snapshot {snapshot.manifest.id[:12]} to {host.name}?", yes)
    if paths:
        _paths(app, host, store, snapshot, paths, force, as_json)
    else:
        _whole(app, host, store, snapshot, force, lock_wait, as_json)


def _find(app: App, prefix: str, host: Host) -> tuple[Store, Snapshot]:
    """The snapshot, fetched from the first place that can give it when it is not here."""
    from ddops.cli.backups import store_of, tools_for
    from ddops.errors import DdopsError, UsageError
    from ddops.snapshot.drill import Giver

    store = store_of(app)
    found = store.find(prefix)
    if found is not None:
        return store, store.read(found)
    failed = []
    for place in tools_for(app, host).places:
        try:
            there = [i for i in place.there() if i.startswith(prefix)]
            if len(there) > 1:
                raise UsageError(f"{prefix} is not one snapshot", next="give more digits")
            if there and isinstance(place, Giver):
                app.say(f"fetching {there[0][:12]} from {place.name}")
                place.get(store, there[0])
                return store, store.read(there[0])
            failed.append(f"{place.name} has none")
        except UsageError:
            raise
        except DdopsError as error:
            failed.append(str(error))
    raise UsageError(f"no snapshot {prefix} here or at a backup place", why="; ".join(failed),
                     next="ddops snapshot list")  # fmt: skip


def _service(app: App, snapshot: Snapshot) -> Service | None:
    name = snapshot.manifest.service
    return app.inventory.services.get(name) if name else None


def _whole(
    app: App, host: Host, store: Store, snapshot: Snapshot, force: bool, lock_wait: float,
    as_json: bool,
) -> None:  # fmt: skip
    from dataclasses import asdict, replace

    from ddops.cli.deploy import tools_of
    from ddops.cli.output import emit_json, emit_line
    from ddops.deploy import Stop, on_interrupt
    from ddops.restore import Tools, restore_host

    stop = Stop()
    deploy = replace(tools_of(app, stop, lock_wait), snapshots="the tree is the snapshot's")
    tools = Tools(deploy, store, app.ledger, force)
    with on_interrupt(stop, app.warn):
        done = restore_host(app.transport(host), host, snapshot, _service(app, snapshot), tools)
    if as_json:
        emit_json("restore", asdict(done))
        return
    release = f"release {done.release[:12]} is live, " if done.release else ""
    emit_line(f"{host.name}: {release}tree {done.tree[:12]} is the snapshot's")
    for path in done.kept:
        emit_line(f"{host.name}: the old one is kept at {path}")


def _paths(
    app: App, host: Host, store: Store, snapshot: Snapshot, paths: tuple[str, ...], force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    from ddops.cli.output import emit_json, emit_line
    from ddops.clock import SystemClock
    from ddops.restore import restore_paths

    suffix = f".before-{SystemClock().now():%Y%m%dT%H%M%SZ}" if force else None
    rows = restore_paths(app.transport(host), host, snapshot.manifest, store, paths, suffix=suffix)
    if as_json:
        emit_json("restore-paths", [dict(r) for r in rows])
        return
    for row in rows:
        kept = f", the old one is {row['kept']}" if row["kept"] else ""
        emit_line(f"{row['path']}{kept}")
