"""Hosts, services and profiles: every fault at once, merging, origins, one namespace."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddops.config import data_root, find_project
from ddops.config.project import Project
from ddops.config.settings import SettingsTable
from ddops.errors import ConfigError
from ddops.inventory import Evidence, Inventory, Pins, Spec, json_schema, load, merge
from ddops.inventory.model import (
    HostTable,
    KubernetesTable,
    ProfileTable,
    RouterTable,
    ServiceTable,
)

SERVICE = 'model = "m/x"\nprofile = "plain"\nhosts = ["h1"]\n'
ROUTED = 'served_model_name = "k"\n[router]\n'


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "ddops.toml").write_text("")
    return find_project(tmp_path)


def write(project: Project, name: str, text: str) -> None:
    path = project.root / "inventory" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def faults(project: Project) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(project)
    return caught.value.lines()[:-1]


def test_the_shipped_inventory_is_right(tmp_path: Path) -> None:
    inventory = load(find_project(tmp_path))
    assert set(inventory.hosts) == {"pcie", "b300"}
    assert set(inventory.services) == {"k26-pcie", "k26-b300", "tiny"}
    assert len(inventory.profiles) == 16
    for service in inventory.services.values():
        spec = inventory.profile_of(service).spec
        assert service.origin.tag == "[shipped]"
        if service.name.startswith("k26"):
            assert (spec.algorithm, spec.budget, spec.topk, spec.block) == ("DDTREE", 8, 4, 8)
    for profile in inventory.profiles.values():
        assert profile.evidence.status in ("reported", "untested")
        if profile.spec.algorithm == "DDTREE":
            backend = "torch_native" if profile.name.startswith("tiny") else "triton"
            assert profile.launch["attention-backend"] == backend


def test_a_source_checkout_counts_as_shipped_only() -> None:
    inventory = load(Project(data_root(), explicit=False))
    kinds = {h.origin.kind for h in inventory.hosts.values()}
    assert kinds - {"lab"} == {"shipped"}, "a lab may be up in this very checkout"


def test_the_readme_example_loads(project: Project) -> None:
    write(
        project,
        "hosts.toml",
        '[hosts.b300]\nssh = "b300.example"\ngroups = ["nvlink"]\nengine_dir = "/opt/ddops"\n'
        "pins = { host_key = 'SHA256:" + "a" * 43 + "' }\n\n[aliases]\nbig = 'b300'\n",
    )
    write(
        project,
        "services/k26.toml",
        'model = "moonshotai/Kimi-K2.6"\ndraft = "d"\nprofile = "k26-b300-ddtree"\n'
        'hosts = ["b300"]\ngates = ["exactness", "commit_length>=2"]\napi_key = "env:K26_KEY"\n',
    )
    inventory = load(project)
    host = inventory.hosts["b300"]
    assert host.pins.host_key == "SHA256:" + "a" * 43
    assert (host.origin.kind, host.origin.line, host.origin.tag) == ("project", 1, "")
    assert inventory.groups["nvlink"] == (host,)
    assert inventory.aliases["big"].target == "b300"
    assert {host: 1}[host] == 1


def test_every_fault_of_every_file_is_told_at_once(project: Project) -> None:
    write(
        project,
        "hosts.toml",
        '[hosts.h1]\nssh = "a"\nsupervisr = "systemd"\nclass = "pci"\n\n'
        '[hosts.h2]\ngroups = "x"\nengine_dir = "opt"\n\n[hosts.h3]\nssh = "-oProxyCommand=x"\n'
        "[hostz]\n",
    )
    write(project, "services/s.toml", 'model = 1\nhots = ["h1"]\nprofile = "plain"\nport = 70000\n')
    write(project, "profiles/plain.toml", "[launch]\ntp-size = 2020-01-01\n")
    assert faults(project) == [
        "inventory/hosts.toml:3: hosts.h1.supervisr: unknown key `supervisr`,"
        " nearest is `supervisor`",
        'inventory/hosts.toml:4: hosts.h1.class: expected one of "cpu", "nvlink", "pcie",'
        ' got "pci"; nearest is "pcie"',
        "inventory/hosts.toml:6: hosts.h2.ssh: required key `ssh` is missing",
        "inventory/hosts.toml:7: hosts.h2.groups: expected a list, got text",
        "inventory/hosts.toml:8: hosts.h2.engine_dir: expected an absolute path on the host,"
        ' got "opt"',
        "inventory/hosts.toml:11: hosts.h3.ssh: expected what ssh would be called with,"
        ' got "-oProxyCommand=x"',
        "inventory/hosts.toml:12: hostz: unknown key `hostz`, nearest is `hosts`",
        "inventory/profiles/plain.toml:2: launch.tp-size: expected text or a whole number or a"
        " number or true or false or a list, got a date or time",
        "inventory/services/s.toml:1: model: expected text, got a whole number",
        "inventory/services/s.toml:1: hosts: required key `hosts` is missing",
        "inventory/services/s.toml:2: hots: unknown key `hots`, nearest is `hosts`",
        "inventory/services/s.toml:4: port: expected a whole number from 1 to 65535, got 70000",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('listen = "0.0.0.0"\n', 'listens on "0.0.0.0" and has no api_key'),
        ('listen = "::"\n', 'listens on "::" and has no api_key'),
        ('api_key = "sk-hunter2"\n', "api_key: expected a reference to a secret"),
        ('gates = ["exactnes"]\n', "unknown gate `exactnes`, nearest is `exactness`"),
        ('gates = ["commit_length"]\n', '`commit_length` needs its bound, as in "commit_'),
        ('gates = ["margin>=0.1"]\n', '`margin` needs its bound, as in "margin<=0.05"'),
        ('gates = ["prefix>=1.5"]\n', "`prefix` counts tokens: a whole number, not 1.5"),
        ("soak_s = -1\n", "soak_s"),
        ('gates = ["exactness>=1"]\n', '`exactness` has no bound; write "exactness"'),
        ('gates = ["commit_length > 2"]\n', 'not a gate: "commit_length > 2"'),
        ('model_source = "lab/x"\n', "`model_source` needs `model_path`"),
        ('draft_path = "/x"\n', "`draft_path` without `draft`"),
        ('model_path = "models/x"\n', 'expected /... or ${engine_dir}/..., got "models/x"'),
        ('env = { "A-B" = "1" }\n', 'env.A-B: not a variable\'s name: "A-B"'),
        ('env = { HF_TOKEN = "hf_hunter2" }\n', "env.HF_TOKEN: expected a reference"),
        ('env = { DDTREE_BUDGET = "8" }\n', "`DDTREE_BUDGET` is rendered from [spec] budget"),
        ("env = { A = 1 }\n", "env.A: expected text, got a whole number"),
        ('model_path = "/a\\u0000b"\n', "model_path: holds a control character"),
        ('served_model_name = "a\\nb"\n', "served_model_name: holds a line break"),
        ("nnodes = 0\n", "nnodes: expected a whole number of at least 1, got 0"),
        ("nnodes = true\n", "nnodes: expected a whole number of at least 1, got true"),
    ],
)
def test_a_service_that_cannot_be_is_refused(project: Project, text: str, said: str) -> None:
    write(project, "services/s.toml", SERVICE + text)
    write(project, "profiles/plain.toml", "")
    (line,) = faults(project)
    assert line.startswith("inventory/services/s.toml:4: ")
    assert said in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    "text",
    [
        'listen = "0.0.0.0"\nx-public = true\n',
        'listen = "0.0.0.0"\napi_key = "file:~/key"\n',
        'listen = "::1"\n',
        'listen = "127.0.0.2"\n',
        'x-note = { any = ["thing", 1979-05-27] }\n',
        'env = { HF_TOKEN = "env:HF_TOKEN", HF_HUB_OFFLINE = "1" }\n',
    ],
)
def test_a_service_that_can_be_is_taken(project: Project, text: str) -> None:
    write(project, "services/s.toml", SERVICE + text)
    write(project, "profiles/plain.toml", "")
    assert load(project).services["s"].model == "m/x"


TREE = '[spec]\nalgorithm = "DDTREE"\nbudget = 8\ntopk = 4\n'


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[spec]\nalgorithm = "DDTREE"\ntopk = 4\n', 1, "spec.budget: DDTREE needs `budget`"),
        (TREE.replace("8", "0"), 3, "spec.budget: expected a whole number of at least 1, got 0"),
        (TREE.replace("8", "9999"), 3, "spec.budget: expected 1 to 512, got 9999"),
        (TREE.replace("DDTREE", "DDTRE"), 2, 'got "DDTRE"; nearest is "DDTREE"'),
        (TREE + "[launch]\npp-size = 2\n", 6, "DDTREE runs with one pipeline stage only, got 2"),
        (TREE + '[launch]\nattention-backend = "trtllm_mla"\n', 6, "takes no tree mask"),
        ('[spec]\nalgorithm = "DFLASH"\nbudget = 8\n', 3, "DFLASH has none"),
        ("[spec]\nblock = 8\n", 2, "`block` without speculative decoding"),
        ('[spec]\nalgorithm = "EAGLE3"\nblock = 8\n', 3, "leave `block` out"),
        ("[launch]\nport = 1\n", 2, "`port` is decided by the service's port; remove it here"),
        ('[launch]\nmodel-p = "x"\n', 2, "`model-p` is decided by the service's model_path"),
        ("[launch]\nspeculative-num-steps = 3\n", 2, "is decided by [spec]; remove it here"),
        ('[launch]\nweight-version = "x"\n', 2, "decided by each start, with the release"),
        ("[launch]\n--tp-size = 8\n", 2, "without its dashes; write `tp-size`"),
        ("[launch]\ntp_size = 8\n", 2, "without its dashes; write `tp-size`"),
        ('[launch]\n"a b" = 8\n', 2, 'launch."a b": not an option\'s name'),
        ("[launch]\nx = inf\n", 2, "launch.x: expected a number, got inf"),
        ('[launch]\nx = ["a", { b = 1 }]\n', 2, "launch.x[1]: expected text or a whole number"),
        ('[evidence]\nstatus = "measured"\n', 1, "`measured` needs the ledger ids of its runs"),
        ('[evidence]\nstatus = "reported"\n', 1, "`reported` needs its source"),
        ('engine = "sglang"\n', 1, "engine: expected"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(
    project: Project, text: str, line: int, said: str
) -> None:
    write(project, "profiles/p.toml", text)
    (found,) = faults(project)
    assert found.startswith(f"inventory/profiles/p.toml:{line}: ")
    assert said in found


def test_launch_values_keep_their_kinds(project: Project) -> None:
    write(project, "profiles/p.toml", '[launch]\na = true\nb = 1\nc = 0.5\nd = "x"\ne = [1, "y"]\n')
    launch = load(project).profiles["p"].launch
    assert launch == {"a": True, "b": 1, "c": 0.5, "d": "x", "e": (1, "y")}
    assert launch["a"] is True
    assert type(launch["b"]) is int


def test_profile_and_service_must_fit(project: Project) -> None:
    write(project, "profiles/plain.toml", TREE)
    write(project, "services/s.toml", SERVICE)
    write(project, "services/t.toml", SERVICE.replace("plain", "plian"))
    assert faults(project) == [
        "inventory/services/s.toml:2: profile: DDTREE needs a draft model, and the service"
        " names none",
        "inventory/services/t.toml:2: profile: unknown profile `plian`, nearest is `plain`",
    ]


@pytest.mark.parametrize("name", ["-x", "Häns", "a b", "A", ".x", "x" * 65, "a/b", "a*"])
def test_a_name_that_cannot_be_typed_is_refused(project: Project, name: str) -> None:
    write(project, "hosts.toml", f'[hosts."{name}"]\nssh = "a"\n')
    (line,) = faults(project)
    assert "not a host's name" in line


def test_file_names_are_names_too(project: Project) -> None:
    write(project, "profiles/Big One.toml", "")
    write(project, "host.toml", "")
    write(project, "profiles/.#p.toml", "= broken, and an editor's")
    write(project, "notes.md", "")
    assert faults(project) == [
        "inventory/host.toml: not a file of an inventory; it has hosts.toml, waivers.toml,"
        " services/ and profiles/; nearest is `hosts.toml`",
        'inventory/profiles/Big One.toml: not a profile\'s name: "Big One"; it starts with a small'
        " letter or a digit, goes on with those, '.', '_' and '-', and has at most 64 of them",
    ]


def test_project_beats_lab_beats_shipped(project: Project) -> None:
    lab = project.lab / "inventory"
    lab.mkdir(parents=True)
    (lab / "hosts.toml").write_text(
        '[hosts.pcie]\nssh = "lab-pcie"\ngroups = ["lab-gpu"]\n'
        '[hosts.lab1]\nssh = "lab1"\ngroups = ["lab"]\n'
    )
    inventory = load(project)
    assert inventory.hosts["pcie"].ssh == "lab-pcie"
    assert inventory.hosts["pcie"].origin.tag == "[lab]"
    assert "rtx-pro-6000" not in inventory.groups
    write(project, "hosts.toml", '[hosts.pcie]\nssh = "mine"\n')
    inventory = load(project, lab)
    assert [inventory.hosts[n].origin.kind for n in ("pcie", "lab1", "b300")] == [
        "project",
        "lab",
        "shipped",
    ]


def test_one_name_means_one_thing(project: Project) -> None:
    write(
        project,
        "hosts.toml",
        '[hosts.a]\nssh = "a"\ngroups = ["pcie"]\n[hosts.s]\nssh = "s"\n[aliases]\na = "s"\n',
    )
    write(project, "services/s.toml", SERVICE)
    write(project, "profiles/plain.toml", "")
    lines = faults(project)
    assert len(lines) == 3
    assert lines[0].startswith(
        "inventory/hosts.toml:1: group `pcie` has the name of the host `pcie`"
    )
    assert lines[0].endswith("/inventory/hosts.toml:5; rename one of them")
    assert lines[1].startswith("inventory/hosts.toml:7: alias `a` has the name of the host `a`")
    assert lines[2].startswith("inventory/services/s.toml:1: service `s` has the name of the host")


def test_folders_that_are_none_are_refused(project: Project) -> None:
    write(project, "services", "a file")
    (project.root / "inventory" / "profiles").symlink_to("profiles")
    lines = faults(project)
    assert "inventory/services: cannot be read: not a directory" in lines
    assert any(line.startswith("inventory/profiles: cannot be read: too many") for line in lines)


def test_a_file_of_nothing_but_faults_is_judged_quickly(project: Project) -> None:
    write(project, "profiles/p.toml", "".join(f"k{i} = 1\n" for i in range(50_000)))
    assert len(faults(project)) == 100
    write(project, "profiles/p.toml", "[launch]\n" + "".join(f"K{i} = 1\n" for i in range(9000)))
    assert faults(project)[0] == "inventory/profiles/p.toml: and 8900 faults more"


TABLES = ("hosts", "aliases", "hosts.a", "launch", "spec", "env", "evidence", "hosts.a.pins")
WORDS = st.sampled_from(
    ["ssh", "groups", "class", "model", "profile", "hosts", "gates", "listen", "algorithm",
     "budget", "topk", "env", "status", "runs", "launch", "spec", "x-a", "pins", "vars"]
)  # fmt: skip
ATOMS = st.sampled_from(
    ["1", "-1", "0.5", "nan", "true", '""', '"a"', '"DDTREE"', '"env:X"', "[]", '["a"]', "[[1]]",
     "{}", "{ a = 1 }", "1979-05-27", "07:32:00", '"\\u0001"', "9" * 30, '["commit_length>=2"]']
)  # fmt: skip
TOML = st.lists(
    st.one_of(
        st.tuples(WORDS, ATOMS).map(" = ".join),
        st.sampled_from(TABLES).map(lambda t: f"[{t}]"),
        st.sampled_from(TABLES).map(lambda t: f"[[{t}]]"),
    ),
    max_size=8,
).map("\n".join)
FILES = st.one_of(st.binary(max_size=200), TOML.map(str.encode))


@settings(max_examples=150, deadline=None)
@given(FILES, FILES, FILES)
def test_whatever_is_written_only_a_config_error_comes(a: bytes, b: bytes, c: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, raw in (("hosts.toml", a), ("services/s.toml", b), ("profiles/p.toml", c)):
            path = root / "inventory" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        try:
            with mock.patch.object(merge, "data_root", return_value=root / "none"):
                assert isinstance(load(Project(root)), Inventory)
        except ConfigError as error:
            assert all(p.file.startswith("inventory/") and p.message for p in error.problems)


def test_the_schema_knows_every_file_and_key() -> None:
    schema = json_schema()
    assert list(schema) == [
        "ddops.toml",
        "inventory/hosts.toml",
        "inventory/waivers.toml",
        "inventory/services/*.toml",
        "inventory/profiles/*.toml",
        "suites/**/*.toml",
        "setup/*.toml",
    ]
    hosts = schema["inventory/hosts.toml"]["$defs"]
    assert isinstance(hosts, dict)
    host = hosts["HostTable"]
    assert host["additionalProperties"] is False
    assert host["patternProperties"] == {"^x-": {}}
    assert {"ssh", "class", "pins", "vars"} <= set(host["properties"])
    assert not {"name", "origin", "host_class"} & set(host["properties"])
    assert "default" not in host["properties"]["wheelhouse"]
    assert host["properties"]["engine_dir"]["default"] == "/opt/ddops"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROUTED + 'host = "h"\nlisten = "0.0.0.0"\n', "and the service has no api_key"),
        (ROUTED + 'host = "h"\nmetrics_port = 30080\n', "is the router's port"),
        ("nnodes = 2\n" + ROUTED + 'host = "h"\n', "a replica is one host"),
        ('engine = "slurm"\n' + ROUTED + 'host = "h"\n', "slurm picks its hosts itself"),
        ('[router]\nhost = "h"\n', "needs `served_model_name`"),
        (ROUTED, "router.host: required key `host` is missing"),
        (ROUTED + 'host = "h"\npolicy = "bucket"\n', "router.policy: expected one of"),
        (ROUTED + 'host = "h"\ndrain_s = 0\n', "router.drain_s: expected"),
        (ROUTED + 'host = "h"\nworkers = 1\n', "router.workers: unknown key `workers`"),
    ],
)
def test_a_router_that_cannot_be_is_refused(project: Project, text: str, said: str) -> None:
    write(project, "services/s.toml", SERVICE + text)
    write(project, "profiles/plain.toml", "")
    (line,) = faults(project)
    assert line.startswith("inventory/services/s.toml:")
    assert said in line
    assert "router" in line


def test_the_reference_names_every_key() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/files.md").read_text()
    for table in (
        SettingsTable,
        HostTable,
        KubernetesTable,
        Pins,
        ServiceTable,
        RouterTable,
        Spec,
        Evidence,
        ProfileTable,
    ):
        for field in msgspec.structs.fields(table):
            assert (
                f"`{field.encode_name}`" in text
                or f".{field.encode_name}`" in text
                or (field.encode_name in ("pins", "spec", "evidence"))
            ), field.encode_name
