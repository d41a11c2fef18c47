"""The router of a service as a release: its own lock, options and unit. Pure but for reading files.

Its replicas are no part of it: they come and go while it runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ddops.config.files import read_text
from ddops.deploy.release import UNIT_PATHS, Release
from ddops.engines import LaunchSpec, release_content, release_digest
from ddops.inventory.router import Routed
from ddops.layout import HostLayout
from ddops.provision.envs import ROUTER, env_recipe
from ddops.render import render

Lookup = Callable[[str], Path]
#: What is the router's, and what a replica's `/health` may take: SGLang's generates a token.
_HEALTH = (
    "--health-check-interval-secs", "5", "--health-check-timeout-secs", "6",
    "--health-failure-threshold", "2", "--health-success-threshold", "1",
)  # fmt: skip
#: A router that is started with its host meets replicas that load for a long time yet.
_PATIENCE = ("--worker-startup-timeout-secs", "14400", "--worker-startup-check-interval", "5")
#: Requests that a stopping router still brings to their end.
SHUTDOWN_S, STOP_GRACE_S = 60, 70


def router_env(lookup: Lookup) -> str:
    """Digest of the router's environment, as provision builds it."""
    with tempfile.TemporaryDirectory(prefix="ddops-") as folder:
        return env_recipe(ROUTER, lookup, Path(folder)).digest


def router_release(routed: Routed, lookup: Lookup) -> Release:
    """What is to run on the router's host for this service."""
    layout, table = HostLayout("${engine_dir}"), routed.table
    lock = router_env(lookup)
    argv = (
        f"{layout.env(lock)}/bin/python", f"{layout.hostside}/router_start.py",
        layout.service(routed.name).dir, "--host", table.listen, "--port", "${port}",
        "--policy", table.policy, "--prometheus-host", "127.0.0.1",
        "--prometheus-port", str(table.metrics_port), *_HEALTH, *_PATIENCE,
        "--shutdown-grace-period-secs", str(SHUTDOWN_S),
    )  # fmt: skip
    launch = LaunchSpec(argv, (), (), routed.service.api_key, STOP_GRACE_S)
    unit = render(
        lookup,
        "router.service.j2",
        {k: v.replace("%s", routed.name) for k, v in UNIT_PATHS.items()}
        | {"service": routed.service.name, "stop_grace_s": launch.stop_grace_s},
    )
    content = release_content(
        service=routed.name, upstream=_version(lookup), series="", plugin="", launch=launch,
        unit=unit, lock=lock, model="", draft="",
    )  # fmt: skip
    return Release(release_digest(content), content, launch, {}, (), None, None)


def _version(lookup: Lookup) -> str:
    text = read_text(lookup("requirements/router.lock"))
    line = next(x for x in text.splitlines() if x.startswith("sglang-router=="))
    return line.split()[0].replace("==", "-")
