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
    from ddops.transport.hostkeys import append_known_host, known_hosts_line
    from ddops.transport.ssh import scan_host_key
    from ddops.transport.sshconfig import resolve

    entry = app.inventory.hosts.get(name)
    if entry is None:
        raise UsageError(f"no host {name!r} in the inventory", next="ddops host list")
    target = app.ssh_target(entry)
    kind, key, fingerprint = scan_host_key(target, app.policy)
    settings = resolve(target.alias, target.config)
    click.echo(f"{name}  {settings.hostname}:{settings.port}  {kind}  {fingerprint}")
    if not settings.known_hosts:
        raise UsageError(f"{name}: ssh is configured with no known_hosts file to pin into")
    file = settings.known_hosts[0]
    confirm(f"Pin this key in {file}?", yes)
    line = known_hosts_line(settings.key_names[0], settings.port, kind, key)
    append_known_host(file, line, replace=replace)
    app.say(f"pinned in {file}")
    app.say(f'or in hosts.toml, for every operator: pins = {{ host_key = "{fingerprint}" }}')
