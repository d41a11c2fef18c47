"""`ddops config`: settings, schemas, places."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App


@click.group()
def config() -> None:
    """Settings and where they come from: flag, DDOPS_*, project, user, default."""


@config.command()
@click.option("--origin", is_flag=True, help="Say where each value came from.")
@as_json
@click.pass_obj
def show(app: App, origin: bool, as_json: bool) -> None:
    """The settings in force.

    \b
    ddops config show --origin
    """
    from ddops.cli.output import emit_json, emit_table

    settings = app.settings
    if as_json:
        emit_json("config", settings.show(origin=origin))
        return
    rows = []
    for name, value in settings.show().items():
        row = (name, str(value))
        rows.append((*row, str(settings.origins[name])) if origin else row)
    emit_table(("SETTING", "VALUE", "FROM") if origin else ("SETTING", "VALUE"), rows)


@config.command()
@click.argument("file", required=False)
def schema(file: str | None) -> None:
    """JSON Schema of the files people write: all of them, or one.

    \b
    ddops config schema hosts
    """
    from ddops.errors import UsageError
    from ddops.inventory import json_schema
    from ddops.runbook.model import RunbookTable

    schemas = json_schema({"runbooks/*.toml": RunbookTable})
    name = _schema_of(file, tuple(schemas)) if file is not None else None
    if file is not None and name is None:
        raise UsageError(f"no schema for {file!r}", next=f"one of: {', '.join(schemas)}")
    click.echo(json.dumps(schemas[name] if name else schemas, indent=1))


def _schema_of(file: str, names: tuple[str, ...]) -> str | None:
    """`hosts`, `hosts.toml` and `inventory/hosts.toml` are names of one file."""
    word = file.removesuffix(".toml")
    found = [
        n for n in names if file == n or word in (p.removesuffix(".toml") for p in n.split("/"))
    ]
    return found[0] if len(found) == 1 else None


@config.command()
@as_json
@click.pass_obj
def paths(app: App, as_json: bool) -> None:
    """Where things lie on this machine. Nothing here is made before it is needed."""
    from ddops.cli.output import emit_json, emit_table
    from ddops.config import data_root
    from ddops.config import paths as user_paths

    user = user_paths()
    rows = [
        ("project", str(app.project.root) + ("" if app.project.explicit else "  (no ddops.toml)")),
        ("state", str(app.project.state)),
        ("ledger", str(app.settings.ledger_path)),
        ("lab", str(app.project.lab)),
        ("shipped defaults", str(data_root())),
        ("user config", str(user.config_file)),
        ("cache", str(user.cache)),
    ]
    if as_json:
        emit_json("paths", dict(rows))
    else:
        emit_table(("WHAT", "WHERE"), rows)
