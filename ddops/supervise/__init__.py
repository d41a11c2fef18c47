"""Who keeps a service running on a host: one protocol, `process` and `systemd` behind it."""

from ddops.supervise.base import ServiceState, Supervisor
from ddops.supervise.process import ProcessSupervisor
from ddops.supervise.systemd import SystemdSupervisor

__all__ = ["ProcessSupervisor", "ServiceState", "Supervisor", "SystemdSupervisor"]
