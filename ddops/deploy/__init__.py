"""Making a release live: staged whole, gated, recorded, and taken back when it fails."""

from ddops.deploy.climb import Settings
from ddops.deploy.drift import Row, Same, drift_of
from ddops.deploy.planned import ReleasePlan, plan_release
from ddops.deploy.rollback import WayBack, look_back, roll_back
from ddops.deploy.run import (
    Outcome,
    Tools,
    deploy_release,
    deploy_service,
    look,
    port_of,
    prepare,
)
from ddops.deploy.stop import Stop, on_interrupt

__all__ = [
    "Outcome",
    "ReleasePlan",
    "Row",
    "Same",
    "Settings",
    "Stop",
    "Tools",
    "WayBack",
    "deploy_release",
    "deploy_service",
    "drift_of",
    "look",
    "look_back",
    "on_interrupt",
    "plan_release",
    "port_of",
    "prepare",
    "roll_back",
]
