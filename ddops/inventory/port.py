"""On which port a service listens on a host."""

from __future__ import annotations

from ddops.errors import ConfigError, Problem
from ddops.inventory.model import Host, Service


def port_of(host: Host, service: Service) -> int:
    """The service's port; a host may have another (`vars.port`), as lab hosts do."""
    value = host.vars.get("port", service.port)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        place = Problem(
            str(host.origin.file), host.origin.line, f"hosts.{host.name}.vars.port",
            f"not a port: {value!r}",
        )  # fmt: skip
        raise ConfigError([place], next="write a whole number from 1 to 65535 there")
    return value
