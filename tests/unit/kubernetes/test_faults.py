"""What keeps a service from becoming a pod is told with file and key, all of it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddops.config.schema import decode
from ddops.errors import ConfigError
from ddops.inventory.checks import label_fault
from ddops.inventory.model import Host, KubernetesTable
from tests.unit.cli_support import Run, runner
from tests.unit.kubernetes.support import DDTREE, IMAGE, host, profile, service, table, texts


def keys(*args: Any, **more: Any) -> list[str]:
    """The keys that a rendering is refused for."""
    with pytest.raises(ConfigError) as caught:
        texts(*args, **more)
    assert all(p.file == "x.toml" for p in caught.value.problems)
    return [p.key for p in caught.value.problems]


@pytest.mark.parametrize("listen", ["127.0.0.1", "localhost", "::1", "10.0.0.3"])
def test_a_pod_that_nobody_reaches(listen: str) -> None:
    assert keys(service(listen=listen)) == ["listen"]


@pytest.mark.parametrize("name", ["k26.b300", "k_26", "26k", "k" * 41, "k-"])
def test_a_name_that_no_object_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a cluster's objects"):
        texts(service(name=name))


def test_a_host_without_the_table() -> None:
    assert keys(hosts=(host(kubernetes=None),)) == ["hosts.b300.kubernetes"]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"engine_dir": "/srv/ddops"}, "engine_dir"),
        ({"engine_env": "sim"}, "engine_env"),
        ({"host_class": "pcie"}, "class"),
        ({"kubernetes": table(namespace="other")}, "kubernetes"),
        ({"kubernetes": None}, "kubernetes"),
    ],
)
def test_hosts_of_which_pods_would_differ(change: dict[str, Any], key: str) -> None:
    hosts = (host("a"), host("b", **change))
    assert keys(service(hosts=("a", "b")), hosts=hosts) == [f"hosts.b.{key}"]


def test_all_faults_are_told_at_once() -> None:
    wrong = service(name="K", listen="127.0.0.1", model_path="/data/m")
    assert keys(wrong, hosts=(host(kubernetes=None),)) == [
        "", "listen", "model_path", "hosts.b300.kubernetes",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/data/m", "${engine_dir}/m", "/opt/ddops/models", None])
def test_models_that_no_claim_holds(path: str | None) -> None:
    assert keys(service(model_path=path)) == ["model_path"]
    drafting = service(draft="acme/d", draft_path=path or "/d")
    assert keys(drafting, profile(spec=DDTREE)) == ["draft_path"]
    assert texts(drafting, profile()), "a draft that is not loaded need not be there"


@pytest.mark.parametrize("folder", ["/tmp/x", "/ddops", "/dev/shm/x", "/proc/1", "/run/ddops"])
def test_an_engine_folder_that_a_container_has_already(folder: str) -> None:
    assert keys(hosts=(host(engine_dir=folder),)) == ["hosts.b300.engine_dir"]


def test_code_of_a_managed_tree() -> None:
    tree = profile(env={"PYTHONPATH": "${engine_dir}/tree/python"})
    assert keys(service(), tree) == ["env.PYTHONPATH"]


@pytest.mark.parametrize("value", ["eight", True, 0, -1, 2.5])
@pytest.mark.parametrize("option", ["tp-size", "tp", "pp-size", "data-parallel-size"])
def test_sizes_that_are_none(option: str, value: object) -> None:
    assert keys(service(), profile(launch={option: value})) == [f"launch.{option}"]


def test_gpus_that_are_not_shared_out_evenly() -> None:
    pair = (host("a"), host("b"))
    odd = profile(launch={"tp-size": 3})
    assert keys(service(hosts=("a", "b"), nnodes=2), odd, pair) == ["launch.tp-size"]
    own = tuple(host(n, kubernetes=table(gpus=2)) for n in ("a", "b"))
    assert texts(service(hosts=("a", "b"), nnodes=2), odd, own)


def test_one_host_or_one_for_each_node() -> None:
    """An engine on several nodes needs one host entry; a move from several hosts keeps its own."""
    wide = profile(launch={"tp-size": 12})
    for names in (("a",), ("a", "b", "c")):
        s = service(hosts=names, nnodes=3)
        found = texts(s, wide, tuple(host(n) for n in names))
        assert "replicas: 1\n" in found["30-leaderworkerset.yaml"]
    s = service(hosts=("a", "b"), nnodes=3)
    assert keys(s, wide, (host("a"), host("b"))) == ["hosts"]


# The table itself: judged where the inventory is read.

NAMES: tuple[object, ...] = (
    "",
    "Upper",
    "under_score",
    "a.b",
    "-a",
    "a-",
    "a" * 64,
    "ключ",
    "a b",
    "a\n",
    1,
    True,
    {},
)
AMOUNTS = ("two", "32", "32Gigs", "-1Gi", "0Gi", "1.5Gi", "32gi", "99999999Ti", "1e9", "32Gi\n",
           32, 1.5, "٣Gi")  # fmt: skip
WRONG_BY_KEY: dict[str, tuple[object, ...]] = {
    "image": (
        "sglang", "sglang:latest", "r/x@sha256:" + "a" * 63, "r/x@sha256:" + "A" * 64,
        "r/x@md5:" + "a" * 64, "R/x@sha256:" + "a" * 64, "", " " + IMAGE, IMAGE + "\n", 7, [IMAGE],
        "r/" + "x" * 600 + "@sha256:" + "a" * 64, "r/é@sha256:" + "a" * 64,
    ),
    **dict.fromkeys(("namespace", "models_claim", "secret", "pull_secret"), NAMES),
    **dict.fromkeys(("shm", "memory"), AMOUNTS),
    "cpu": ("many", "-1", "0", "1.5", "99999", "m", "32 ", 32),
    "gpus": ("8", -1, 65, 1.5, True),
    "user": (0, -1, 2**31, "root", True),
    "gpu_resource": ("gpu", "/gpu", "nvidia.com/", "nvidia.com/gpu/x", "x" * 130),
    "node_selector": (["a"], {"a": 1}),
    "tag": ("x",),
}  # fmt: skip
WRONG = [(key, value) for key, values in WRONG_BY_KEY.items() for value in values]
GOOD = {"image": IMAGE, "models_claim": "models"}


@pytest.mark.parametrize(("key", "value"), WRONG, ids=lambda v: str(v)[:24])
def test_a_wrong_value_names_its_key(key: str, value: object) -> None:
    found = decode({**GOOD, key: value}, KubernetesTable, ("kubernetes",)).faults
    assert found, value
    assert {f.path[1] for f in found} == {key}


@pytest.mark.parametrize("key", GOOD)
def test_a_missing_key_is_named(key: str) -> None:
    (fault,) = decode({k: v for k, v in GOOD.items() if k != key}, KubernetesTable).faults
    assert fault.path == (key,)
    assert "is missing" in fault.message


RIGHT: list[dict[str, object]] = [
    {}, {"image": "localhost:5000/a/b@sha256:" + "0" * 64}, {"image": "a@sha256:" + "0" * 64},
    {"image": "r.example/a:V1.0_x@sha256:" + "0" * 64}, {"shm": "1Mi", "memory": "2Ti"},
    {"cpu": "500m"}, {"cpu": "192"}, {"gpus": 0}, {"namespace": "a" * 63},
    {"gpu_resource": "nvidia.com/mig-1g.10gb"}, {"node_selector": {}},
]  # fmt: skip


@pytest.mark.parametrize("more", RIGHT)
def test_a_right_value_is_taken(more: dict[str, object]) -> None:
    assert not decode({**GOOD, **more}, KubernetesTable).faults


@given(st.dictionaries(st.sampled_from(KubernetesTable.__struct_fields__), st.text(max_size=90)))
def test_no_text_slips_through_into_an_object_that_is_refused(values: dict[str, str]) -> None:
    """Whatever is written is either told, or renders into names and amounts of the right form."""
    decoded = decode({**GOOD, **values}, KubernetesTable)
    if decoded.faults or decoded.value is None:
        return
    own = decoded.value
    assert all(text.isascii() and text.isprintable() for text in (own.image, own.namespace))
    assert texts(hosts=(host(kubernetes=own),))


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("nvidia.com/gpu.product", "NVIDIA-B300", True),
        ("disk", "", True),
        ("a" * 64, "x", False),
        ("Upper.Domain/x", "x", False),
        ("a/b/c", "x", False),
        ("", "x", False),
        ("x/", "x", False),
        ("x", "two words", False),
        ("x", "é", False),
        ("x", "-x", False),
        ("x", "x" * 64, False),
        ("x", "x\n", False),
    ],
)
def test_labels_of_nodes(key: str, value: str, right: bool) -> None:
    assert (label_fault(key, value) == "") is right


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(tmp_path, monkeypatch, capfd)


def test_a_fault_of_the_table_is_told_with_file_and_line(run: Run) -> None:
    folder = Path("inventory")
    folder.mkdir()
    (folder / "hosts.toml").write_text(
        '[hosts.b300]\nssh = "b300"\n[hosts.b300.kubernetes]\nimage = "sglang:latest"\n'
        'models_claim = "Models"\nshmem = "1Gi"\nnode_selector = { "a b" = "x" }\n',
        encoding="utf-8",
    )
    done = run("host", "list")
    assert done.code == 2
    at = "hosts.b300.kubernetes."
    for told in (
        f"hosts.toml:4: {at}image: expected an image by its digest",
        f"hosts.toml:5: {at}models_claim: expected a Kubernetes name",
        f"hosts.toml:6: {at}shmem: unknown key `shmem`, nearest is `shm`",
    ):
        assert told in done.err


def test_a_fault_of_a_label_is_told_with_its_key(run: Run) -> None:
    folder = Path("inventory")
    folder.mkdir()
    (folder / "hosts.toml").write_text(
        f'[hosts.b300]\nssh = "b300"\n[hosts.b300.kubernetes]\nimage = "{IMAGE}"\n'
        'models_claim = "models"\nnode_selector = { "a b" = "x" }\n',
        encoding="utf-8",
    )
    done = run("host", "list")
    assert done.code == 2
    assert 'kubernetes.node_selector."a b"' in done.err or "node_selector.a b" in done.err
    assert "not a label's name" in done.err


def test_the_host_entry_holds_the_table() -> None:
    assert isinstance(host().kubernetes, KubernetesTable)
    assert Host(name="x", origin=host().origin, ssh="x").kubernetes is None
