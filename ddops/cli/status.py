"""`ddops status`: observed values only, each with its age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.gates import Observation
    from ddops.inventory import Host, Service


@dataclass(frozen=True, slots=True)
class Seen:
    """One service on one host; `observation` is None where provision has never been."""

    observation: Observation | None
    locked: str
    committed: str | None


@click.command()
@targets(required=False)
@as_json
@click.pass_obj
def status(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
) -> None:
    """What runs where, as observed just now. Without TARGET: your hosts, and the lab's.

    HEALTH is /health asked on the host itself, on a port that our own process holds.

    \b
    ddops status
    ddops status lab --json
    """
    from ddops.cli.app import end_together
    from ddops.cli.output import emit_json, emit_table

    pairs = _pairs(app, target, limit, exclude)
    outcomes = app.fan_out(pairs, lambda p: _look(app, *p))
    if as_json:
        emit_json("status", [_json(h, s, o) for (h, s), o in outcomes])
    else:
        rows = [_row(h, s, o) for (h, s), o in outcomes]
        emit_table(("HOST", "SERVICE", "RELEASE", "ENGINE", "HEALTH", "UP", "URL", "NOTE"), rows)
    end_together([(h.name, o) for (h, _), o in outcomes], app.report)


def _pairs(
    app: App, target: tuple[str, ...], limit: tuple[str, ...], exclude: tuple[str, ...]
) -> list[tuple[Host, Service]]:
    from ddops.errors import UsageError
    from ddops.inventory import placed, services_on

    known = app.inventory
    if target:
        selection = app.select(target, limit, exclude)
        hosts, services = selection.hosts, set(selection.services)
    else:
        own = [h.name for h in known.hosts.values() if h.origin.kind != "shipped"]
        if not own:
            raise UsageError(
                "no host of yours, and no lab is up", next="ddops lab up, or ddops init"
            )
        hosts, services = app.select(own, limit, exclude).hosts, set(known.services.values())
    pairs = [
        (h, placed(known, s, h)) for h in hosts for s in services_on(known, h) if s in services
    ]
    if not pairs:
        raise UsageError("no service is meant for these hosts", next="see inventory/services")
    return pairs


def _look(app: App, host: Host, service: Service) -> Seen:
    from ddops import lock
    from ddops.deploy import look, port_of
    from ddops.deploy.host import ServiceOnHost

    transport = app.transport(host)
    target = ServiceOnHost(
        transport, host, service, port_of(host, service), app.lookup, app.redactor
    )
    observation = look(target)
    held = lock.read(transport, target.layout)
    return Seen(observation, held.describe() if held else "", target.links().committed)


def _row(host: Host, service: Service, outcome: Seen | Exception) -> tuple[str, ...]:
    from ddops.deploy import port_of
    from ddops.model import State, short

    name = host.name + (f" {host.origin.tag}" if host.origin.tag else "")
    url = f"{service.listen}:{port_of(host, service)}"
    if isinstance(outcome, Exception):
        return name, service.name, "?", "unknown", "?", "?", url, "no answer from the host"
    seen = outcome.observation
    if seen is None:
        return name, service.name, "-", "-", "-", "-", url, "not provisioned"
    note = _note(outcome, seen)
    if seen.engine is not State.UP or seen.launch is None:
        return name, service.name, "-", seen.engine.value, "-", "-", url, note
    return (
        name, service.name, short(seen.launch.release), seen.engine.value,
        health_word(seen, outcome.committed, follower=service.node.rank > 0),
        _span(seen.uptime_s or 0.0), url, note,
    )  # fmt: skip


def health_word(seen: Observation, committed: str | None, *, follower: bool = False) -> str:
    """`ok`: a 200 from our own process that is this start of a release that passed its gates."""
    if seen.health is None or seen.launch is None:
        return "port not ours" if seen.port.listening else "not listening"
    if seen.health.status != 200:
        return str(seen.health.status or "no answer")
    said = seen.model_info.values.get("weight_version") if seen.model_info else None
    if not follower and said != seen.launch.weight_version:
        return "wrong identity"
    # Healthy is not proven right: a start that failed its gates answers /health too.
    return "ok" if committed == seen.launch.release else "ungated"


def _note(outcome: Seen, seen: Observation) -> str:
    from ddops.model import State

    notes = []
    if seen.engine is not State.UP and seen.engine_why:
        notes.append(seen.engine_why)
    if seen.server_info and seen.server_info.values.get("ddops_simulated"):
        notes.append("sim")
    elif seen.server_info and seen.server_info.values.get("device") == "cpu":
        notes.append("cpu")
    if outcome.locked:
        notes.append(f"locked by {outcome.locked}")
    return ", ".join(notes)


def _json(host: Host, service: Service, outcome: Seen | Exception) -> dict[str, object]:
    from ddops.deploy import port_of
    from ddops.model import State

    base: dict[str, object] = {
        "host": host.name,
        "origin": host.origin.kind,
        "service": service.name,
        "url": f"http://{service.listen}:{port_of(host, service)}",
    }
    if isinstance(outcome, Exception):
        return {**base, "state": "unknown", "why": str(outcome)}
    seen = outcome.observation
    if seen is None:
        return {**base, "state": "not provisioned"}
    launch, up = seen.launch, seen.engine is State.UP
    return {
        **base,
        "state": seen.engine.value,
        "release": launch.release if launch and up else None,
        "nonce": launch.nonce if launch and up else None,
        "committed": outcome.committed,
        "health": health_word(seen, outcome.committed, follower=service.node.rank > 0)
        if up
        else None,
        "pid": seen.pid if up else None,
        "uptime_s": seen.uptime_s,
        "rss_bytes": seen.rss_bytes,
        "server": dict(seen.server_info.values) if seen.server_info else {},
        "locked": outcome.locked or None,
        "observed_at": seen.at,
    }


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
