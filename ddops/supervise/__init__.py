"""Who runs a service: one protocol, with `process` and `systemd` as its simplest members."""

from __future__ import annotations

from ddops.errors import RefusedError
from ddops.inventory.model import Host, Service
from ddops.layout import HostLayout
from ddops.supervise.base import Orchestrator, Order, Renders, ServiceState
from ddops.supervise.process import ProcessSupervisor
from ddops.supervise.slurm import SlurmJob, require_drained
from ddops.supervise.systemd import SystemdSupervisor
from ddops.transport import Transport

__all__ = [
    "Orchestrator",
    "Order",
    "ProcessSupervisor",
    "Renders",
    "ServiceState",
    "SlurmJob",
    "SystemdSupervisor",
    "orchestrator_of",
    "require_drained",
]

_KINDS: dict[str, type[ProcessSupervisor] | type[SystemdSupervisor] | type[SlurmJob]] = {
    "process": ProcessSupervisor,
    "systemd": SystemdSupervisor,
    "slurm": SlurmJob,
}


def orchestrator_of(transport: Transport, host: Host, service: Service) -> Orchestrator:
    """The service's own word, else its host's. Raises RefusedError where none drives it yet."""
    name = service.engine or host.supervisor
    kind = _KINDS.get(name)
    if kind is None:
        raise RefusedError(
            f"{host.name}: {service.name} cannot be handed to {name} from here",
            why="its files are rendered, and submitting them is not there",
            next=f"set `engine` in {service.origin.file} to one of {', '.join(_KINDS)}",
        )
    return kind(transport, HostLayout(host.engine_dir), host.python)
