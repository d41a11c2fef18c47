"""`ddops host`: the inventory's hosts, and pinning their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, complete_targets, confirm, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App


@click.group()
def host() -> None:
    """Hosts of the inventory."""


@host.command("list")
@as_json
@click.pass_obj
def list_hosts(app: App, as_json: bool) -> None:
    """All known hosts, and where each was written."""
    from ddops.cli.output import emit_json, emit_table
    from ddops.inventory import services_on

    known = app.inventory
    rows = []
    for h in sorted(known.hosts.values(), key=lambda h: h.name):
        services = ", ".join(s.name for s in services_on(known, h)) or "-"
        rows.append((h.name, h.ssh, h.host_class or "-", ",".join(h.groups) or "-",
                     h.origin.kind, services))  # fmt: skip
    if as_json:
        keys = ("name", "ssh", "class", "groups", "origin", "services")
        emit_json("hosts", [dict(zip(keys, row, strict=True)) for row in rows])
    else:
        emit_table(("HOST", "SSH", "CLASS", "GROUPS", "FROM", "SERVICES"), rows)


@host.command()
@click.argument("name", shell_complete=complete_targets)
@click.option("--replace", is_flag=True, help="Drop the older key of the same name.")
@yes
@click.pass_obj
def trust(app: App, name: str, replace: bool, yes: bool) -> None:
    """Show the key a host shows now, and pin it.

    Compare the fingerprint with the one on the host's console before you say yes:
    ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub

    \b
    ddops host trust b300
    """
    from ddops.errors import UsageError
    from ddops.transport.trust import look_at_key

    entry = app.inventory.hosts.get(name)
    if entry is None:
        raise UsageError(f"no host {name!r} in the inventory", next="ddops host list")
    seen = look_at_key(app.ssh_target(entry), app.policy)
    click.echo(f"{name}  {seen.place}  {seen.kind}  {seen.fingerprint}")
    confirm(f"Pin this key in {seen.file}?", yes)
    seen.pin(replace=replace)
    app.say(f"pinned in {seen.file}")
    app.say(f'or in hosts.toml, for every operator: pins = {{ host_key = "{seen.fingerprint}" }}')
