"""What a run is given: everything it may touch, passed in."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from ddops.clock import Clock
from ddops.command import Redactor, Secret
from ddops.deploy import Settings, Stop
from ddops.deploy import Tools as DeployTools
from ddops.deploy.drain import drains_of
from ddops.errors import RefusedError, UsageError
from ddops.events import Event, Level, Reporter
from ddops.inventory import Inventory, one_service_per_host, resolve
from ddops.inventory.model import Host, Service
from ddops.ledger import Ledger
from ddops.snapshot import Tools as SnapshotTools
from ddops.transport import ConnectPolicy, SshTarget, Transport


@dataclass(frozen=True, slots=True)
class Context:
    """`ledger` opens a connection for the calling thread. `confirm` asks the person at the
    terminal, and is None where there is none. `snapshots` makes the tools for a host's snapshots.
    """

    root: Path
    state: Path
    inventory: Inventory
    settings: Settings
    policy: ConnectPolicy
    transport: Callable[[Host], Transport]
    ssh_target: Callable[[Host], SshTarget]
    lookup: Callable[[str], Path]
    ledger: Callable[[], AbstractContextManager[Ledger]]
    open_ledger: Callable[[], Ledger]
    resolve: Callable[[str], Secret]
    snapshots: Callable[[Host], SnapshotTools]
    redactor: Redactor
    report: Reporter
    clock: Clock
    stop: Stop
    confirm: Callable[[str], bool] | None = None

    def host(self, name: str) -> Host:
        """A host of the inventory. It may have gone since the run began."""
        found = self.inventory.hosts.get(name)
        if found is None:
            raise UsageError(f"no host {name!r} in the inventory", next="ddops host list")
        return found

    def service(self, host: Host) -> Service:
        """The one service of a host. Raises UsageError for none and for several.

        An engine on several hosts is refused: its hosts go together, and a step has one.
        """
        service = one_service_per_host(resolve(self.inventory, [host.name]))[0][1]
        if service.hosts_of_one > 1:
            raise RefusedError(
                f"{service.name} is one engine on {service.nnodes} hosts",
                why="they go together or not at all, and a runbook's step is about one host",
                next=f"ddops deploy {service.name}",
            )
        return service

    def deploy_tools(self, stop: Stop, lock_wait_s: float, *, unmeasured: str = "") -> DeployTools:
        """What a deploy is given; with `unmeasured` one that a measurement asked for."""
        return DeployTools(
            lookup=self.lookup,
            ledger=self.open_ledger,
            resolve=self.resolve,
            settings=self.settings,
            clock=self.clock,
            stop=stop,
            report=self.report,
            redactor=self.redactor,
            lock_wait_s=lock_wait_s,
            waivers=self.inventory.waivers,
            snapshots=unmeasured or self.snapshots,
            unmeasured=unmeasured,
            drains=drains_of(self.inventory, self.transport, self.lookup, self.redactor, self.say),
        )

    def say(self, message: str, level: Level = Level.INFO) -> None:
        self.report.emit(Event("runbook", message, level=level))


def os_user() -> str:
    """Who this process is to the system: not what `$USER` says, which anybody may set."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    return f"{name}@{socket.gethostname()}"
