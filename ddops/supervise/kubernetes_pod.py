"""The pod that runs one release: its container, probes, volumes and rights. Pure.

Probes ask SGLang what it answers without a key and alike on every node of one engine:

- `/health_generate` is 503 until the model is loaded, then has one token generated; it is what
  "started" and "ready" mean. An engine with work to do answers by that work.
- `/health` is the same unless the launch turns generation off for it. "Alive" asks it with so
  much patience that long prompts never end an engine: minutes without one token, at every look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddops.engines import LaunchSpec
from ddops.inventory.model import Host, KubernetesTable, Service

Json = dict[str, object]

#: Where things lie in the container, besides the host's `engine_dir`.
SIDE, STATE, SECRETS, CACHE = "/ddops/bin", "/ddops/service", "/ddops/secrets", "/ddops/cache"
#: Set by the LeaderWorkerSet controller in every container of a group.
RANK, LEADER = "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"
#: A node of this class carries this label: `kubectl label node NODE ddops/class=nvlink`.
CLASS_LABEL = "ddops/class"
#: An endpoint is taken out of a Service before its pod is told to end; that takes a moment.
DRAIN_S = 5
#: What the guard needs behind the engine's own grace, as on a host.
GUARD_S = 20
#: Seconds between looks, and looks that must fail. The engine itself ends when its scheduler
#: dies or stands still for 300 s, so the last one is for what is left.
STARTED_S, READY_S, READY_LOOKS, ALIVE_S, ALIVE_LOOKS = 10, 15, 3, 30, 20
#: SGLang gives a probe's token so long by itself; a look has to wait longer than that.
PROBE_VARIABLE, PROBE_DEFAULT_S = "SGLANG_HEALTH_CHECK_TIMEOUT", 20


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What a pod is made of. `secret` names the Secret with the service's values, `config` the
    ConfigMap with the start's scripts; `gpus` is for one node."""

    service: Service
    host: Host
    table: KubernetesTable
    launch: LaunchSpec
    port: int
    gpus: int
    release: str
    secret: str
    config: str
    load_budget_s: float


def pod_template(plan: PodPlan, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Json:
    return {
        "metadata": {"labels": dict(labels), "annotations": dict(annotations)},
        "spec": _spec(plan),
    }


def _spec(plan: PodPlan) -> Json:
    table = plan.table
    spec: Json = {
        "automountServiceAccountToken": False,
        # A Service called `sglang` would set SGLANG_PORT in every pod of its namespace.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": plan.launch.stop_grace_s + GUARD_S + DRAIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": table.user,
            "runAsGroup": table.user,
            "fsGroup": table.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if table.pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": table.pull_secret}]
    if table.node_selector:
        spec["nodeSelector"] = dict(sorted(table.node_selector.items()))
    if plan.host.host_class in ("pcie", "nvlink"):
        spec["affinity"] = {"nodeAffinity": _class_affinity(plan.host.host_class)}
    if plan.gpus:
        spec["tolerations"] = [
            {"key": table.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}
        ]
    return {**spec, "containers": [_container(plan)], "volumes": _volumes(plan)}


def _class_affinity(host_class: str) -> Json:
    term = {"key": CLASS_LABEL, "operator": "In", "values": [host_class]}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [term]}]
        }
    }


