"""A release is one digest of all that makes it run, the same on every host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddops.deploy.release import Lookup, Release, build_release, release_files
from ddops.engines.sglang import draft_tokens, launch_spec, server_identity
from ddops.engines.spec import LaunchSpec
from ddops.errors import ConfigError
from ddops.inventory.model import Host, Node, Origin, Profile, Service, Spec

ROOT = Path(__file__).resolve().parents[2]
HERE = Origin("project", Path("x.toml"))
GOLDEN = (
    '{"schema": "ddops.golden/1", "prompts": [{"id": "a", "input_ids": [1], "output_ids": [2]}]}'
)


@pytest.fixture
def lookup(tmp_path: Path) -> Lookup:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text("{}")
    (tmp_path / "golden.json").write_text(GOLDEN)

    def find(name: str) -> Path:
        return tmp_path / name if (tmp_path / name).exists() else ROOT / name

    return find


def service(**changes: object) -> Service:
    values: dict[str, object] = {
        "name": "k", "origin": HERE, "model": "acme/m", "model_path": "${engine_dir}/models/m",
        "draft": "acme/d", "draft_path": "${engine_dir}/models/d", "profile": "p",
        "hosts": ("box",), **changes,
    }  # fmt: skip
    return Service(**values)  # type: ignore[arg-type]


def profile(**changes: object) -> Profile:
    return Profile(**{"name": "p", "origin": HERE, **changes})  # type: ignore[arg-type]


def host(name: str = "box", engine_dir: str = "/opt/ddops") -> Host:
    return Host(name=name, origin=HERE, ssh=name, engine_dir=engine_dir)


DDTREE = Spec(algorithm="DDTREE", budget=8, topk=4, block=8)


def argv(s: Service, p: Profile) -> list[str]:
    return list(launch_spec(s, p, "/e").argv)


def test_option_values_become_words() -> None:
    launch = {"tp-size": 8, "enable-metrics": True, "skip": False, "many": (1, 2)}
    words = argv(service(), profile(launch=launch))
    assert words[:3] == ["/e/bin/python", "-m", "sglang.launch_server"]
    assert "--skip" not in words
    assert words[words.index("--many") :][:3] == ["--many", "1", "2"]
    assert words[words.index("--enable-metrics") + 1].startswith("--")
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--port") + 1] == "${port}"


def test_an_engine_on_two_hosts_has_one_digest_and_a_rank_on_each(lookup: Lookup) -> None:
    words = argv(service(nnodes=2, hosts=("a", "b")), profile())
    at = words.index("--nnodes")
    assert words[at : at + 6] == [
        "--nnodes", "2", "--node-rank", "${rank}", "--dist-init-addr", "${dist_addr}",
    ]  # fmt: skip
    assert "--nnodes" not in argv(service(), profile())
    release = build(lookup, service(nnodes=2, hosts=("a", "b")))
    files = [
        release_files(release, host(name), 31000, Node(rank, "a.example:20000"))
        for rank, name in enumerate("ab")
    ]
    lines = [json.loads(f["launch.json"])["argv"] for f in files]
    assert [x[x.index("--node-rank") + 1] for x in lines] == ["0", "1"]
    assert {x[x.index("--dist-init-addr") + 1] for x in lines} == {"a.example:20000"}
    assert files[0]["release.json"] == files[1]["release.json"]
    assert [json.loads(f["gates.json"]).get("rank") for f in files] == [None, 1]


def test_a_tree_is_as_wide_as_budget_and_root_and_never_narrower_than_the_block() -> None:
    assert draft_tokens(profile(spec=DDTREE)) == 9
    assert draft_tokens(profile(spec=Spec(algorithm="DDTREE", budget=4, topk=2, block=8))) == 8
    assert draft_tokens(profile(spec=Spec(algorithm="DFLASH", block=8))) == 8
    spec = launch_spec(service(), profile(spec=DDTREE), "/e")
    assert dict(spec.env) == {"DDTREE_BUDGET": "8", "DDTREE_TOPK": "4"}
    assert spec.argv[-6:] == (
        "--speculative-num-draft-tokens", "9", "--speculative-eagle-topk", "4",
        "--speculative-dflash-block-size", "8",
    )  # fmt: skip
    chain = argv(service(), profile(spec=Spec(algorithm="DFLASH", block=8)))
    assert not {"--speculative-eagle-topk", "--speculative-dflash-block-size"} & {*chain}


def test_a_drafting_profile_needs_a_draft() -> None:
    with pytest.raises(ConfigError, match="needs a draft model"):
        argv(service(draft=None, draft_path=None), profile(spec=DDTREE))
    plain = argv(service(), profile())
    assert not [w for w in plain if "speculative" in w]


def test_references_are_kept_apart_from_values() -> None:
    s = service(env={"A": "plain", "TOKEN": "env:T", "F": "file:x"}, api_key="env:KEY")
    spec = launch_spec(s, profile(env={"B": "cmd:pass"}), "/e")
    assert dict(spec.env) == {"A": "plain"}
    assert dict(spec.secret_env) == {"TOKEN": "env:T", "F": "file:x", "B": "cmd:pass"}
    assert spec.api_key == "env:KEY"
    assert "--api-key" not in spec.argv


def test_identity_is_what_the_server_must_say() -> None:
    p = profile(launch={"tp-size": 8, "dtype": "float32"}, spec=DDTREE)
    assert server_identity(service(), p) == {
        "tp_size": 8, "dtype": "float32", "speculative_algorithm": "DDTREE",
        "speculative_num_draft_tokens": 9,
    }  # fmt: skip
    assert server_identity(service(), profile()) == {"speculative_algorithm": None}


def test_expanding_knows_its_own_names_alone() -> None:
    spec = LaunchSpec(("${engine_dir}/x", "${port}", "${HOME}", "$port"), (("A", "${port}"),))
    argv, env = spec.expand({"engine_dir": "/o", "port": "1"})
    assert argv == ["/o/x", "1", "${HOME}", "$port"]
    assert env == {"A": "1"}


def build(
    lookup: Lookup, s: Service | None = None, p: Profile | None = None, env: str = "e" * 64
) -> Release:
    return build_release(s or service(), p or profile(), env, lookup)


def test_the_digest_is_of_what_runs_and_of_nothing_else(lookup: Lookup) -> None:
    first = build(lookup)
    assert first.digest == build(lookup).digest
    # Where it runs and how it is judged is no part of it.
    assert first.digest == build(lookup, service(hosts=("other",), port=1234)).digest
    assert first.digest == build(lookup, service(golden="golden.json", gates=("exactness",))).digest
    for other in (
        build(lookup, p=profile(launch={"tp-size": 2})),
        build(lookup, p=profile(env={"A": "1"})),
        build(lookup, service(revision="abc")),
        build(lookup, service(api_key="env:K")),
        build(lookup, service(listen="0.0.0.0")),  # noqa: S104
        build(lookup, env="f" * 64),
    ):
        assert other.digest != first.digest


def test_weights_of_a_folder_are_named_by_their_content(lookup: Lookup, tmp_path: Path) -> None:
    first = build(lookup, service(model_source="weights"))
    assert "acme/m@sha256:" in str(first.content["model"])
    (tmp_path / "weights" / "config.json").write_text("{ }")
    assert build(lookup, service(model_source="weights")).digest != first.digest


def test_files_of_a_release_hold_no_reference_and_no_placeholder(lookup: Lookup) -> None:
    s = service(env={"TOKEN": "env:T"}, api_key="env:KEY", golden="golden.json")
    release = build(lookup, s, profile(spec=DDTREE))
    files = release_files(release, host(), 31000, Node())
    assert set(files) == {"release.json", "launch.json", "gates.json", "golden.json"}
    launch = json.loads(files["launch.json"])
    assert "${" not in files["launch.json"]
    assert launch["argv"][-2] == "--config"
    assert launch["argv"][-1].endswith("/current/secret-args.yaml")
    assert "TOKEN" not in launch["env"]
    other = release_files(release, host("c", "/data"), 31001, Node())
    assert other["release.json"] == files["release.json"]
    assert other["launch.json"] != files["launch.json"]
