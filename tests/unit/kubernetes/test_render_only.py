"""`ddops deploy SERVICE --render-only -o DIR`: files for whoever runs it, and nobody is asked."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.unit.cli_support import Run, runner
from tests.unit.kubernetes.support import IMAGE, ROOT

CANARY = "canary-7f3a9c"
HOST = f"""
[hosts.NAME]
ssh = "NAME.invalid"
class = "nvlink"
engine_env = "sim"
supervisor = "process"

[hosts.NAME.kubernetes]
image = "{IMAGE}"
models_claim = "models"
namespace = "inference"
"""
SERVICE = """
model = "acme/m"
model_path = "${engine_dir}/models/m"
profile = "p"
hosts = ["a"]
listen = "0.0.0.0"
api_key = "file:secrets/key"
[env]
HF_TOKEN = "env:HF_TOKEN"
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """In a project with two hosts that do not exist; a connection or a child is an error."""
    go = runner(tmp_path, monkeypatch, capfd)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    for name in ("secrets", "inventory/services", "inventory/profiles"):
        Path(name).mkdir(parents=True)
    Path("ddops.toml").touch()
    Path("secrets/key").write_text(CANARY, encoding="utf-8")
    Path("secrets/key").chmod(0o600)
    hosts = HOST.replace("NAME", "a") + HOST.replace("NAME", "b")
    Path("inventory/hosts.toml").write_text(hosts, encoding="utf-8")
    Path("inventory/profiles/p.toml").write_text("[launch]\ntp-size = 8\n", encoding="utf-8")
    for name, head in (("k26", 'engine = "kubernetes"\n'), ("plain", ""), ("unit", UNIT)):
        Path(f"inventory/services/{name}.toml").write_text(head + SERVICE, encoding="utf-8")

    def nobody(*_args: object, **_more: object) -> None:
        raise AssertionError("somebody was asked")

    monkeypatch.setattr(socket.socket, "connect", nobody)
    monkeypatch.setattr(subprocess, "Popen", nobody)
    return go


UNIT = 'engine = "systemd"\n'


def change(name: str, old: str, new: str) -> None:
    path = Path(f"inventory/services/{name}.toml")
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def files(folder: str) -> dict[str, str]:
    root = Path(folder)
    return {
        str(p.relative_to(root)): p.read_text("utf-8")
        for p in sorted(root.rglob("*"))
        if p.is_file() and not p.name.startswith(".")
    }


def test_manifests_are_written_and_the_next_commands_are_told(run: Run) -> None:
    done = run("deploy", "k26", "--render-only", "-o", "out")
    assert done.code == 0, done.err
    assert done.out.split() == [
        "out/10-configmap.yaml", "out/20-service.yaml", "out/30-deployment.yaml",
    ]  # fmt: skip
    assert "kubectl create secret generic k26 -n inference --from-file FOLDER" in done.err
    assert "one value each: api-key, HF_TOKEN" in done.err
    assert done.err.rstrip().endswith("next: kubectl apply -f out")
    kinds = [yaml.safe_load(text)["kind"] for text in files("out").values()]
    assert kinds == ["ConfigMap", "Service", "Deployment"]


@pytest.mark.parametrize("name", ["k26", "plain", "unit"])
def test_no_secret_is_written(name: str, run: Run) -> None:
    done = run("deploy", name, "--render-only", "-o", "out")
    assert done.code == 0, done.err
    everything = [p.read_bytes() for p in Path("out").rglob("*") if p.is_file()]
    assert len(everything) > 3
    assert not [text for text in everything if CANARY.encode() in text]
    assert CANARY not in done.out + done.err


def test_what_would_lie_on_a_host_with_supervisord(run: Run) -> None:
    done = run("deploy", "plain", "--render-only", "-o", "out")
    assert done.code == 0, done.err
    have = files("out")
    assert set(have) == {
        "a/program.conf", "a/release.json", "a/launch.json", "a/gates.json",
    }  # fmt: skip
    launch = json.loads(have["a/launch.json"])
    assert launch["argv"][-2:] == [
        "--config", "/opt/ddops/.ddops/services/plain/current/secret-args.yaml",
    ]  # fmt: skip
    assert "HF_TOKEN" not in launch["env"]
    assert json.loads(have["a/release.json"])["digest"] == launch["release"]
    assert "[program:plain]" in have["a/program.conf"]
    assert "left out: the secrets api-key, HF_TOKEN" in done.err
    assert done.err.rstrip().endswith("next: ddops deploy plain")


def test_what_would_lie_on_a_host_with_systemd(run: Run) -> None:
    assert run("deploy", "unit", "--render-only", "-o", "out").code == 0
    unit = files("out")["a/ddops-unit.service"]
    assert "Description=SGLang service unit" in unit
    assert json.loads(files("out")["a/release.json"])["spec"]["unit"] == unit


def test_a_release_has_one_digest_wherever_it_goes(run: Run) -> None:
    """But for the service's name, the one line that differs is no part of a release."""
    change("k26", 'engine = "kubernetes"\n', "")
    assert run("deploy", "k26", "--render-only", "-o", "host").code == 0
    change("k26", "model =", 'engine = "kubernetes"\nmodel =')
    assert run("deploy", "k26", "--render-only", "-o", "cluster").code == 0
    on_host = json.loads(files("host")["a/release.json"])
    config = yaml.safe_load(files("cluster")["10-configmap.yaml"])
    assert json.loads(config["data"]["release.json"]) == on_host


