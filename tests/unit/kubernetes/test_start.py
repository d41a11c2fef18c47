"""A container's start, run for real without a cluster: what a kubelet would do is done by hand.

Device: cpu, engine: the stand-in `sim`, or a program that writes down how it was called.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddops.hostside import pod
from tests.unit.kubernetes.support import documents, host, pod_of, profile, service
from tests.unit.kubernetes.test_manifests import expanded
from tests.unit.test_engine_sim_support import KEY, Sim, environment, free_port, model_dir, wait_for


@dataclass(frozen=True)
class Pod:
    """The folders of one pod. `start` runs what its container runs."""

    root: Path
    container: dict[str, Any]

    def start(self, argv: list[str], **env: str) -> subprocess.Popen[bytes]:
        state, secrets = self.root / "service", self.root / "secrets"
        command = [sys.executable, str(self.root / "bin/pod.py"), str(state), str(secrets)]
        return subprocess.Popen(
            [*command, *argv],
            env={"PATH": os.environ["PATH"], **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    @property
    def launch(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "service/run/launch.json").read_text())
        return found


def laid(root: Path, found: dict[str, Any]) -> Pod:
    """The ConfigMap and the Secret as files, as a kubelet mounts them."""
    for folder in ("bin", "service", "secrets"):
        (root / folder).mkdir()
    for name, text in found["ConfigMap"]["data"].items():
        (root / "bin" / name).write_text(text, encoding="utf-8")
        (root / "bin" / name).chmod(0o444)
    (root / "secrets" / "api-key").write_text(KEY + "\n", encoding="utf-8")
    return Pod(root, pod_of(found)["spec"]["containers"][0])


PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
TELLS = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(sys.argv[1], 'w'))"


def called(made: Pod, **env: str) -> tuple[list[str], dict[str, str], str]:
    """How a container's engine was called: its words, its environment, and what was printed."""
    out = made.root / "called.json"
    done = made.start([sys.executable, "-c", TELLS, str(out)], **env)
    text = done.communicate(timeout=30)[0].decode()
    assert done.returncode == 0, text
    words, environ = json.loads(out.read_text())
    return words[1:], environ, text


def test_each_start_says_which_one_it_is(tmp_path: Path) -> None:
    made = laid(tmp_path, documents())
    seen = []
    for _ in range(2):
        words, environ, text = called(made)
        version = words[words.index("--weight-version") + 1]
        release = json.loads((tmp_path / "bin/release.json").read_text())["digest"]
        assert re.fullmatch(rf"{release[:12]}-[0-9a-f]{{12}}", version)
        assert made.launch["weight_version"] == version
        assert environ["DDOPS_LAUNCH"] == version.rpartition("-")[2]
        assert f'"weight_version": "{version}"' in text
        seen.append(version)
    assert seen[0] != seen[1]


def test_the_key_goes_by_a_file_that_only_the_pod_reads(tmp_path: Path) -> None:
    words, environ, text = called(laid(tmp_path, documents()))
    path = Path(words[words.index("--config") + 1])
    assert json.loads(path.read_text()) == {"api-key": KEY}
    assert path.stat().st_mode & 0o777 == 0o600
    assert KEY not in " ".join([*words, text, *environ.values()])


def test_without_a_key_none_is_asked_for(tmp_path: Path) -> None:
    made = laid(tmp_path, documents(service(api_key=None)))
    (tmp_path / "secrets/api-key").unlink()
    assert "--config" not in called(made)[0]


def test_a_secret_without_its_key_is_no_start(tmp_path: Path) -> None:
    made = laid(tmp_path, documents())
    (tmp_path / "secrets/api-key").unlink()
    done = made.start([sys.executable, "-c", ""])
    text = done.communicate(timeout=30)[0].decode()
    assert done.returncode == 1
    assert "secrets/api-key" in text


