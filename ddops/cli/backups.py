"""What the commands about snapshots share: the store, the places, the tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddops.command import Secret
from ddops.errors import DdopsError, UsageError
from ddops.inventory import Host, services_on

if TYPE_CHECKING:
    from ddops.cli.app import App
    from ddops.config.backup import BackupTable
    from ddops.snapshot import Manifest
    from ddops.snapshot.gitplace import GitPlace
    from ddops.snapshot.make import Place, Tools
    from ddops.snapshot.store import Store


def hosts_of(app: App, targets: Sequence[str]) -> tuple[Host, ...]:
    """The hosts that are meant; without words, every host that is not a shipped example."""
    if targets:
        return app.select(targets).hosts
    own = [h for h in app.inventory.hosts.values() if h.origin.kind != "shipped"]
    if not own:
        raise UsageError("this project has no host", next="ddops lab up, or inventory/hosts.toml")
    return tuple(sorted(own, key=lambda h: h.name))


def service_of(app: App, host: Host) -> str | None:
    """The service whose release belongs to the tree: the host's only one."""
    found = services_on(app.inventory, host)
    return found[0].name if len(found) == 1 else None


def store_of(app: App) -> Store:
    from ddops.snapshot.store import Store

    return Store(app.project.state / "snapshots")


def backup_of(app: App, lab: bool) -> BackupTable:
    """`[backup]` of the project; a lab's hosts go to the lab's own place."""
    from ddops.config.backup import load_backup

    if lab:
        return load_backup(app.project.lab / "backup.toml", base=app.project.root)
    return load_backup(app.project.file, base=app.project.root)


def places_of(app: App, backup: BackupTable) -> list[Place]:
    """The places of a `[backup]`, not connected to yet."""
    from ddops.snapshot.places import GitCopy
    from ddops.snapshot.resticio import Restic
    from ddops.snapshot.resticplace import ResticCopy

    places: list[Place] = []
    if backup.git is not None:
        places.append(GitCopy(_git_place(app, backup)))
    if backup.restic is not None:
        r = backup.restic
        env = {k: app.resolve(v) if _is_ref(v) else _plain(v) for k, v in r.env.items()}
        restic = Restic(r.repository, app.resolve(r.password), _path(app, r.ssh_config), env)
        places.append(ResticCopy(restic, r.check_percent))
    return places


def tools_for(app: App, host: Host, *, allow: Sequence[str] = ()) -> Tools:
    """Everything a snapshot of this host needs."""
    return _tools(app, host.origin.kind == "lab", allow)


def tools_for_deploy(app: App, host: Host) -> Tools:
    """The same, where the snapshot comes soon: the git place is being connected to meanwhile."""
    from ddops.cli.app import connect_soon
    from ddops.snapshot.places import GitCopy

    tools = tools_for(app, host)
    for place in tools.places:
        if isinstance(place, GitCopy):
            connect_soon(place.place.transport)
    return tools


def tools_for_snapshot(app: App, manifest: Manifest) -> Tools:
    """The tools for a snapshot that is there; its host may be gone from the inventory."""
    host = app.inventory.hosts.get(manifest.host)
    return _tools(app, host is not None and host.origin.kind == "lab", ())


def found_in(app: App, prefix: str) -> tuple[Store, str]:
    """The snapshot that an id or its beginning names."""
    store = store_of(app)
    found = store.find(prefix)
    if found is None:
        raise UsageError(f"no snapshot {prefix} in this project", next="ddops snapshot list")
    return store, found


def newest(app: App) -> tuple[Store, str]:
    store = store_of(app)
    found = store.manifests()
    if not found:
        raise UsageError("no snapshot is in this project", next="ddops snapshot TARGET")
    return store, found[0].id


def copies_of(app: App, ids: Sequence[str]) -> dict[str, list[tuple[str, str, str]]]:
    """Place, state and time of the last word on each copy, by snapshot."""
    try:
        with app.ledger(readonly=True) as ledger:
            return {
                i: [(c.place, c.state, c.at.isoformat(timespec="seconds"))
                    for c in ledger.copies(i)]
                for i in ids
            }  # fmt: skip
    except DdopsError as error:
        app.warn(f"what the ledger says of copies is not known: {error.what}")
        return {i: [] for i in ids}


def _tools(app: App, lab: bool, allow: Sequence[str]) -> Tools:
    from ddops.clock import SystemClock
    from ddops.snapshot.make import Tools

    backup = backup_of(app, lab)
    return Tools(
        store=store_of(app),
        places=places_of(app, backup),
        ledger=app.ledger,
        lookup=app.lookup,
        mask=app.redactor.tree,
        clock=SystemClock(),
        report=app.report,
        allow=(*backup.allow, *allow),
        large_bytes=backup.large_mb * 1_000_000,
        keep=backup.keep,
    )


def _git_place(app: App, backup: BackupTable) -> GitPlace:
    from ddops.snapshot.gitplace import GitPlace
    from ddops.transport import SshTarget

    assert backup.git is not None  # noqa: S101 - the caller has looked
    g = backup.git
    target = SshTarget(g.ssh, g.ssh, _path(app, g.ssh_config), g.host_key)
    return GitPlace(app.shared_transport(target), g.path)


def _path(app: App, text: str | None) -> Path | None:
    return app.project.root / Path(text).expanduser() if text else None


def _is_ref(text: str) -> bool:
    from ddops.config import is_secret_ref

    return is_secret_ref(text)


def _plain(text: str) -> Secret:
    return Secret(text, "ddops.toml")
