"""Who keeps a service running on a host: one protocol, `process` first, `systemd` beside it."""

from ddops.supervise.base import ServiceState, Supervisor
from ddops.supervise.process import ProcessSupervisor

__all__ = ["ProcessSupervisor", "ServiceState", "Supervisor"]
