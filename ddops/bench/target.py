"""The deployed service that is measured, as seen from here; runs plans on its host."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddops.bench.answer import Load, parse_load
from ddops.bench.plan import LoadPlan, Where
from ddops.command import cmd
from ddops.errors import CommandFailed, RefusedError
from ddops.gates import Golden, Observation, parse_golden
from ddops.inventory.model import Host, Profile, Service
from ddops.layout import HostLayout
from ddops.ledger import Launch, Ledger
from ddops.ledger.bench_records import Device
from ddops.model import State
from ddops.supervise import Orchestrator, orchestrator_of
from ddops.transport import Transport

#: What the client's compressed answer may be large.
ANSWER_LIMIT = 512 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """One service on one host. `profile` is the one it is said to be deployed with."""

    transport: Transport
    host: Host
    service: Service
    profile: Profile
    port: int
    lookup: Callable[[str], Path]

    @property
    def layout(self) -> HostLayout:
        return HostLayout(self.host.engine_dir)

    @property
    def model(self) -> str:
        return self.service.served_model_name or self.service.model

    @property
    def orchestrator(self) -> Orchestrator:
        return orchestrator_of(self.transport, self.host, self.service)

    def observe(self) -> Observation:
        return self.orchestrator.observe(self.service.name, self.port)

    def where(self, weight_version: str | None) -> Where:
        listen = self.service.listen
        return Where(
            host="127.0.0.1" if listen in ("0.0.0.0", "::", "localhost") else listen,  # noqa: S104
            port=self.port,
            model=self.model,
            service_dir=self.layout.service(self.service.name).dir,
            weight_version=weight_version,
        )

    def run(self, plan: LoadPlan) -> Load:
        """Run a plan where the engine runs, over loopback."""
        command = cmd(
            self.host.python, "-m", "load", env={"PYTHONPATH": self.layout.hostside}
        ).with_stdin(plan.dump())
        beside = self.orchestrator.inside(self.service.name)
        done = beside.run(command, deadline_s=plan.patience_s, limit=ANSWER_LIMIT)
        if not done.ok or done.truncated:
            raise CommandFailed(
                f"{self.host.name}: the measuring client did not finish",
                rc=done.rc,
                why="its answer was too long" if done.truncated else done.err.strip()[-1500:],
                next=f"ddops provision {self.host.name} brings its scripts up to date",
            )
        return parse_load(done.stdout)

    def golden(self) -> Golden | None:
        if self.service.golden is None:
            return None
        return parse_golden(self.golden_text() or "", str(self.service.golden))

    def golden_text(self) -> str | None:
        if self.service.golden is None:
            return None
        return self.lookup(self.service.golden).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Proof:
    """Which start of which release answers. `launch` None: this ledger has no row of it."""

    weight_version: str
    nonce: str
    release: str
    launch: Launch | None
    seen: Observation


def prove(target: Target, ledger: Ledger) -> Proof:
    """Raises RefusedError when it is not our start that answers; nothing is sent then."""
    seen = target.observe()
    name, where = target.service.name, target.host.name
    if seen.engine is not State.UP or seen.launch is None:
        raise RefusedError(
            f"{where}: {name} does not run", why=seen.engine_why, next=f"ddops deploy {where}"
        )
    if not seen.port.owned:
        owner = seen.port.owner or "nobody"
        raise RefusedError(
            f"{where}: port {target.port} is not {name}'s",
            why=f"it is held by {owner}; ddops never ends a stranger's process",
            next=f"ddops status {where}",
        )
    said = seen.model_info.values.get("weight_version") if seen.model_info else None
    if said != seen.launch.weight_version:
        raise RefusedError(
            f"{where}: {name} is not the start that is on record",
            why=f"it says it is {said!r}, the record says {seen.launch.weight_version!r}",
            next=f"ddops deploy {where}",
        )
    launch, known = seen.launch, known_start(ledger, seen.launch.nonce)
    return Proof(launch.weight_version, launch.nonce, launch.release, known, seen)


def known_start(ledger: Ledger, nonce: str) -> Launch | None:
    """The ledger's own row of a start. Another's, that was brought in, is none: no row of this one
    may refer to it."""
    found = ledger.launch(nonce)
    return found if found is not None and found.ledger == ledger.ledger_id else None


def unknown_start(proof: Proof) -> str:
    """Why a run is not bound to a start. A deploy that finds all unchanged writes nothing down."""
    return (
        f"the ledger here does not know the start {proof.nonce}: another ledger has its deploy;"
        " ddops bench sweep starts one that this one knows"
    )


def device_of(info: object, host: Host) -> Device:
    """What computed, by the server's own word; a recorded host never counts as a GPU."""
    said = info if isinstance(info, dict) else {}
    if said.get("ddops_simulated") or host.simulated:
        return Device.SIM
    return {"cpu": Device.CPU, "cuda": Device.GPU}.get(str(said.get("device")), Device.UNKNOWN)


def by() -> str:
    """Who asks: for the record."""
    import getpass
    import socket

    return f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()}"
