"""What a deploy would do, for people to read: from local files, and a look at the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ddops.command import Redactor
from ddops.deploy.host import ServiceOnHost, serves
from ddops.deploy.machine import STATES
from ddops.deploy.run import committed, look, port_of, prepare
from ddops.errors import UnreachableError
from ddops.inventory.model import Host, Profile, Service
from ddops.model import short
from ddops.transport import Transport

Lookup = Callable[[str], Path]


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """What a deploy would do, for people to read: nothing here has touched a host."""

    host: str
    service: str
    profile: str
    release_words: str
    host_words: str
    digest: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    unit: str
    transitions: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, object]:
        out = asdict(self)
        out["transitions"] = [{"state": s, "plan": w} for s, w in self.transitions]
        return out


def plan_release(
    transport: Transport, host: Host, service: Service, profile: Profile, lookup: Lookup
) -> ReleasePlan:
    """Render the release and look at the host. A host that does not answer is UNKNOWN."""
    release = prepare(host, service, profile, lookup)
    target = ServiceOnHost(transport, host, service, port_of(host, service), lookup, Redactor())
    files = target.orchestrator.render(target.order(release), lookup)
    state, why = "ok", ""
    try:
        seen = look(target)
        if seen is None:
            state, host_words = "refused", f"not provisioned; next: ddops provision {host.name}"
        elif serves(seen, release.digest, follower=target.node.rank > 0) and committed(
            target, release
        ):
            state, host_words = "unchanged", "unchanged: this release is live"
        else:
            now = seen.launch.release[:12] if seen.launch else "nothing"
            host_words = f"engine {seen.engine.value}, serves {now}"
    except UnreachableError as error:
        state, why = "unknown", error.what
        host_words = f"UNKNOWN: {why}"
    hidden = [(k, f"(secret, {ref})") for k, ref in release.launch.secret_env]
    argv = release.launch.argv
    if release.launch.api_key is not None:
        argv = (*argv, "--config", "(file with the API key, mode 0600)")
    return ReleasePlan(
        host.name, service.name, profile.name, short(release.digest), host_words, release.digest,
        argv, tuple(sorted([*release.launch.env, *hidden])), "\n".join(files.values()),
        _transitions(state, host, routed=service.router is not None),
    )  # fmt: skip


def _transitions(state: str, host: Host, *, routed: bool = False) -> tuple[tuple[str, str], ...]:
    """Each transition with what is known of it without touching the host."""
    if state == "unchanged":
        return (("unchanged", "nothing would be done"),)
    host_step = {"unknown": "UNKNOWN: the host does not answer", "refused": "refused"}.get(state)
    no_gpu = (host.host_class or "cpu") == "cpu" or host.simulated
    skips = {
        **({} if routed else {"drained": "SKIP: no router stands before this service"}),
        **({"vram_free": "SKIP: no GPU behind this host"} if no_gpu else {}),
    }
    local = {"rendered": "ok: from local files", **skips}
    return tuple((s, local.get(s, host_step or "would be done")) for s in STATES)
