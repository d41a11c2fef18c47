"""What people write in `inventory/`: hosts, services, profiles. The schema is these types.

A `...Table` is what a file may hold. The type without that ending is the loaded entry: it
knows its name and where it was written. No type here holds a secret, only references to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field, structs

OriginKind = Literal["project", "lab", "shipped"]
HostClass = Literal["pcie", "nvlink", "cpu"]
EngineEnv = Literal["sglang", "sglang-cpu", "sim"]
SupervisorKind = Literal["systemd", "process"]
OrchestratorKind = Literal["systemd", "process", "slurm", "kubernetes"]
RouterPolicy = Literal["cache_aware", "power_of_two", "round_robin", "random"]
Algorithm = Literal["none", "DFLASH", "DDTREE", "EAGLE3", "NGRAM"]
EvidenceStatus = Literal["measured", "reported", "untested"]

Text = Annotated[str, Meta(min_length=1)]
HostPath = Annotated[str, Meta(pattern=r"^/", description="an absolute path on the host")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Scalar = str | int | float | bool
LaunchValue = Scalar | tuple[str | int | float, ...]


class Origin(Struct, frozen=True):
    """Where an entry was written. `line` is its table's, 1 for a file of its own."""

    kind: OriginKind
    file: Path
    line: int = 1

    @property
    def tag(self) -> str:
        """What a listing shows behind the name; nothing for the project's own entries."""
        return "" if self.kind == "project" else f"[{self.kind}]"


class Pins(Struct, frozen=True, kw_only=True):
    """What must not change unasked: `host_key` is `SHA256:` and 43 characters."""

    host_key: Annotated[str, Meta(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")] | None = None
    gpu_uuids: tuple[Annotated[str, Meta(pattern=r"^GPU-[0-9a-f-]{36}$")], ...] = ()


#: Names of the cluster's objects, and amounts as it spells them. A length stands in the pattern:
#: it is judged with the rest.
ObjectName = Annotated[
    str,
    Meta(
        pattern=r"^(?=.{1,63}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        description="a Kubernetes name: small letters, digits and '-', at most 63,"
        " a letter or a digit first and last",
    ),
]
Memory = Annotated[
    str,
    Meta(pattern=r"^[1-9][0-9]{0,6}(Mi|Gi|Ti)$", description="an amount of memory, such as 64Gi"),
]
Cores = Annotated[
    str,
    Meta(pattern=r"^([1-9][0-9]{0,3}|[1-9][0-9]{0,6}m)$", description="cores, such as 32 or 500m"),
]
ImageByDigest = Annotated[
    str,
    Meta(
        pattern=r"^(?=.{1,512}$)[a-z0-9][a-z0-9._/-]*(:[0-9]+/[a-z0-9._/-]+)?"
        r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?@sha256:[0-9a-f]{64}$",
        description="an image by its digest, NAME@sha256:... (64 hex digits);"
        " a tag alone can be another image tomorrow",
    ),
]
Resource = Annotated[
    str,
    Meta(
        pattern=r"^(?=.{3,120}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        description="a resource's name, such as nvidia.com/gpu",
    ),
]


class KubernetesTable(Struct, frozen=True, kw_only=True):
    """`[hosts.NAME.kubernetes]`: where pods of a service run that has this kind of host.

    `secret` holds a service's secrets by name, `pull_secret` the registry's; by default the first
    has the service's name. `gpus` is what the launch's parallelism needs.
    """

    image: ImageByDigest
    models_claim: ObjectName
    namespace: ObjectName = "default"
    secret: ObjectName | None = None
    pull_secret: ObjectName | None = None
    gpus: Annotated[int, Meta(ge=0, le=64)] | None = None
    gpu_resource: Resource = "nvidia.com/gpu"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    shm: Memory = "32Gi"
    cpu: Cores | None = None
    memory: Memory | None = None
    user: Annotated[int, Meta(ge=1, le=2147483647)] = 10001


#: What may stand in a job script behind `#SBATCH --name=`.
SlurmWord = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:,+-]*$")]


class SlurmTable(Struct, frozen=True, kw_only=True):
    """`[hosts.NAME.slurm]`: what a job of a service with `engine = "slurm"` asks for.

    `gres` as in `gpu:h200:8`, per node; nodes are exclusive. A job that still waits for nodes
    after `queue_s` is cancelled. `node` is Slurm's name of this very host, where it is a node.
    """

    partition: SlurmWord | None = None
    account: SlurmWord | None = None
    gres: SlurmWord | None = None
    time_limit: Annotated[str, Meta(pattern=r"^(UNLIMITED|[0-9]+(-[0-9]+)?(:[0-9]+){0,2})$")] = (
        "UNLIMITED"
    )
    queue_s: Annotated[float, Meta(gt=0)] = 600.0
    node: SlurmWord | None = None


class HostTable(Struct, frozen=True, kw_only=True):
    """`[hosts.NAME]` of hosts.toml."""

    ssh: Annotated[
        str, Meta(pattern=r"^[^-\s][^\s]*$", description="what ssh would be called with")
    ]
    ssh_config: Text | None = None
    groups: tuple[Text, ...] = ()
    engine_dir: HostPath = "/opt/ddops"
    host_class: HostClass | None = field(name="class", default=None)
    engine_env: EngineEnv = "sglang"
    supervisor: SupervisorKind = "systemd"
    wheelhouse: HostPath | None = None
    pip_index: Text | None = None
    python: Text = "python3"
    setup: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$")] | None = None
    pins: Pins = Pins()
    simulated: bool = False
    kubernetes: KubernetesTable | None = None
    slurm: SlurmTable = SlurmTable()
    vars: Mapping[str, Scalar] = field(default_factory=dict)


class Host(HostTable, frozen=True, kw_only=True):
    """A machine. Two hosts of one name and file are one host."""

    name: str
    origin: Origin

    def __hash__(self) -> int:
        return hash((Host, self.name))


class RouterTable(Struct, frozen=True, kw_only=True):
    """`[router]` of a service: SGLang's own router in front of the service's hosts.

    `drain_s` is how long a replica may take to finish its requests before it is updated.
    """

    host: Text
    port: Port = 30080
    metrics_port: Port = 29000
    listen: Text = "127.0.0.1"
    policy: RouterPolicy = "cache_aware"
    drain_s: Annotated[float, Meta(gt=0)] = 600.0


class ServiceTable(Struct, frozen=True, kw_only=True):
    """services/NAME.toml: what is served, where, and what it must prove.

    `model_path` and `draft_path` are paths on the host and may hold `${engine_dir}`.
    `model_source`, `draft_source` and `golden` are looked up in the project, then in the package.
    """

    model: Text
    revision: Text | None = None
    model_path: Text | None = None
    model_source: Text | None = None
    draft: Text | None = None
    draft_revision: Text | None = None
    draft_path: Text | None = None
    draft_source: Text | None = None
    profile: Text
    engine: OrchestratorKind | None = None
    hosts: Annotated[tuple[Text, ...], Meta(min_length=1)]
    port: Port = 30000
    listen: Text = "127.0.0.1"
    nnodes: Count = 1
    dist_port: Port = 20000
    gates: tuple[str, ...] = ()
    golden: Text | None = None
    require_snapshot: bool = False
    soak_s: Annotated[float, Meta(ge=0)] = 0.0
    served_model_name: Text | None = None
    api_key: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    router: RouterTable | None = None


class Node(Struct, frozen=True):
    """A host's place in an engine on several hosts. `address` is where rank 0 waits for the others;
    empty where the place is not known, as for a service on one host. `later`: it is found out when
    it starts, by the nodes of a job."""

    rank: int = 0
    address: str = ""
    later: bool = False


class Service(ServiceTable, frozen=True, kw_only=True):
    """One thing that is served. `node` is filled in for a host by `targets.placed`."""

    name: str
    origin: Origin
    node: Node = Node()

    def handed_to(self, kind: str) -> Service:
        """The same, in the hands of another orchestrator."""
        return structs.replace(self, engine=kind)

    @property
    def hosts_of_one(self) -> int:
        """How many of its hosts make one engine; nodes that an orchestrator chooses are none."""
        return 1 if self.engine in ("slurm", "kubernetes") else self.nnodes

    def __hash__(self) -> int:
        return hash((Service, self.name))


class Spec(Struct, frozen=True, kw_only=True):
    """Speculative decoding. `budget` counts a tree's nodes besides its root.

    `block` is the drafter's block size, so a draft is at most `block - 1` tokens deep.
    """

    algorithm: Algorithm = "none"
    budget: Count | None = None
    topk: Count | None = None
    block: Annotated[int, Meta(ge=2)] | None = None


class Evidence(Struct, frozen=True, kw_only=True):
    """Why anyone should believe in a profile. `runs` are ids of the ledger."""

    status: EvidenceStatus = "untested"
    runs: tuple[Text, ...] = ()
    source: str = ""
    note: str = ""


class ProfileTable(Struct, frozen=True, kw_only=True):
    """profiles/NAME.toml: launch settings. `launch` has the engine's option names without `--`."""

    engine: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9]*-[0-9][0-9a-z.]*$")] = "sglang-0.5.23"
    launch: Mapping[str, LaunchValue] = field(default_factory=dict)
    spec: Spec = Spec()
    env: Mapping[str, str] = field(default_factory=dict)
    evidence: Evidence = Evidence()


