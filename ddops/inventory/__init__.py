"""Hosts, services and profiles people write, and the expressions that name them.

Names are fetched when asked for, as in `ddops.config`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddops.inventory.checks import GateRule, parse_gate
    from ddops.inventory.complete import target_names
    from ddops.inventory.merge import Inventory, load
    from ddops.inventory.model import (
        Alias,
        Evidence,
        Host,
        Origin,
        Pins,
        Profile,
        Service,
        Spec,
        Waiver,
    )
    from ddops.inventory.schemas import json_schema
    from ddops.inventory.targets import (
        Selection,
        hosts_of,
        one_service_per_host,
        placed,
        resolve,
        services_on,
    )
    from ddops.inventory.waive import add_waivers

_HOME = {
    "checks": ("GateRule", "parse_gate"),
    "complete": ("target_names",),
    "merge": ("Inventory", "load"),
    "model": (
        "Alias",
        "Evidence",
        "Host",
        "Origin",
        "Pins",
        "Profile",
        "Service",
        "Spec",
        "Waiver",
    ),
    "schemas": ("json_schema",),
    "targets": (
        "Selection",
        "hosts_of",
        "one_service_per_host",
        "placed",
        "resolve",
        "services_on",
    ),
    "waive": ("add_waivers",),
}

__all__ = [
    "Alias",
    "Evidence",
    "GateRule",
    "Host",
    "Inventory",
    "Origin",
    "Pins",
    "Profile",
    "Selection",
    "Service",
    "Spec",
    "Waiver",
    "add_waivers",
    "hosts_of",
    "json_schema",
    "load",
    "one_service_per_host",
    "parse_gate",
    "placed",
    "resolve",
    "services_on",
    "target_names",
]


if not TYPE_CHECKING:  # a type checker sees the imports above, and so each misspelt name

    def __getattr__(name: str) -> object:
        for module, names in _HOME.items():
            if name in names:
                return getattr(import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