def test_the_same_again_and_another_release(run: Run) -> None:
    say = ("deploy", "k26", "--render-only", "-o", "out", "--json")
    first, again = run(*say).document["data"], run(*say).document["data"]
    assert (first["changed"], again["changed"]) == (True, False)
    assert again["secrets"] == ["api-key", "HF_TOKEN"]
    change("k26", "acme/m", "acme/n")
    other = run(*say).document["data"]
    assert other["changed"]
    assert other["release"] != first["release"]
    assert f"ddops/release: {other['release'][:12]}" in files("out")["20-service.yaml"].replace(
        '"', ""
    )


def test_somebody_elses_folder_is_refused(run: Run) -> None:
    Path("out").mkdir()
    Path("out/mine.yaml").write_text("mine", encoding="utf-8")
    done = run("deploy", "k26", "--render-only", "-o", "out")
    assert done.code == 4
    assert "out is not written over" in done.err
    assert files("out") == {"mine.yaml": "mine"}


@pytest.mark.parametrize(
    "argv", [(), ("--dry-run",), ("--json",), ("--canary",), ("--yes",), ("--profile", "p")]
)
def test_without_render_only_it_is_refused_with_the_next_command(
    argv: tuple[str, ...], run: Run
) -> None:
    done = run("deploy", "k26", *argv)
    assert done.code == 4
    assert "ddops talks to no cluster" in done.err
    assert "next: ddops deploy k26 --render-only -o DIR" in done.err


@pytest.mark.parametrize(
    ("argv", "then"),
    [
        (("rollback", "k26"), "next: kubectl rollout undo deployment/k26"),
        (("rollback", "k26", "--dry-run"), "next: kubectl rollout undo deployment/k26"),
        (("drift", "k26"), "next: kubectl diff -f DIR"),
    ],
)
def test_what_asks_a_host_asks_none_for_a_service_of_a_cluster(
    argv: tuple[str, ...], then: str, run: Run
) -> None:
    done = run(*argv)
    assert done.code == 4
    assert "ddops talks to no cluster" in done.err
    assert then in done.err


def test_the_script_of_a_job_is_rendered_too(run: Run) -> None:
    change("unit", 'engine = "systemd"', 'engine = "slurm"')
    done = run("deploy", "unit", "--render-only", "-o", "out")
    assert done.code == 0, done.err
    assert files("out")["a/job.sbatch"].startswith("#!")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("k26", "--render-only"), "--render-only needs a folder"),
        (("k26", "-o", "out"), "-o and --render-only go together"),
        (("k26", "--render-only", "-o", "out", "--dry-run"), "without --dry-run"),
        (("k26,plain", "--render-only", "-o", "out"), "a has k26, plain"),
    ],
)
def test_wrong_arguments(argv: tuple[str, ...], told: str, run: Run) -> None:
    done = run("deploy", *argv)
    assert done.code == 2
    assert told in done.err
    assert not Path("out").exists()


def test_some_of_the_hosts_of_a_service_are_no_service(run: Run) -> None:
    change("k26", 'hosts = ["a"]', 'hosts = ["b", "a"]')
    done = run("deploy", "k26", "--limit", "a", "--render-only", "-o", "out")
    assert done.code == 2
    assert "one set of pods for b, a" in done.err
    assert run("deploy", "k26", "--render-only", "-o", "out").code == 0
    found = yaml.safe_load(files("out")["30-deployment.yaml"])
    assert found["spec"]["replicas"] == 2


def test_two_nodes_are_a_set(run: Run) -> None:
    change("k26", 'hosts = ["a"]', 'hosts = ["a", "b"]\nnnodes = 2')
    assert run("deploy", "k26", "--render-only", "-o", "out").code == 0
    assert "30-leaderworkerset.yaml" in files("out")
    done = run("deploy", "a", "--render-only", "-o", "one")
    assert done.code == 2
    assert not Path("one").exists()


def test_faults_are_told_and_nothing_is_written(run: Run) -> None:
    change("k26", 'listen = "0.0.0.0"', 'listen = "127.0.0.1"')
    done = run("deploy", "k26", "--render-only", "-o", "out")
    assert done.code == 2
    assert "error: inventory/services/k26.toml:7: listen: a pod that listens on" in done.err
    assert not Path("out").exists()


def test_a_gpu_host_of_one_node_as_it_is_shipped(run: Run) -> None:
    """The example of an HGX B300, with its CUDA environment and its patches."""
    shipped = (ROOT / "inventory/services/k26-b300.toml").read_text("utf-8")
    head = 'engine = "kubernetes"\nlisten = "0.0.0.0"\napi_key = "file:secrets/key"\n'
    Path("inventory/services/k26-b300.toml").write_text(head + shipped, encoding="utf-8")
    hosts = Path("inventory/hosts.toml")
    cuda = HOST.replace("NAME", "b300").replace('engine_env = "sim"\n', "")
    hosts.write_text(hosts.read_text("utf-8") + cuda, encoding="utf-8")
    done = run("deploy", "k26-b300", "--render-only", "-o", "out")
    assert done.code == 0, done.err
    found = yaml.safe_load(files("out")["30-deployment.yaml"])
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "DDTREE" in container["args"]
    assert re.fullmatch(r"/opt/ddops/env/[0-9a-f]{12}/bin/python", container["command"][0])
    first = {e["name"]: e.get("value", "") for e in container["env"]}["PYTHONPATH"]
    assert re.match(r"/opt/ddops/code/[0-9a-f]{12}(:|\Z)", first), "its patches go with it"
