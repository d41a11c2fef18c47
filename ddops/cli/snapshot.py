"""`ddops snapshot`: take, list, show, diff, verify, prune, drill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.given import COUNT
from ddops.cli.options import as_json, complete_targets, confirm, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.inventory import Host
    from ddops.snapshot import Made, Manifest


class TakeByDefault(click.Group):
    """`ddops snapshot lab` is `ddops snapshot take lab`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["take", *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self.commands["take"]


@click.group(cls=TakeByDefault)
def snapshot() -> None:
    """Take a host's source tree with all that belongs to it, to places that verify it.

    \b
    ddops snapshot lab
    ddops snapshot list
    """


@snapshot.command(short_help="Snapshot hosts, to places that verify it.")
@click.argument("target", nargs=-1, shell_complete=complete_targets)
@click.option("--tree", metavar="PATH", help="The source tree on the host, if not the usual one.")
@click.option(
    "--allow-file", multiple=True, metavar="PATTERN",
    help="A file that may be large (it goes to restic alone) or may look like a secret.",
)  # fmt: skip
@as_json
@click.pass_obj
def take(
    app: App, target: tuple[str, ...], tree: str | None, allow_file: tuple[str, ...], as_json: bool
) -> None:
    """Snapshot hosts; without TARGET all that are the project's own or its lab's.

    Nothing on the host is changed. What looks like a secret, and large files, are refused before
    anything leaves it. Each backup place reads its copy back before the snapshot counts there.

    \b
    ddops snapshot take lab
    ddops snapshot take b300 --tree /opt/sglang
    """
    from ddops.cli.app import end_together
    from ddops.cli.backups import hosts_of, service_of, tools_for
    from ddops.cli.output import emit_json
    from ddops.snapshot import snapshot_host

    hosts = hosts_of(app, target)

    def work(host: Host) -> Made:
        tools = tools_for(app, host, allow=allow_file)
        return snapshot_host(app.transport(host), host, service_of(app, host), tree, tools)

    outcomes = app.fan_out(hosts, work)
    made = [o for _, o in outcomes if not isinstance(o, Exception)]
    if as_json:
        emit_json("snapshot", [m.as_json() for m in made])
    else:
        _show_made(made)
    end_together([(h.name, o) for h, o in outcomes], app.report)


def _copies(made: Made) -> str:
    return ", ".join(f"{place.partition(':')[0]} {state}" for place, state in made.copies.items())


def _show_made(made: list[Made]) -> None:
    from ddops.cli.output import emit_table
    from ddops.model import short

    rows = [
        (short(m.manifest.id), m.manifest.host, short(m.manifest.tree_hash),
         short(m.manifest.release or "-"), "new" if m.fresh else "unchanged",
         _copies(m) or "this project only")
        for m in made
    ]  # fmt: skip
    if rows:
        emit_table(("SNAPSHOT", "HOST", "TREE", "RELEASE", "RESULT", "COPIES"), rows)


@snapshot.command(name="list")
@click.argument("target", nargs=-1, shell_complete=complete_targets)
@as_json
@click.pass_obj
def list_(app: App, target: tuple[str, ...], as_json: bool) -> None:
    """Snapshots with the last word on each copy, newest first.

    \b
    ddops snapshot list
    ddops snapshot list lab1
    """
    from ddops.cli.backups import copies_of, store_of
    from ddops.cli.output import emit_json, emit_table
    from ddops.model import short

    names = {h.name for h in app.select(target).hosts} if target else None
    found = [m for m in store_of(app).manifests() if names is None or m.host in names]
    copies = copies_of(app, [m.id for m in found])
    if as_json:
        emit_json("snapshots", [_row_json(m, copies[m.id]) for m in found])
        return
    rows = [
        (short(m.id), m.host, f"{m.at:%Y-%m-%d %H:%M}", short(m.tree_hash),
         short(m.release or "-"),
         ", ".join(f"{p.partition(':')[0]} {s}" for p, s, _ in copies[m.id]) or "here only")
        for m in found
    ]  # fmt: skip
    if rows:
        emit_table(("SNAPSHOT", "HOST", "AT", "TREE", "RELEASE", "COPIES"), rows)
    else:
        app.say("no snapshot is in this project; next: ddops snapshot TARGET")


def _row_json(m: Manifest, copies: list[tuple[str, str, str]]) -> dict[str, object]:
    return {"id": m.id, "host": m.host, "at": m.at.isoformat(), "tree": m.tree_hash,
            "release": m.release,
            "copies": [{"place": p, "state": s, "at": at} for p, s, at in copies]}  # fmt: skip


@snapshot.command()
@click.argument("snapshot_id", metavar="ID")
@as_json
@click.pass_obj
def show(app: App, snapshot_id: str, as_json: bool) -> None:
    """A snapshot's manifest: what it holds, and how it is named.

    \b
    ddops snapshot show 3f2a
    """
    from ddops.cli.backups import copies_of, found_in
    from ddops.cli.output import emit_json, emit_line

    store, found = found_in(app, snapshot_id)
    manifest = store.manifest(found)
    copies = copies_of(app, [found])[found]
    if as_json:
        emit_json("snapshot-manifest", {"id": found, **manifest.content,
                                        "copies": [list(c) for c in copies]})  # fmt: skip
        return
    emit_line(f"snapshot {found}")
    for key in ("host", "service", "at", "by", "release", "upstream", "model", "draft", "lock"):
        emit_line(f"  {key:<9} {manifest.content[key] or '-'}")
    emit_line(f"  tree      {manifest.tree_hash} at {manifest.tree['path']}")
    past = manifest.content.get("history")
    if isinstance(past, dict):
        emit_line(f"  commits   {past['commits']} of its own up to {str(past['head'])[:12]}")
    for words in manifest.apart:
        emit_line(f"  apart     {words}")
    for row in manifest.large:
        emit_line(f"  large     {row.path} {row.bytes} bytes sha256 {row.sha256[:12]}")
    for name, sha256 in manifest.record.items():
        emit_line(f"  record    {name} sha256 {sha256[:12]}")
    for place, state, at in copies:
        emit_line(f"  copy      {place} {state} {at}")


@snapshot.command(short_help="What changed from one snapshot to another.")
@click.argument("old", metavar="ID")
@click.argument("new", metavar="ID")
@click.option("--patch", is_flag=True, help="The lines too, not the names alone.")
@click.pass_obj
def diff(app: App, old: str, new: str, patch: bool) -> None:
    """What changed in the tree and in the record from one snapshot to another.

    \b
    ddops snapshot diff 3f2a 90bc --patch
    """
    from ddops.cli.backups import found_in
    from ddops.cli.output import emit_line

    store, first = found_in(app, old)
    _, second = found_in(app, new)
    a, b = store.manifest(first), store.manifest(second)
    words = ["diff-tree", "-r", "--no-renames", *(["-p", "--binary"] if patch else
             ["--name-status"]), a.commit, b.commit]  # fmt: skip
    for line in store.repo.run(*words).decode("utf-8", "backslashreplace").splitlines():
        emit_line(line)
    for name in sorted({*a.record, *b.record}):
        if a.record.get(name) != b.record.get(name):
            emit_line(f"record: {name}")


@snapshot.command(short_help="Read every byte back, here and at each place.")
@click.argument("snapshot_id", metavar="[ID]", required=False)
@click.pass_obj
def verify(app: App, snapshot_id: str | None) -> None:
    """Read every byte of a snapshot back, here and at each place; the newest without ID.

    \b
    ddops snapshot verify
    ddops snapshot verify 3f2a
    """
    from ddops.cli.backups import found_in, newest, tools_for_snapshot
    from ddops.snapshot.verify import verify as run

    store, found = found_in(app, snapshot_id) if snapshot_id else newest(app)
    manifest = store.manifest(found)
    run(manifest, tools_for_snapshot(app, manifest))


@snapshot.command()
@click.option("--keep", type=COUNT, help="How many of each tree stay.")
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
@yes
@click.pass_obj
def prune(app: App, keep: int | None, dry_run: bool, yes: bool) -> None:
    """Remove old snapshots at every place. The newest one of each release always stays.

    \b
    ddops snapshot prune --keep 20 --dry-run
    """
    from ddops.cli.backups import hosts_of, tools_for
    from ddops.cli.output import emit_line
    from ddops.errors import UsageError
    from ddops.model import short
    from ddops.snapshot.retain import retain

    for host in hosts_of(app, ()):
        tools = tools_for(app, host)
        count = keep or tools.keep
        if count is None:
            raise UsageError("how many snapshots shall stay is not said",
                             next="--keep N, or keep in [backup] of ddops.toml")  # fmt: skip
        gone = retain(host.name, count, tools, dry_run=True)
        for manifest in gone:
            emit_line(f"{short(manifest.id)}  {manifest.host}  {manifest.at:%Y-%m-%d %H:%M}")
        if dry_run or not gone:
            app.say(f"{len(gone)} snapshots would go" if gone else "nothing to remove", host.name)
            continue
        confirm(f"Remove {len(gone)} snapshots of {host.name}?", yes)
        retain(host.name, count, tools)
        app.say(f"{len(gone)} snapshots removed", host.name)


@snapshot.command(short_help="Restore into a scratch folder, and prove it.")
@click.argument("snapshot_id", metavar="[ID]", required=False)
@as_json
@click.pass_obj
def drill(app: App, snapshot_id: str | None, as_json: bool) -> None:
    """Restore a snapshot from each place into a scratch folder, prove it, record the drill.

    \b
    ddops snapshot drill
    """
    from ddops.cli.backups import found_in, newest, tools_for_snapshot
    from ddops.cli.output import emit_json, emit_table
    from ddops.snapshot.drill import drill as run

    store, found = found_in(app, snapshot_id) if snapshot_id else newest(app)
    manifest = store.manifest(found)
    rows = run(manifest, tools_for_snapshot(app, manifest))
    if as_json:
        emit_json("snapshot-drill", [r.as_json() for r in rows])
    else:
        emit_table(("PLACE", "RESULT", "SECONDS", "WHAT"),
                   [(r.place, r.verdict, f"{r.seconds:.1f}", r.words) for r in rows])  # fmt: skip
    if not rows or any(r.verdict != "PASS" for r in rows):
        from ddops.errors import DdopsError

        raise DdopsError("the drill failed" if rows else "there is no place to restore from",
                         next="ddops snapshot verify")  # fmt: skip
