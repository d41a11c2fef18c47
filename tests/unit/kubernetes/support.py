"""Services as they would be written for a cluster, and their manifests. No tests in here.

`python -m tests.unit.kubernetes.support` writes the golden files anew; read the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from ddops.deploy.release import Release, build_release
from ddops.inventory.model import Host, KubernetesTable, Node, Origin, Profile, Service, Spec
from ddops.supervise import Order
from ddops.supervise.kubernetes import KubernetesManifests

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).parent / "golden"
HERE = Origin("project", Path("x.toml"))
IMAGE = "registry.example/llm/sglang:0.5.23@sha256:" + "ab" * 32
LOCK = "cd" * 32
DDTREE = Spec(algorithm="DDTREE", budget=8, topk=4, block=8)


def table(**changes: object) -> KubernetesTable:
    values: dict[str, object] = {"image": IMAGE, "models_claim": "models", **changes}
    return KubernetesTable(**values)  # type: ignore[arg-type]


def host(name: str = "b300", **changes: object) -> Host:
    values: dict[str, object] = {
        "name": name, "origin": HERE, "ssh": name, "host_class": "nvlink", "kubernetes": table(),
        **changes,
    }  # fmt: skip
    return Host(**values)  # type: ignore[arg-type]


def service(**changes: object) -> Service:
    values: dict[str, object] = {
        "name": "k26", "origin": HERE, "model": "acme/m", "engine": "kubernetes",
        "model_path": "${engine_dir}/models/m", "profile": "p", "hosts": ("b300",),
        "listen": "0.0.0.0",  # noqa: S104
        "api_key": "file:secrets/key", **changes,
    }  # fmt: skip
    return Service(**values)  # type: ignore[arg-type]


def profile(**changes: object) -> Profile:
    values: dict[str, object] = {"name": "p", "origin": HERE, "launch": {"tp-size": 8}, **changes}
    return Profile(**values)  # type: ignore[arg-type]


def built(s: Service, p: Profile) -> Release:
    return build_release(s, p, LOCK, lambda name: ROOT / name)


def ordered(
    s: Service | None = None,
    p: Profile | None = None,
    hosts: tuple[Host, ...] | None = None,
    load_budget_s: float = 1800,
) -> tuple[KubernetesManifests, Order]:
    """The renderer and what it is asked for, of what differs from one node with eight GPUs."""
    s, p = s or service(), p or profile()
    hosts = hosts or (host(),)
    release = built(s, p)
    order = Order(s, hosts[0], s.port, release.digest, release.launch, "")
    return KubernetesManifests(release.content, p, hosts, load_budget_s, 5), order


def texts(*args: Any, **more: Any) -> Mapping[str, str]:
    made, order = ordered(*args, **more)
    return made.render(order, lambda name: ROOT / name)


def documents(*args: Any, **more: Any) -> dict[str, Any]:
    """The objects by kind, as a reader of YAML gets them."""
    found = [yaml.safe_load(text) for text in texts(*args, **more).values()]
    return {one["kind"]: one for one in found}


def pod_of(found: Mapping[str, Any]) -> Any:
    """The pod template among the objects."""
    if "Deployment" in found:
        return found["Deployment"]["spec"]["template"]
    return found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]


def cases() -> dict[str, tuple[Service, Profile, tuple[Host, ...]]]:
    """What the golden files are of: one node, two nodes as one engine, two replicas, a CPU."""
    draft = {"draft": "acme/d", "draft_path": "${engine_dir}/models/d"}
    tree = profile(spec=DDTREE, launch={"tp-size": 8, "attention-backend": "triton"})
    chosen = table(
        namespace="inference", memory="1Ti", cpu="64", pull_secret="registry", shm="64Gi",
        node_selector={"nvidia.com/gpu.product": "NVIDIA-B300"},
    )  # fmt: skip
    pcie = (host("p1", host_class="pcie"), host("p2", host_class="pcie"))
    two = service(
        name="wide", hosts=("p1", "p2"), nnodes=2, node=Node(0, "p1:20000"),
        env={"HF_TOKEN": "env:HF_TOKEN", "NOTE": "costs $(HOME) and 5$"},
    )  # fmt: skip
    wide = profile(launch={"tp-size": 8, "pp-size": 2})
    cpu = profile(launch={"device": "cpu"})
    closed = service(name="tiny", api_key=None)
    return {
        "one-node": (service(**draft), tree, (host(kubernetes=chosen),)),
        "two-nodes": (two, wide, pcie),
        "two-replicas": (service(hosts=("b300", "b301")), profile(), (host(), host("b301"))),
        "cpu": (closed, cpu, (host("box", host_class="cpu"),)),
    }


def golden_texts() -> dict[str, str]:
    """All files of all cases. The scripts of a start and the release are named, not repeated."""
    out = {}
    with mock.patch("ddops.supervise.kubernetes.source", lambda name: f"# {name}\n"):
        for case, (s, p, hosts) in cases().items():
            made, order = ordered(s, p, hosts)
            # Of a release, which changes with templates that are none of ours.
            made = replace(made, content={"spec": {"api_key": s.api_key, "stop_grace_s": 30}})
            for name, text in made.render(replace(order, digest="9f" * 32), Path).items():
                out[f"{case}/{name}"] = text
    return out


def main() -> None:
    for name, text in golden_texts().items():
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
