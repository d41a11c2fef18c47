"""What a cluster is handed: Kubernetes' own schemas, golden files, and what the objects promise.

No cluster was asked. Deployment, Service and ConfigMap are held against the strict schemas of the
oldest and the newest Kubernetes that kubernetes-validate brings; of a LeaderWorkerSet, a CRD, the
pod template is, and its own fields against a schema that we wrote from the public CRD.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, cast

import jsonschema
import kubernetes_validate
import pytest
import yaml

from ddops.deploy.release import release_files
from ddops.inventory.model import Node
from tests.unit.kubernetes.support import (
    GOLDEN,
    built,
    cases,
    documents,
    golden_texts,
    host,
    ordered,
    pod_of,
    profile,
    service,
    table,
)

VERSIONS = kubernetes_validate.utils.all_versions()
SET_SCHEMA = json.loads((Path(__file__).parent / "leaderworkerset.schema.json").read_text("utf-8"))
CASES = list(cases())


def judged(document: dict[str, Any], version: str) -> None:
    """Raise where the object is not what that version takes."""
    if document["kind"] != "LeaderWorkerSet":
        kubernetes_validate.validate(document, version, strict=True)
        return
    jsonschema.validate(document, SET_SCHEMA)
    template = document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
    kubernetes_validate.validate({**pods, "template": template}, version, strict=True)


def of_case(case: str) -> dict[str, Any]:
    s, p, hosts = cases()[case]
    return documents(s, p, hosts)


def test_the_golden_files_are_what_is_rendered() -> None:
    have = {
        str(p.relative_to(GOLDEN)): p.read_text("utf-8") for p in GOLDEN.rglob("*") if p.is_file()
    }
    assert have == golden_texts(), "python -m tests.unit.kubernetes.support, and read the diff"


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
@pytest.mark.parametrize("case", CASES)
def test_each_object_fits_the_strict_schema(case: str, version: str) -> None:
    for document in of_case(case).values():
        judged(document, version)


PLANTED = {
    "replicas of a word": ("one-node", ("Deployment", "spec", "replicas"), "two"),
    "an unknown key": ("one-node", ("Deployment", "spec", "template", "spec", "gpu"), 8),
    "a port of a word": ("one-node", ("Service", "spec", "ports"), [{"port": "http"}]),
    "data of numbers": ("one-node", ("ConfigMap", "data", "a"), 1),
    "a set without a size of numbers": (
        "two-nodes",
        ("LeaderWorkerSet", "spec", "leaderWorkerTemplate", "size"),
        "2",
    ),
    "a pod of a set": (
        "two-nodes",
        ("LeaderWorkerSet", "spec", "leaderWorkerTemplate", "workerTemplate", "spec", "volumes"),
        "none",
    ),
    "a policy that there is not": ("two-nodes", ("LeaderWorkerSet", "spec", "startupPolicy"), "x"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_schemas_find_a_fault(fault: str) -> None:
    case, path, value = PLANTED[fault]
    found = copy.deepcopy(of_case(case))
    at: Any = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        judged(found[path[0]], VERSIONS[-1])


QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
NAME = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z")


@pytest.mark.parametrize("case", CASES)
def test_what_the_schemas_do_not_judge(case: str) -> None:
    """Quantities, names, and that what is named is there."""
    found = of_case(case)
    spec = pod_of(found)["spec"]
    (container,) = spec["containers"]
    for amounts in container["resources"].values():
        assert all(QUANTITY.fullmatch(v) for v in amounts.values())
    assert all(NAME.match(one["metadata"]["name"]) for one in found.values())
    volumes = {v["name"]: v for v in spec["volumes"]}
    assert {m["name"] for m in container["volumeMounts"]} == set(volumes)
    assert volumes["start"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    namespaces = {one["metadata"]["namespace"] for one in found.values()}
    assert len(namespaces) == 1


@pytest.mark.parametrize("case", CASES)
def test_a_service_reaches_its_pods_and_no_release_is_in_the_selector(case: str) -> None:
    found = of_case(case)
    selector = dict(found["Service"]["spec"]["selector"])
    # The controller of a set puts the index of each pod on it.
    leader = selector.pop("leaderworkerset.sigs.k8s.io/worker-index", None)
    assert (leader == "0") is ("LeaderWorkerSet" in found)
    assert selector.items() <= pod_of(found)["metadata"]["labels"].items()
    assert not any("release" in key for key in selector)
    (port,) = found["Service"]["spec"]["ports"]
    names = {p["name"]: p["containerPort"] for p in pod_of(found)["spec"]["containers"][0]["ports"]}
    assert names[port["targetPort"]] == port["port"]


@pytest.mark.parametrize("case", CASES)
def test_a_pod_has_no_more_rights_than_it_needs(case: str) -> None:
    """What the cluster's own profile `restricted` asks for, and no token."""
    spec = pod_of(of_case(case))["spec"]
    (container,) = spec["containers"]
    own, pod = container["securityContext"], spec["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    kinds = {key for v in spec["volumes"] for key in v if key != "name"}
    assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


def expanded(text: str, env: dict[str, str]) -> str:
    """As the cluster does it: `$(NAME)` when it is known, `$$` is one sign."""
    return re.sub(
        r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)",
        lambda m: "$" if m.group(0) == "$$" else env.get(m.group(1), m.group(0)),
        text,
    )