def test_an_image_without_the_release_s_code_is_no_start(tmp_path: Path) -> None:
    """Python would run the unpatched code instead, and nobody would be told."""
    done = laid(tmp_path, documents()).start(
        [sys.executable, "-c", ""], PYTHONPATH=f"{tmp_path}:/opt/ddops/code/0123456789ab"
    )
    text = done.communicate(timeout=30)[0].decode()
    assert done.returncode == 78
    assert "the image has no /opt/ddops/code/0123456789ab" in text


def test_the_end_of_the_engine_is_the_end_of_the_container(tmp_path: Path) -> None:
    done = laid(tmp_path, documents()).start([sys.executable, "-c", "raise SystemExit(7)"])
    done.communicate(timeout=30)
    assert done.returncode == 7


def test_a_wish_to_end_reaches_the_engine(tmp_path: Path) -> None:
    script = "import time; print('up', flush=True); time.sleep(60)"
    done = laid(tmp_path, documents()).start([sys.executable, "-c", script])
    assert done.stdout is not None
    while b"up" not in done.stdout.readline():
        assert done.poll() is None
    done.send_signal(signal.SIGTERM)
    done.communicate(timeout=20)
    assert done.returncode == 128 + signal.SIGTERM


def test_a_leader_that_the_cluster_does_not_know_yet_is_waited_for() -> None:
    began = time.monotonic()
    assert pod.resolved("localhost", limit_s=5)
    assert not pod.resolved("no-such-name.invalid", limit_s=0, pause_s=0)
    assert time.monotonic() - began < 5


Served = tuple[Pod, Sim]


@contextmanager
def served(root: Path, found: dict[str, Any], port: int, **env: str) -> Iterator[Served]:
    """The stand-in engine, started by the words of the manifest itself, on a port of ours."""
    root.mkdir(exist_ok=True)
    made = laid(root, found)
    words = [expanded(w, env) for w in made.container["args"]]
    own = {"--host": "127.0.0.1", "--port": str(port), "--model-path": str(model_dir(root))}
    for option, value in own.items():
        words[words.index(option) + 1] = value
    running = made.start([sys.executable, *words[1:]], **environment(root, "load_s=1"), **env)
    try:
        yield made, Sim(running, port, root)
    finally:
        running.terminate()
        running.communicate(timeout=30)


def test_probes_of_the_manifest_against_a_stand_in(tmp_path: Path) -> None:
    """Started, ready and alive are answered without the key; identity with it."""
    found = documents(service(), profile(launch={"tp-size": 1}))
    with served(tmp_path / "pod", found, free_port()) as (made, sim):
        probes = [made.container[k]["httpGet"]["path"] for k in PROBES]
        wait_for(lambda: sim.health() == 200 or sim.process.poll() is not None, 30)
        assert [sim.ask(path).status for path in probes] == [200, 200, 200]
        assert sim.ask("/model_info").status == 401
        said = sim.ask("/model_info", headers={"Authorization": f"Bearer {KEY}"}).json()
        assert said["weight_version"] == made.launch["weight_version"]


def test_two_pods_of_a_set_are_one_engine(tmp_path: Path) -> None:
    """Rank and meeting point come from what the set's controller puts into the environment."""
    hosts, meet = (host("p1"), host("p2")), free_port()
    s = service(hosts=("p1", "p2"), nnodes=2, dist_port=meet)
    found = documents(s, profile(launch={"tp-size": 2}), hosts)
    env = {"LWS_LEADER_ADDRESS": "127.0.0.1"}
    with (
        served(tmp_path / "a", found, free_port(), LWS_WORKER_INDEX="0", **env) as (_, leader),
        served(tmp_path / "b", found, free_port(), LWS_WORKER_INDEX="1", **env) as (made, follower),
    ):
        wait_for(lambda: leader.health() == 200 and follower.health() == 200, 30)
        probes = [made.container[k]["httpGet"]["path"] for k in PROBES]
        assert [follower.ask(path).status for path in probes] == [200, 200, 200]
        key = {"Authorization": f"Bearer {KEY}"}
        assert leader.ask("/server_info", headers=key).json()["nnodes"] == 2
        assert follower.ask("/model_info", headers=key).status == 404
