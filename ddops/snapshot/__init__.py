"""Snapshots: a source tree with all that belongs to it, at places that verify their copy."""

from ddops.snapshot.before_deploy import BeforeDeploy, Step, snapshot_for_deploy
from ddops.snapshot.make import Made, Tools, snapshot_host
from ddops.snapshot.model import Manifest, parse_manifest

__all__ = [
    "BeforeDeploy",
    "Made",
    "Manifest",
    "Step",
    "Tools",
    "parse_manifest",
    "snapshot_for_deploy",
    "snapshot_host",
]
