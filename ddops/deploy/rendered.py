"""What a release comes to as files, for whoever runs it. From local files; nothing is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddops.command import Redactor
from ddops.deploy.host import Lookup, ServiceOnHost
from ddops.deploy.release import release_files
from ddops.deploy.run import port_of, prepare
from ddops.engines import LaunchSpec
from ddops.errors import RefusedError
from ddops.inventory.model import Host, Profile, Service
from ddops.supervise.kubernetes import KubernetesManifests
from ddops.transport import Transport

KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Rendered:
    """Texts by relative name. `secrets` are the names under which values are wanted, each with its
    reference; no value is among the files."""

    digest: str
    files: Mapping[str, str]
    secrets: tuple[tuple[str, str], ...]


def rendered_for_host(
    transport: Transport, host: Host, service: Service, profile: Profile, lookup: Lookup
) -> Rendered:
    """What a deploy would lay down on this host, secrets left out. The transport is not used."""
    release = prepare(host, service, profile, lookup)
    target = ServiceOnHost(transport, host, service, port_of(host, service), lookup, Redactor())
    files = {
        **target.orchestrator.render(target.order(release), lookup),
        **release_files(release, host, target.port, target.node),
    }
    return Rendered(
        release.digest,
        {f"{host.name}/{name}": _ending(text) for name, text in files.items()},
        secrets_of(release.launch),
    )


def rendered_for_kubernetes(
    transport: Transport,
    pairs: Sequence[tuple[Host, Service]],
    profile: Profile,
    lookup: Lookup,
    *,
    load_budget_s: float,
    keep: int,
) -> Rendered:
    """One service as a cluster's objects; the first of its hosts says what a node is like."""
    host, service = pairs[0]
    release = prepare(host, service, profile, lookup)
    target = ServiceOnHost(transport, host, service, port_of(host, service), lookup, Redactor())
    hosts = tuple(h for h, _ in pairs)
    manifests = KubernetesManifests(release.content, profile, hosts, load_budget_s, keep)
    files = manifests.render(target.order(release), lookup)
    return Rendered(release.digest, files, secrets_of(release.launch))


def secrets_of(launch: LaunchSpec) -> tuple[tuple[str, str], ...]:
    """Name and reference of each secret of a launch, the API key first."""
    key = (("api-key", launch.api_key),) if launch.api_key is not None else ()
    return (*key, *launch.secret_env)


def refuse_kubernetes(services: Iterable[Service], next: str = "") -> None:
    """Raise RefusedError for one that is rendered here and run elsewhere; `next` may hold
    `{service}`."""
    for service in services:
        if service.engine == KUBERNETES:
            wanted = next or "ddops deploy {service} --render-only -o DIR"
            raise RefusedError(
                f"{service.name} runs on Kubernetes, and ddops talks to no cluster",
                why="its manifests are rendered, and kubectl does the rest",
                next=wanted.replace("{service}", service.name),
            )


def _ending(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
