"""`ddops deploy --render-only`: what would be handed over, as files; nobody is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.cli.deploy import Job
    from ddops.deploy.rendered import Rendered
    from ddops.errors import Problem
    from ddops.inventory import Host, Service


def render_only(app: App, jobs: Sequence[Job], out: str | None, as_json: bool) -> None:
    """Write the one service's files into `out` and say what comes next."""
    from ddops.cli.output import emit_json, emit_line
    from ddops.config.folders import write_folder
    from ddops.deploy.rendered import KUBERNETES
    from ddops.errors import ConfigError, UsageError

    services = {j.service.name: j.service for j in jobs}
    if len(services) > 1:
        raise UsageError(
            f"--render-only takes one service, and {len(services)} are meant:"
            f" {', '.join(services)}",
            next=f"ddops deploy {min(services)} --render-only -o DIR",
        )
    service = jobs[0].service
    if out is None:
        raise UsageError(
            "--render-only needs a folder to write into",
            next=f"ddops deploy {service.name} --render-only -o {service.name}-files",
        )
    cluster = service.engine == KUBERNETES
    try:
        made = _for_cluster(app, jobs) if cluster else _for_hosts(app, jobs)
    except ConfigError as error:
        raise ConfigError([_placed(app, p) for p in error.problems], next=error.next) from error
    folder = Path(out)
    changed = write_folder(folder, made.files)
    if as_json:
        emit_json(
            "rendered",
            {"service": service.name, "release": made.digest, "folder": out, "changed": changed,
             "files": sorted(made.files), "secrets": [name for name, _ in made.secrets]},
        )  # fmt: skip
    else:
        for name in made.files:
            emit_line(str(folder / name))
    app.say(
        f"release {made.digest[:12]} of {service.name} {'is' if changed else 'was'} in {folder}"
    )
    _next(app, jobs[0].host, service, made, folder if cluster else None)


def _placed(app: App, problem: Problem) -> Problem:
    """The problem as readers of files tell one: the path seen from the project, and the line."""
    from dataclasses import replace

    from ddops.config.toml import read_toml, shown

    path, root = Path(problem.file), app.project.root
    line = problem.line
    if problem.key and not line and path.is_file():
        line = read_toml(path, base=root).lines.of(tuple(problem.key.split(".")))
    return replace(problem, file=shown(path, root), line=line)


def _for_hosts(app: App, jobs: Sequence[Job]) -> Rendered:
    from ddops.deploy.rendered import Rendered, rendered_for_host

    made = [
        rendered_for_host(app.transport(j.host), j.host, j.service, j.profile, app.lookup)
        for j in jobs
    ]
    files = {name: text for one in made for name, text in one.files.items()}
    return Rendered(made[0].digest, files, made[0].secrets)


def _for_cluster(app: App, jobs: Sequence[Job]) -> Rendered:
    from ddops.deploy.rendered import rendered_for_kubernetes
    from ddops.errors import UsageError
    from ddops.inventory import hosts_of

    service, profile = jobs[0].service, jobs[0].profile
    named, meant = [h.name for h in hosts_of(app.inventory, service)], [j.host.name for j in jobs]
    if sorted(named) != sorted(meant):
        raise UsageError(
            f"{service.name} is one set of pods for {', '.join(named)}, and {', '.join(meant)} is"
            " meant",
            why="how many hosts a service names is how many replicas it has",
            next=f"ddops deploy {service.name} --render-only -o DIR",
        )
    pairs = sorted([(j.host, j.service) for j in jobs], key=lambda pair: named.index(pair[0].name))
    return rendered_for_kubernetes(
        app.transport(pairs[0][0]), pairs, profile, app.lookup,
        load_budget_s=app.settings.load_budget_s, keep=app.settings.keep_releases,
    )  # fmt: skip


def _next(app: App, host: Host, service: Service, made: Rendered, folder: Path | None) -> None:
    from ddops.command import cmd

    if folder is None:
        if made.secrets:
            app.say(f"left out: the secrets {', '.join(name for name, _ in made.secrets)}")
        app.say(f"next: ddops deploy {service.name}")
        return
    table = host.kubernetes
    if made.secrets and table is not None:
        # By way of files: a value on a command line would stand in its history.
        app.say(
            f"once: kubectl create secret generic {table.secret or service.name}"
            f" -n {table.namespace} --from-file FOLDER"
        )
        app.say(f"  its files, one value each: {', '.join(name for name, _ in made.secrets)}")
    app.say(f"next: {cmd('kubectl', 'apply', '-f', str(folder))}")
