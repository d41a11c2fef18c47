"""`ddops lab`: real hosts on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json
from ddops.lab.spec import ENGINES, GPU_KINDS, LabSpec

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App


@click.group()
def lab() -> None:
    """Real hosts on loopback to try things on: sshd, a supervisor, no root, no GPU.

    \b
    ddops lab up && ddops provision lab && ddops deploy lab
    ddops lab up --gpu b300 && ddops check b300
    """


@lab.command()
@click.option("--hosts", type=int, default=1, show_default=True, help="How many.")
@click.option(
    "--gpu", type=click.Choice(GPU_KINDS), default="cpu", show_default=True,
    help="Replay a recorded GPU host; its engine is the stand-in.",
)  # fmt: skip
@click.option(
    "--engine", type=click.Choice(ENGINES),
    help="The real SGLang on CPU, or a stand-in.  [default: sglang-cpu; sim with --gpu]",
)  # fmt: skip
@click.pass_obj
def up(app: App, hosts: int, gpu: str, engine: str | None) -> None:
    """Bring the lab up. Does nothing when it is up already.

    \b
    ddops lab up
    ddops lab up --hosts 3 --engine sim
    ddops lab up --gpu b300
    """
    spec = LabSpec(hosts, gpu, engine or ("sglang-cpu" if gpu == "cpu" else "sim"))
    own = app.inventory
    origins = {
        **{n: h.origin for n, h in own.hosts.items()},
        **{n: s.origin for n, s in own.services.items()},
        **{n: a.origin for n, a in own.aliases.items()},
    }
    mine = {name for name, origin in origins.items() if origin.kind == "project"}
    groups = {g for h in own.hosts.values() if h.origin.kind == "project" for g in h.groups}
    taken = frozenset(mine | groups)
    state, started = app.lab().up(spec, taken)
    names = ", ".join(h.name for h in state.hosts)
    app.say(
        f"lab is up: {names} (engine {spec.engine})" if started else f"lab is up already: {names}"
    )
    target = "lab" if gpu == "cpu" else gpu
    app.say(f"next: ddops check {target}")


@lab.command()
@click.pass_obj
def down(app: App) -> None:
    """Stop everything of the lab and remove it."""
    app.say("lab is down" if app.lab().down() else "no lab was up")


@lab.command()
@as_json
@click.pass_obj
def status(app: App, as_json: bool) -> None:
    """Hosts of the lab, their addresses and ports."""
    from ddops.cli.output import emit_json, emit_table

    state = app.lab().state()
    hosts = state.hosts if state is not None else ()
    rows = [(h.name, f"{h.address}:{h.ssh_port}", str(h.service_port)) for h in hosts]
    if as_json:
        emit_json("lab", [{"name": n, "ssh": s, "service_port": int(p)} for n, s, p in rows])
    elif rows:
        emit_table(("HOST", "SSH", "SERVICE PORT"), rows)
    else:
        app.say("no lab is up; next: ddops lab up")