class Profile(ProfileTable, frozen=True, kw_only=True):
    """Launch settings under a name."""

    name: str
    origin: Origin

    def __hash__(self) -> int:
        return hash((Profile, self.name))


class HostsFile(Struct, frozen=True, kw_only=True):
    """hosts.toml: machines, and other names for hosts, groups and services."""

    hosts: Mapping[str, HostTable] = field(default_factory=dict)
    aliases: Mapping[str, Text] = field(default_factory=dict)


class WaiverTable(Struct, frozen=True, kw_only=True):
    """`[[waiver]]` of waivers.toml: a failed check that a deploy may pass over, until a day.

    `on` names hosts or groups; `until` is the last day on which it holds, in UTC.
    """

    check: Annotated[str, Meta(pattern=r"^[A-Z0-9]+-[A-Z0-9]+$")]
    on: Annotated[tuple[Text, ...], Meta(min_length=1)]
    reason: Text
    owner: Text
    until: date


class Waiver(WaiverTable, frozen=True, kw_only=True):
    """A waiver, and where it was written."""

    origin: Origin

    def covers(self, host: Host) -> bool:
        """Whether it is meant for this host; the day is another question."""
        return host.name in self.on or any(g in self.on for g in host.groups)


class WaiversFile(Struct, frozen=True, kw_only=True):
    """waivers.toml: checks that may fail on a host, each with its reason and its end."""

    waiver: tuple[WaiverTable, ...] = ()


class Alias(Struct, frozen=True):
    """Another name for a host, a group or a service."""

    name: str
    target: str
    origin: Origin
