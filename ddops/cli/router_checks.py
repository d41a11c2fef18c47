"""What `ddops check` asks of a host that has a router."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.compat import Finding
    from ddops.compat.router_host import RouterOnCheck
    from ddops.inventory import Host, Service
    from ddops.inventory.model import RouterTable
    from ddops.transport import Transport

#: Imports the router and nothing else; says the version that was installed.
_IMPORT = "import importlib.metadata as m, sglang_router; print(m.version('sglang-router'))"
_DEADLINE_S = 40.0


def router_findings(app: App, host: Host, *, kept: bool) -> list[Finding]:
    """Findings about the routers of this host; none where it has none.

    `kept` facts hold nothing of a router, and no host is asked for them.
    """
    from ddops.compat.router_host import RouterOnCheck, about, judge_router_host
    from ddops.inventory.router import router_alone, routers_on

    services = routers_on(app.inventory, host)
    if not services:
        return []
    alone = router_alone(app.inventory, host)
    pairs = [(s, s.router) for s in services if s.router is not None]

    def ask(transport: Transport) -> list[RouterOnCheck]:
        return [_asked(app, host, s, t, transport) for s, t in pairs]

    if kept:
        why = "kept facts hold nothing of it"
        looks = [RouterOnCheck(s.name, t.listen, t.port, why=why) for s, t in pairs]
    else:
        looks = app.reach(host, ask)
    findings = [f for one in looks for f in judge_router_host(one)]
    return [about([s.name for s in services], alone=alone), *findings]


def _asked(
    app: App, host: Host, service: Service, table: RouterTable, transport: Transport
) -> RouterOnCheck:
    """Its port and its environment, from the host; it need not be provisioned for that."""
    from dataclasses import replace

    from ddops.command import cmd, python
    from ddops.compat.router_host import RouterOnCheck
    from ddops.deploy.router_release import router_env
    from ddops.errors import CommandFailed, DeadlineExceeded
    from ddops.gates import parse_observation
    from ddops.hostside import source
    from ddops.inventory.router import SUFFIX
    from ddops.layout import HostLayout

    layout = HostLayout(host.engine_dir)
    where = layout.service(service.name + SUFFIX)
    seen, why = None, ""
    looked = python(source("observe"), where.dir, str(table.port), interpreter=host.python)
    done = transport.run(looked, deadline_s=_DEADLINE_S)
    try:
        seen = parse_observation(done.out) if done.ok else None
    except CommandFailed as error:
        why = f"{error.what}: {error.why}"
    if seen is None and not why:
        why = f"the host cannot be looked at: {done.err.strip()[-200:] or f'ended with {done.rc}'}"
    binary = f"{layout.env(router_env(app.lookup))}/bin/python"
    made = RouterOnCheck(service.name, table.listen, table.port, seen, why=why)
    try:
        ran = transport.run(cmd(binary, "-I", "-c", _IMPORT), deadline_s=_DEADLINE_S)
    except DeadlineExceeded:
        return made
    return replace(made, env_rc=ran.rc, env_said=ran.out if ran.ok else ran.err)