@pytest.mark.parametrize("case", CASES)
def test_the_command_line_is_the_one_of_a_host(case: str) -> None:
    """The same release starts the same engine, whoever starts it."""
    s, p, hosts = cases()[case]
    (container,) = pod_of(documents(s, p, hosts))["spec"]["containers"]
    env = {"LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "p1"}
    node = Node(0, "p1:20000")
    files = release_files(built(s, p), hosts[0], s.port, node)
    wanted = json.loads(files["launch.json"])
    argv = wanted["argv"]
    if s.api_key is not None:
        argv = argv[:-2]  # the key's file lies elsewhere, and pod.py names it
    assert [expanded(w, env) for w in container["args"]] == argv
    given = {e["name"]: expanded(e["value"], env) for e in container["env"] if "value" in e}
    assert wanted["env"].items() <= given.items()


def test_a_sign_that_the_cluster_would_expand_stays_as_it_was_written() -> None:
    odd = {"A": "$(HOME)", "B": "$$(X) $", "C": "a$b"}
    (container,) = pod_of(documents(service(env=odd)))["spec"]["containers"]
    given = {e["name"]: e.get("value", "") for e in container["env"]}
    assert {k: expanded(given[k], {"HOME": "/wrong"}) for k in odd} == odd


@pytest.mark.parametrize("budget", [1, 9.5, 10, 600, 1800, 86400])
def test_a_load_has_its_budget_before_it_counts_as_failed(budget: float) -> None:
    found = documents(load_budget_s=budget)
    probe = pod_of(found)["spec"]["containers"][0]["startupProbe"]
    assert 0 <= probe["periodSeconds"] * probe["failureThreshold"] - int(budget) < 20
    assert probe["failureThreshold"] >= 1
    assert found["Deployment"]["spec"]["progressDeadlineSeconds"] > budget


def test_probes_wait_longer_than_the_engine_lets_them() -> None:
    """SGLang holds a look back for 1 s at least, and for its own limit when nothing comes."""
    for env, least in (({}, 20), ({"SGLANG_HEALTH_CHECK_TIMEOUT": "60"}, 60)):
        (container,) = pod_of(documents(service(env=env)))["spec"]["containers"]
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[kind]["timeoutSeconds"] > least


def test_a_busy_engine_is_not_ended_by_a_look() -> None:
    """It is ended after minutes without one token at any look, long after it is out of service."""
    (container,) = pod_of(documents())["spec"]["containers"]
    alive, ready = container["livenessProbe"], container["readinessProbe"]
    assert alive["periodSeconds"] * (alive["failureThreshold"] - 1) >= 9 * 60
    assert ready["periodSeconds"] * ready["failureThreshold"] <= 60


def test_ending_has_time_for_the_engine_and_its_guard() -> None:
    made, order = ordered()
    found = {str(k["kind"]): k for k in made.documents(order).values()}
    spec = pod_of(found)["spec"]
    assert spec["terminationGracePeriodSeconds"] >= order.launch.stop_grace_s + 20 + 5


def test_no_node_has_to_hold_two_models() -> None:
    one, two = documents(), documents(service(hosts=("a", "b")), hosts=(host("a"), host("b")))
    assert one["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert two["Deployment"]["spec"]["replicas"] == 2
    update = two["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize(
    ("launch", "nnodes", "gpus"),
    [
        ({"tp-size": 8}, 1, "8"),
        ({"tensor-parallel-size": 4, "pp": 2}, 1, "8"),
        ({"tp": 8, "pp-size": 2}, 2, "8"),
        ({"tp-size": 2, "dp-size": 4}, 1, "8"),
        ({"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}, 1, "8"),
        ({}, 1, "1"),
        ({"device": "cpu"}, 1, None),
    ],
)
def test_gpus_are_those_of_the_launch(
    launch: dict[str, Any], nnodes: int, gpus: str | None
) -> None:
    hosts = tuple(host(f"h{n}") for n in range(nnodes))
    s = service(nnodes=nnodes, hosts=tuple(h.name for h in hosts))
    (container,) = pod_of(documents(s, profile(launch=launch), hosts))["spec"]["containers"]
    assert container["resources"]["limits"].get("nvidia.com/gpu") == gpus


def test_gpus_and_their_resource_may_be_said() -> None:
    own = table(gpus=4, gpu_resource="example.com/slice")
    spec = pod_of(documents(hosts=(host(kubernetes=own),)))["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {"example.com/slice": "4"}
    assert spec["tolerations"][0]["key"] == "example.com/slice"


def test_the_config_of_another_release_has_another_name() -> None:
    """It is never changed in place: going back finds what it started by."""
    one, two = documents(), documents(service(model="acme/other"))
    assert one["ConfigMap"]["metadata"]["name"] != two["ConfigMap"]["metadata"]["name"]
    assert one["ConfigMap"]["immutable"] is True


def test_the_release_is_on_every_object_and_in_the_pod() -> None:
    made, order = ordered()
    found = {str(k["kind"]): cast("Any", k) for k in made.documents(order).values()}
    heads = [found[k]["metadata"] for k in found] + [pod_of(found)["metadata"]]
    assert {h["annotations"]["ddops/release"] for h in heads} == {order.digest}
    assert {h["labels"]["ddops/release"] for h in heads} == {order.digest[:12]}
    (container,) = pod_of(found)["spec"]["containers"]
    assert {"name": "DDOPS_RELEASE", "value": order.digest} in container["env"]
    held = json.loads(found["ConfigMap"]["data"]["release.json"])
    assert held["digest"] == order.digest


def test_secrets_are_named_and_no_more() -> None:
    s = service(env={"HF_TOKEN": "env:HF_TOKEN"})
    for own, name in ((table(), "k26"), (table(secret="team-secret"), "team-secret")):
        spec = pod_of(documents(s, hosts=(host(kubernetes=own),)))["spec"]
        env = {e["name"]: e for e in spec["containers"][0]["env"]}
        assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": name, "key": "HF_TOKEN"}
        (volume,) = [v["secret"] for v in spec["volumes"] if "secret" in v]
        assert volume["secretName"] == name
        assert [i["key"] for i in volume["items"]] == ["api-key"]


WORDS = ["1e3", "on", "yes", "null", "0o7", "0x1F", "~", "", "- a", "a: b", "#c", "é ☃", "\t",
         "{a}", "1_000", "12:30", "2026-01-01", "=", "<<", "'", '"', "\\", "a\u2028b", "*x", "&x",
         "!t", "a" * 5000]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_odd_values_come_back_from_yaml_as_they_were(word: str) -> None:
    found = documents(service(env={"ODD": word, "on": "x"}))
    given = {e["name"]: e.get("value") for e in pod_of(found)["spec"]["containers"][0]["env"]}
    assert given["ODD"] == word
    assert given["on"] == "x"


def test_numbers_that_only_some_readers_see_are_quoted() -> None:
    from ddops.render import to_yaml

    text = to_yaml({"a": "1e3", "b": "on", "c": "deployment", "n": 3, "y": "plain"})
    assert text == 'a: "1e3"\nb: "on"\nc: deployment\n"n": 3\n"y": plain\n'
    assert yaml.safe_load(text) == {"a": "1e3", "b": "on", "c": "deployment", "n": 3, "y": "plain"}
