"""`ddops init`: a project to start from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App

_PROJECT = """\
# A ddops project. Settings here win over the user's own and lose to DDOPS_* and flags.
[settings]
# parallel = 10            # hosts worked on side by side
# load_budget_s = 1800     # a load may be silent for this long
# keep_releases = 5
"""
_HOSTS = """\
# Your machines. `ddops config schema hosts` prints every key.
# `ddops host list` shows the shipped examples beside them.

# [hosts.box1]
# ssh = "box1.example"          # what you would give to ssh; ~/.ssh/config applies
# class = "pcie"                # pcie, nvlink or cpu
# groups = ["rtx"]
# engine_dir = "/opt/ddops"
# pins = { host_key = "SHA256:..." }
"""
_IGNORE = "/.ddops/\n"
_FOLDERS = ("inventory/services", "inventory/profiles", "templates", "patches", "runbooks")


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.pass_obj
def init(app: App, folder: Path) -> None:
    """Make a project in FOLDER (here by default). Overwrites nothing.

    \b
    ddops init boxes
    """
    from ddops.config.files import write_whole, writing
    from ddops.errors import UsageError

    if (folder / "ddops.toml").exists():
        raise UsageError(
            f"{folder / 'ddops.toml'} is there already", next="ddops config show --origin"
        )
    files = {
        "ddops.toml": _PROJECT,
        "inventory/hosts.toml": _HOSTS,
        ".gitignore": _IGNORE,
    }
    with writing(folder):
        for part in _FOLDERS:
            (folder / part).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        if path.exists():
            app.say(f"kept {path}")
            continue
        write_whole(path, text)
        app.say(f"made {path}")
    app.say("next: ddops lab up, or write your first host into inventory/hosts.toml")
