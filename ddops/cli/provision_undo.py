"""`ddops provision --undo`: what a host's setup changed, back to what was there before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddops.cli.app import App
    from ddops.inventory import Host
    from ddops.provision import HostSide


def undo(
    app: App, hosts: Sequence[Host], *, dry_run: bool, lock_wait: float, yes: bool, as_json: bool
) -> None:
    """Show what would be undone, then undo exactly that."""
    from ddops.cli.app import end_together
    from ddops.cli.options import confirm
    from ddops.cli.output import emit_json, emit_line
    from ddops.provision import setup_manifest

    sides = {h.name: _side(app, h) for h in hosts}
    outcomes = app.fan_out(hosts, lambda h: setup_manifest(sides[h.name]))
    plans = [(h, ids) for h, ids in outcomes if isinstance(ids, list)]
    if as_json:
        emit_json("provision-undo", [{"host": h.name, "undo": ids} for h, ids in plans])
    else:
        for host, ids in plans:
            emit_line(f"{host.name}: {len(ids)} things of its setup can be undone")
            for one in ids:
                emit_line(f"  - {one}")
    work = [(h, ids) for h, ids in plans if ids]
    failed = [(h.name, o) for h, o in outcomes if isinstance(o, Exception)]
    if dry_run or not work:
        end_together(failed or [(h.name, o) for h, o in outcomes], app.report)
        return
    confirm(f"Undo the setup of {', '.join(h.name for h, _ in work)}?", yes)
    done = app.fan_out(work, lambda p: _undo_one(app, p[0], sides[p[0].name], p[1], lock_wait))
    for (host, _), outcome in done:
        if isinstance(outcome, Exception):
            continue
        undone, left = outcome
        for words in left:
            app.warn(words, host.name)
        app.say(f"{len(undone)} undone, {len(left)} of them in part or left", host.name)
    end_together([*failed, *((h.name, o) for (h, _), o in done)], app.report)


def _side(app: App, host: Host) -> HostSide:
    from ddops.layout import HostLayout
    from ddops.provision import HostSide

    return HostSide(app.transport(host), HostLayout(host.engine_dir), host.python)


def _undo_one(
    app: App, host: Host, side: HostSide, ids: list[str], lock_wait: float
) -> tuple[list[str], list[str]]:
    import secrets

    from ddops import lock
    from ddops.clock import SystemClock
    from ddops.provision import undo_setup

    clock = SystemClock()
    op_id = f"{clock.now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    owner = lock.owner(op_id, "provision --undo", clock)
    with lock.holding(
        side.transport, side.layout, owner, wait_s=lock_wait,
        tell=lambda words: app.say(words, host.name),
    ):  # fmt: skip
        return undo_setup(side, op_id, ids)
