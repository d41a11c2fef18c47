"""A host's provision plan, made and done: one look, then exactly that, under the host's lock."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddops import lock
from ddops.clock import Clock
from ddops.command import sh
from ddops.errors import CommandFailed
from ddops.events import Event, Reporter
from ddops.inventory.model import Host, Service
from ddops.layout import HostLayout
from ddops.plan import Plan, Step, apply_plan, make_plan
from ddops.provision.build import Provision
from ddops.supervise import require_drained
from ddops.transport import Transport

Lookup = Callable[[str], Path]
_JOURNAL = 'umask 077; cat >> "$1"'


@dataclass(frozen=True, slots=True)
class Prepared:
    """One host with its steps and the plan made of them."""

    transport: Transport
    steps: list[Step]
    plan: Plan


def plan_host(
    transport: Transport,
    host: Host,
    services: Sequence[Service],
    lookup: Lookup,
    workdir: Path,
    *,
    routes: bool = False,
) -> Prepared:
    """What provision would do. `workdir` must be there until the plan is done."""
    steps = Provision(transport, host, services, lookup, workdir, routes).steps()
    return Prepared(transport, steps, make_plan(host.name, steps))


def do_plan(
    prepared: Prepared,
    host: Host,
    *,
    report: Reporter,
    clock: Clock,
    stopped: Callable[[], bool],
    lock_wait_s: float = 0.0,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Do exactly the plan, journaled on the host; how many steps were done.

    `pause` is how it waits for the lock; it raises when a stop is asked for meanwhile.
    """
    layout = HostLayout(host.engine_dir)
    op_id = f"{clock.now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    owner = lock.owner(op_id, f"provision {prepared.plan.digest[:12]}", clock)

    def journal(step: str, state: str) -> None:
        row = {"at": clock.now().isoformat(timespec="seconds"), "op": op_id, "step": step,
               "state": state}  # fmt: skip
        line = (json.dumps(row) + "\n").encode()
        done = prepared.transport.run(sh(_JOURNAL, layout.journal).with_stdin(line))
        if not done.ok:
            raise CommandFailed(f"{host.name}: no journal", rc=done.rc, stderr=done.err)

    require_drained(prepared.transport, host)
    with lock.holding(
        prepared.transport, layout, owner, wait_s=lock_wait_s, pause=pause,
        tell=lambda words: report.emit(Event("lock", words, host.name)),
    ):  # fmt: skip
        return apply_plan(
            prepared.plan, prepared.steps, report=report, journal=journal, stopped=stopped
        )
