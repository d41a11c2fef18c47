"""On which port a service listens on a host."""

from __future__ import annotations

from ddops.errors import RefusedError
from ddops.inventory.model import Host, Service


def port_of(host: Host, service: Service) -> int:
    """The service's port; a host may have another (`vars.port`), as lab hosts do."""
    value = host.vars.get("port", service.port)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise RefusedError(f"{host.name}: vars.port is not a port: {value!r}")
    return value
