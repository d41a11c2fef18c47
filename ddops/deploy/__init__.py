"""Making a release live: staged whole, gated, recorded, and taken back when it fails."""

from ddops.deploy.machine import Settings
from ddops.deploy.run import (
    Outcome,
    ReleasePlan,
    Tools,
    deploy_release,
    deploy_service,
    gpus_needed,
    look,
    plan_release,
    port_of,
    prepare,
)
from ddops.deploy.stop import Stop, on_interrupt

__all__ = [
    "Outcome",
    "ReleasePlan",
    "Settings",
    "Stop",
    "Tools",
    "deploy_release",
    "deploy_service",
    "gpus_needed",
    "look",
    "on_interrupt",
    "plan_release",
    "port_of",
    "prepare",
]