def _container(plan: PodPlan) -> Json:
    argv, _ = plan.launch.expand(_places(plan))
    ports = [{"name": "http", "containerPort": plan.port}]
    if plan.service.nnodes > 1:
        ports.append({"name": "dist", "containerPort": plan.service.dist_port})
    python = _literal(argv[0])
    return {
        "name": "engine",
        "image": plan.table.image,
        "command": [python, f"{SIDE}/pod.py", STATE, SECRETS],
        "args": [_word(word, plan) for word in argv],
        "env": _env(plan),
        "ports": ports,
        "resources": _resources(plan),
        **_probes(plan),
        "lifecycle": {
            "preStop": {"exec": {"command": [python, "-c", f"import time; time.sleep({DRAIN_S})"]}}
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(plan),
    }


#: Stand in an expanded word for what the cluster fills in; no word of a file holds a NUL.
_RANK_MARK, _DIST_MARK = "\0rank", "\0dist"


def _places(plan: PodPlan) -> dict[str, str]:
    return {
        "engine_dir": plan.host.engine_dir, "port": str(plan.port),
        "rank": _RANK_MARK, "dist_addr": _DIST_MARK,
    }  # fmt: skip


def _word(text: str, plan: PodPlan) -> str:
    marked = _literal(text).replace(_RANK_MARK, f"$({RANK})")
    return marked.replace(_DIST_MARK, f"$({LEADER}):{plan.service.dist_port}")


def _literal(text: str) -> str:
    """The cluster expands `$(NAME)`; a doubled sign is one of the text itself."""
    return text.replace("$", "$$")


def _env(plan: PodPlan) -> list[Json]:
    """What a pod needs and a host has, such as a home, and the launch's own environment."""
    _, env = plan.launch.expand(_places(plan))
    out: dict[str, Json] = {
        # The user of the pod stands in no passwd file; torch asks for its name.
        "HOME": {"value": CACHE},
        "USER": {"value": "ddops"},
        "DDOPS_RELEASE": {"value": plan.release},
        "DDOPS_POD_UID": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    }
    out |= {name: {"value": _literal(text)} for name, text in env.items()}
    for name, _ in plan.launch.secret_env:
        out[name] = {"valueFrom": {"secretKeyRef": {"name": plan.secret, "key": name}}}
    return [{"name": name, **value} for name, value in out.items()]


def _resources(plan: PodPlan) -> Json:
    table = plan.table
    wanted = {"cpu": table.cpu, "memory": table.memory}
    limits = {name: amount for name, amount in wanted.items() if amount is not None}
    if plan.gpus:
        limits[table.gpu_resource] = str(plan.gpus)
    return {"requests": dict(limits), "limits": limits}


def _probes(plan: PodPlan) -> Json:
    looks = max(1, -(-int(plan.load_budget_s) // STARTED_S))
    wait = _probe_limit(plan.launch) + 5

    def look(path: str, every_s: int, times: int) -> Json:
        return {
            "httpGet": {"path": path, "port": "http"},
            "periodSeconds": every_s,
            "timeoutSeconds": wait,
            "failureThreshold": times,
        }

    return {
        "startupProbe": look("/health_generate", STARTED_S, looks),
        "readinessProbe": look("/health_generate", READY_S, READY_LOOKS),
        "livenessProbe": look("/health", ALIVE_S, ALIVE_LOOKS),
    }


def _probe_limit(launch: LaunchSpec) -> int:
    text = dict(launch.env).get(PROBE_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else PROBE_DEFAULT_S


def _mounts(plan: PodPlan) -> list[Json]:
    mounts: list[Json] = [
        {"name": "start", "mountPath": SIDE, "readOnly": True},
        {"name": "service", "mountPath": STATE},
        {"name": "models", "mountPath": f"{plan.host.engine_dir}/models", "readOnly": True},
        {"name": "cache", "mountPath": CACHE},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    if plan.launch.api_key is not None:
        mounts.append({"name": "secrets", "mountPath": SECRETS, "readOnly": True})
    return mounts


def _volumes(plan: PodPlan) -> list[Json]:
    volumes: list[Json] = [
        {"name": "start", "configMap": {"name": plan.config, "defaultMode": 0o444}},
        {"name": "service", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        {
            "name": "models",
            "persistentVolumeClaim": {"claimName": plan.table.models_claim, "readOnly": True},
        },
        # Kernels are compiled at run time; a new pod compiles anew.
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": plan.table.shm}},
    ]
    if plan.launch.api_key is not None:
        items = [{"key": "api-key", "path": "api-key"}]
        volumes.append(
            {
                "name": "secrets",
                "secret": {"secretName": plan.secret, "defaultMode": 0o440, "items": items},
            }
        )
    return volumes
