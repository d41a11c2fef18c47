"""Hosts, services and profiles people write, and the expressions that name them."""

from ddops.inventory.checks import GateRule, parse_gate
from ddops.inventory.load import Inventory, load
from ddops.inventory.model import Alias, Evidence, Host, Origin, Pins, Profile, Service, Spec
from ddops.inventory.schemas import json_schema
from ddops.inventory.targets import (
    Selection,
    hosts_of,
    one_service_per_host,
    resolve,
    services_on,
)

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
    "hosts_of",
    "json_schema",
    "load",
    "one_service_per_host",
    "parse_gate",
    "resolve",
    "services_on",
]
