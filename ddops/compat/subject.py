"""What the inventory says, brought into the form in which it is judged."""

from __future__ import annotations

from ddops.compat.model import ROUTER_ALONE, Launch, Subject
from ddops.engines import LaunchSpec
from ddops.inventory.model import Host, Service
from ddops.probe import Facts


def launch_of(spec: LaunchSpec, engine: str, service: Service, host: Host) -> Launch:
    """A rendered launch of an `engine` (`sglang-0.5.23`) as the checks read it, its paths those
    of this host."""
    node = service.node
    values = {"engine_dir": host.engine_dir, "rank": str(node.rank), "dist_addr": node.address}
    argv, env = spec.expand(values)
    # ddops brings the plugin of this algorithm along (sglang_ddtree).
    return Launch(tuple(argv), env, engine, service.model, ("DDTREE",))


def subject_of(
    facts: Facts, host: Host, launch: Launch | None = None, *, router: bool = False
) -> Subject:
    """A host's facts with what the inventory says the host is for; `router`: for that alone."""
    if router:
        return Subject(facts, "cpu", ROUTER_ALONE)
    return Subject(
        facts, host.host_class or "cpu", host.engine_env, host.pins.gpu_uuids, launch=launch
    )
