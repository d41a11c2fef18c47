"""A release as objects of a Kubernetes cluster. Renders only: no cluster is asked.

One node makes a Deployment, several make one group of a LeaderWorkerSet; a Service and a ConfigMap
go with each. The argv is the release's own, and so is its digest. What keeps a service from
becoming a pod is told by file and key, all of it at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddops.config.words import quote
from ddops.engines.sglang import from_tree
from ddops.errors import ConfigError, Problem
from ddops.hostside import source
from ddops.inventory.model import Host, KubernetesTable, Profile
from ddops.model import digest, short
from ddops.render import to_yaml
from ddops.supervise.base import Lookup, Order
from ddops.supervise.kubernetes_pod import Json, PodPlan, pod_template

#: A Service's name begins with a letter; what controllers put behind a name must fit into 63.
MAX_NAME = 40
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?\Z")
#: Folders of a container that are not for an engine folder.
_TAKEN = ("ddops", "dev", "proc", "run", "sys", "tmp")
_GROUP_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
#: Other spellings of the options that say how many GPUs a launch takes.
_SIZES = {
    "tp-size": ("tensor-parallel-size", "tp"),
    "pp-size": ("pipeline-parallel-size", "pp"),
    "dp-size": ("data-parallel-size", "dp"),
}


@dataclass(frozen=True, slots=True)
class KubernetesManifests:
    """Knows what a cluster is handed. `content` is the release, `hosts` are all of the service's:
    they say how many replicas there are, and of what kind. `keep` is how many old ones stay."""

    content: Mapping[str, object]
    profile: Profile
    hosts: tuple[Host, ...]
    load_budget_s: float
    keep: int

    def render(self, order: Order, lookup: Lookup) -> Mapping[str, str]:
        """The files, in the order in which they are applied. Raises ConfigError with all faults."""
        problems = [*self._faults(order)]
        if problems:
            raise ConfigError(problems, next="mend the keys, and render again")
        return {name: to_yaml(one) for name, one in self.documents(order).items()}

    def documents(self, order: Order) -> dict[str, Json]:
        """The objects as data, by the name of their file."""
        service, table = order.service, _table(order.host)
        start = self._start(order)
        config = f"{service.name}-{digest(start)[:10]}"
        plan = PodPlan(
            service, order.host, table, order.launch, order.port, self._gpus(table, service.nnodes),
            order.digest, table.secret or service.name, config, self.load_budget_s,
        )  # fmt: skip
        several = service.nnodes > 1
        kind = "30-leaderworkerset.yaml" if several else "30-deployment.yaml"
        return {
            "10-configmap.yaml": self._configmap(order, config, start),
            "20-service.yaml": self._service(order),
            kind: self._group(order, plan) if several else self._deployment(order, plan),
        }

    # objects

    def _head(self, order: Order, kind: str, api: str, name: str) -> Json:
        return {
            "apiVersion": api,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": _table(order.host).namespace,
                "labels": self._labels(order),
                "annotations": self._annotations(order),
            },
        }

    def _labels(self, order: Order) -> dict[str, str]:
        return {
            **_selector(order),
            "app.kubernetes.io/managed-by": "ddops",
            "ddops/release": short(order.digest),
        }

    def _annotations(self, order: Order) -> dict[str, str]:
        return {"ddops/release": order.digest, "ddops/profile": self.profile.name}

    def _start(self, order: Order) -> dict[str, str]:
        """What the container starts by. The release holds references to secrets, no values."""
        release = {"digest": order.digest, **self.content}
        return {
            "guard.py": source("guard"),
            "pod.py": source("pod"),
            "release.json": json.dumps(release, indent=1, sort_keys=True) + "\n",
        }

    def _configmap(self, order: Order, name: str, start: Mapping[str, str]) -> Json:
        # Named by its content and never changed: a release to go back to keeps its own.
        head = self._head(order, "ConfigMap", "v1", name)
        return {**head, "immutable": True, "data": dict(start)}

    def _service(self, order: Order) -> Json:
        selector = _selector(order)
        if order.service.nnodes > 1:
            selector[_GROUP_LABEL] = "0"  # the first node answers for all
        port = {"name": "http", "port": order.port, "targetPort": "http"}
        head = self._head(order, "Service", "v1", order.service.name)
        return {**head, "spec": {"type": "ClusterIP", "selector": selector, "ports": [port]}}

    def _deployment(self, order: Order, plan: PodPlan) -> Json:
        replicas = len(self.hosts)
        # No node holds two models: the old pod goes first, of several one at a time.
        one_by_one = {"maxSurge": 0, "maxUnavailable": 1}
        strategy: Json = (
            {"type": "Recreate"}
            if replicas == 1
            else {"type": "RollingUpdate", "rollingUpdate": one_by_one}
        )
        return {
            **self._head(order, "Deployment", "apps/v1", order.service.name),
            "spec": {
                "replicas": replicas,
                "revisionHistoryLimit": self.keep,
                # A load that takes its time is no failed rollout.
                "progressDeadlineSeconds": int(self.load_budget_s) + 600,
                "strategy": strategy,
                "selector": {"matchLabels": _selector(order)},
                "template": pod_template(plan, self._labels(order), self._annotations(order)),
            },
        }

    def _group(self, order: Order, plan: PodPlan) -> Json:
        template = pod_template(plan, self._labels(order), self._annotations(order))
        # The controller makes a headless Service of the set's own name; ours has the service's.
        head = self._head(
            order, "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", f"{order.service.name}-nodes"
        )
        return {
            **head,
            "spec": {
                "replicas": 1,
                # All ranks meet while they load, so no one waits for a ready leader.
                "startupPolicy": "LeaderCreated",
                "rolloutStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
                },
                "leaderWorkerTemplate": {
                    "size": order.service.nnodes,
                    # An engine that lost a rank is none: all start again, together.
                    "restartPolicy": "RecreateGroupOnPodRestart",
                    "workerTemplate": template,
                },
            },
        }

    # what is wrong

    def _gpus(self, table: KubernetesTable, nnodes: int) -> int:
        if table.gpus is not None:
            return table.gpus
        return 0 if self.profile.launch.get("device") == "cpu" else self._world() // nnodes

    def _world(self) -> int:
        world = self._size("tp-size") * self._size("pp-size")
        own = self.profile.launch.get("enable-dp-attention") is True
        return world if own else world * self._size("dp-size")

    def _size(self, option: str) -> int:
        value = _given(self.profile, option)[1]
        return value if isinstance(value, int) and not isinstance(value, bool) else 1

    def _faults(self, order: Order) -> Iterator[Problem]:
        service, host = order.service, order.host
        in_service = str(service.origin.file)
        if not _NAME.match(service.name) or len(service.name) > MAX_NAME:
            yield Problem(
                in_service, 0, "",
                f"{quote(service.name)} cannot be the name of a cluster's objects: small letters,"
                f" digits and '-', a letter first, at most {MAX_NAME}; rename the file",
            )  # fmt: skip
        if service.listen not in ("0.0.0.0", "::", "[::]"):  # noqa: S104
            yield Problem(
                in_service, 0, "listen",
                f"a pod that listens on {quote(service.listen)} is reached by nobody, not by its"
                ' probes either; set listen = "0.0.0.0", and api_key',
            )  # fmt: skip
        if service.nnodes > 1 and len(self.hosts) not in (1, service.nnodes):
            yield Problem(
                in_service, 0, "hosts",
                f"{len(self.hosts)} hosts for an engine on {service.nnodes}: name one host that"
                " says what a node is like, or one for each node",
            )  # fmt: skip
        yield from self._path_faults(order)
        if host.kubernetes is None:
            yield Problem(
                str(host.origin.file), host.origin.line, f"hosts.{host.name}.kubernetes",
                f"{service.name} runs on Kubernetes, and its host has no such table;"
                " it needs image and models_claim",
            )  # fmt: skip
            return
        yield from self._unlike(host)
        yield from self._size_faults(host.kubernetes, service.nnodes)

    def _path_faults(self, order: Order) -> Iterator[Problem]:
        """The image holds environment and code, a claim holds the models; there is nothing else."""
        service, folder = order.service, order.host.engine_dir.rstrip("/")
        where = f"{folder}/models/"
        for key in ("model_path", "draft_path"):
            path = getattr(service, key)
            unused = key == "draft_path" and (
                service.draft is None or self.profile.spec.algorithm == "none"
            )
            if unused:
                continue
            if path is None or not path.replace("${engine_dir}", folder).startswith(where):
                yield Problem(
                    str(service.origin.file), 0, key,
                    f"expected a path below {where}, where the claim of the models is mounted",
                )  # fmt: skip
        if folder.split("/")[1] in _TAKEN:
            yield Problem(
                str(order.host.origin.file), order.host.origin.line,
                f"hosts.{order.host.name}.engine_dir", f"{folder} is taken in a container",
            )  # fmt: skip
        if from_tree(service, self.profile):
            yield Problem(
                str(self.profile.origin.file), 0, "env.PYTHONPATH",
                "runs from the host's managed tree, and an image has none; a release with a series"
                " has its code in a folder of its own",
            )  # fmt: skip

    def _unlike(self, first: Host) -> Iterator[Problem]:
        """All pods are of one template, so all hosts have to be of one kind."""
        for other in self.hosts:
            for key in ("kubernetes", "engine_dir", "engine_env", "host_class"):
                if getattr(other, key) != getattr(first, key):
                    name = "class" if key == "host_class" else key
                    yield Problem(
                        str(other.origin.file), other.origin.line, f"hosts.{other.name}.{name}",
                        f"is not as that of {first.name}, and the pods of a service are alike",
                    )  # fmt: skip

    def _size_faults(self, table: KubernetesTable, nnodes: int) -> Iterator[Problem]:
        where = str(self.profile.origin.file)
        for option in _SIZES:
            key, value = _given(self.profile, option)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                yield Problem(where, 0, f"launch.{key}", f"expected a whole number, got {value!r}")
                return
        world = self._world()
        if table.gpus is None and world % nnodes:
            yield Problem(
                where, 0, "launch.tp-size",
                f"{world} GPUs are not shared out evenly over nnodes = {nnodes};"
                " set hosts.NAME.kubernetes.gpus where that is meant",
            )  # fmt: skip


def _given(profile: Profile, option: str) -> tuple[str, object]:
    """An option as the profile spells it, and its value; 1 where it is left out."""
    for name in (option, *_SIZES[option]):
        if name in profile.launch:
            return name, profile.launch[name]
    return option, 1


def _table(host: Host) -> KubernetesTable:
    if host.kubernetes is None:
        raise ValueError(f"{host.name} has no table for Kubernetes")  # told by _faults before
    return host.kubernetes


def _selector(order: Order) -> dict[str, str]:
    """Never changes with a release: a Deployment keeps the selector it was made with."""
    return {"app.kubernetes.io/name": "sglang", "app.kubernetes.io/instance": order.service.name}
