"""`ddops lab`: real hosts on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json
from ddops.lab.faults import KINDS, parse_fault
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
    help="The real SGLang on CPU, or a stand-in.  [default: sglang-cpu; else sim]",
)  # fmt: skip
@click.option(
    "--systemd", is_flag=True,
    help="Hosts that boot a system of their own: real units, reboots, networks. Needs root.",
)  # fmt: skip
@click.option(
    "--slurm", is_flag=True,
    help="One host that submits jobs to a real Slurm with as many nodes as --hosts. Needs root.",
)  # fmt: skip
@click.option(
    "--wheelhouse", type=click.Path(file_okay=False, resolve_path=True),
    help="With --systemd: a folder of wheels that the hosts see, read-only.",
)  # fmt: skip
@click.pass_obj
def up(
    app: App, hosts: int, gpu: str, engine: str | None, systemd: bool, slurm: bool,
    wheelhouse: str | None,
) -> None:  # fmt: skip
    """Bring the lab up. Does nothing when it is up already.

    \b
    ddops lab up
    ddops lab up --hosts 3 --engine sim
    ddops lab up --gpu b300
    ddops lab up --systemd --hosts 4
    ddops lab up --slurm --hosts 2
    """
    real = gpu == "cpu" and not systemd and not slurm
    kind = engine or ("sglang-cpu" if real else "sim")
    spec = LabSpec(hosts, gpu, kind, systemd, wheelhouse, slurm)
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
@click.argument("host")
@click.argument("kind", type=click.Choice(tuple(KINDS)))
@click.argument("value", required=False)
@click.pass_obj
def fault(app: App, host: str, kind: str, value: str | None) -> None:
    """Make something go wrong with a lab host, until `ddops lab heal`.

    \b
    ddops lab fault lab1 reboot
    ddops lab fault lab1 netloss 20%
    ddops lab fault lab1 netdelay 50ms
    ddops lab fault lab1 netrate 1mbit

    \b
    reboot    the power is cut, and switched on again
    netdown   the cable is pulled
    netloss   packets are lost, each way
    netdelay  round trips take longer
    netrate   a slow line, each way
    diskfull  not one block is left
    freeze    every process stops where it is

    Hosts that do not boot (a lab without --systemd) know `freeze` alone.
    """
    made = parse_fault(kind, value)
    app.lab().fault(host, made)
    done = "is booting again" if kind == "reboot" else f"has {made}"
    app.say(f"{done}; next: ddops lab heal {host}" if kind != "reboot" else done, host)


@lab.command()
@click.argument("host")
@click.pass_obj
def heal(app: App, host: str) -> None:
    """Undo every fault of a lab host; switch it on when it is off.

    \b
    ddops lab heal lab1
    """
    app.lab().heal(host)
    app.say("has no faults", host)


@lab.command()
@as_json
@click.pass_obj
def status(app: App, as_json: bool) -> None:
    """Hosts of the lab, their addresses and ports, and what ails them."""
    from ddops.cli.output import emit_json, emit_table

    state = app.lab().state()
    hosts = state.hosts if state is not None else ()
    seen = app.lab().seen(state) if state is not None and state.ready else {}
    rows = [
        (h.name, f"{h.address}:{h.ssh_port}", str(h.service_port), *seen.get(h.name, ("?", "")))
        for h in hosts
    ]
    names = ("name", "ssh", "service_port", "state", "faults")
    if as_json:
        emit_json("lab", [dict(zip(names, r, strict=True)) | {"service_port": int(r[2])}
                          for r in rows])  # fmt: skip
    elif rows:
        emit_table(("HOST", "SSH", "SERVICE PORT", "STATE", "FAULTS"), rows)
    else:
        app.say("no lab is up; next: ddops lab up")
