"""Secrets by reference: the engine has them, and nothing else ever shows them."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.harness import Done, HostView, Project
from tests.lab.looking import below, seen_in_proc, until

KEY = "canary-key/Otter+7731-quiet"
TOKEN = "canary-token-Heron-4410"


@dataclass
class Deployed:
    project: Project
    host: HostView
    outputs: list[Done]


@pytest.fixture(scope="module")
def keyed(make_project: Callable[[str], Project]) -> Iterator[Deployed]:
    """A service with an API key and a secret variable, deployed and looked at with every verb."""
    project = make_project("s")
    project.more_env.update({"THE_KEY": KEY, "THE_TOKEN": TOKEN})
    project.service(api_key='"env:THE_KEY"', env='{ SECRET_TOKEN = "env:THE_TOKEN" }')
    project.ok("lab", "up", "--engine", "sim")
    project.ok("provision", "lab")
    host = project.host("lab1")
    host.fault(log_secret=True)
    outputs = [project.ok("-v", "deploy", "lab", "--json"), project.ok("deploy", "lab1")]
    outputs += [project.ok(*words) for words in (
        ("status",), ("status", "--json"), ("deploy", "lab", "--dry-run"),
        ("deploy", "lab", "--dry-run", "--json"), ("lock", "status", "lab", "--json"),
    )]  # fmt: skip
    yield Deployed(project, host, outputs)
    project.ok("lab", "down")


def test_the_engine_requires_the_key(keyed: Deployed) -> None:
    assert keyed.host.get("/server_info") is None
    assert keyed.host.get("/server_info", key=KEY) is not None


def test_the_engine_has_the_secret_variable(keyed: Deployed) -> None:
    (pid,) = keyed.host.pids()
    env = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"SECRET_TOKEN={TOKEN}".encode() in env


def test_nothing_printed_holds_a_secret(keyed: Deployed) -> None:
    assert "unchanged" in keyed.outputs[1].out
    for done in keyed.outputs:
        assert KEY not in done.out + done.err
        assert TOKEN not in done.out + done.err


def test_no_command_line_holds_a_secret(keyed: Deployed) -> None:
    assert seen_in_proc(str(keyed.host.port))  # the search sees the engine's own
    assert seen_in_proc(KEY) == []
    assert seen_in_proc(TOKEN) == []


def test_secret_files_are_private_and_nothing_else_holds_them(keyed: Deployed) -> None:
    holding = []
    for path in below(keyed.project.root):
        if path.is_file() and not path.is_symlink() and _holds(path):
            holding.append(path)
            assert path.stat().st_mode & 0o077 == 0, path
    names = {p.name for p in holding}
    # The engine's own log is its affair: the stand-in was told to leak into it.
    assert names <= {"secrets.json", "secret-args.yaml", "engine.log"}
    assert {"secrets.json", "secret-args.yaml"} <= names


def _holds(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # the host lives: what was written beside has its name now
        return False
    return KEY.encode() in data or TOKEN.encode() in data


def test_a_log_that_leaks_is_shown_masked(keyed: Deployed) -> None:
    project, host = keyed.project, keyed.host
    project.profile("leaky", "die_loading=oom,log_secret,shards=1")
    done = project.run("-v", "deploy", "lab1", "--profile", "leaky")
    assert done.rc == 5, done
    assert "server_args=" in done.err  # the very line that holds the key
    assert KEY not in done.out + done.err
    for part in (".ddops/ledger.db", ".ddops/ledger.db-wal"):
        file = project.root / part
        assert not file.exists() or KEY.encode() not in file.read_bytes()
    assert KEY not in Path(host.layout.journal).read_text()


def test_a_bundle_holds_the_leaking_log_masked(keyed: Deployed) -> None:
    """The log leaks on purpose; values are learned from the host, not from this environment."""
    path = keyed.project.root / "failure.tar.gz"
    unset = {"THE_KEY": "", "THE_TOKEN": ""}
    done = keyed.project.ok("bundle", "lab", "--out", str(path), "--json", env=unset)
    assert done.json["left_out"] == []  # type: ignore[index]
    with tarfile.open(path) as archive:
        files = {m.name: archive.extractfile(m) for m in archive.getmembers()}
        texts = {name: file.read().decode() for name, file in files.items() if file is not None}
    assert path.stat().st_mode & 0o077 == 0
    for name, text in texts.items():
        assert KEY not in text and TOKEN not in text, name
    service = "failure/hosts/lab1/tiny/"
    names = ("engine.log", "journal.jsonl", "unit.txt", "observation.json", "launch-record.json")
    assert {service + n for n in names} <= set(texts)
    assert "***" in texts[service + "engine.log"], "it leaked, and was masked"
    assert "committed" in texts["failure/ledger/transition.jsonl"]
    assert texts["failure/hosts/lab1/facts.jsonl"].count("\n") == 1


def test_a_secret_that_is_not_there_is_said_before_the_stop(keyed: Deployed) -> None:
    project, host = keyed.project, keyed.host
    pids = host.pids()
    project.profile("nokey", "commit=3")
    done = project.run("deploy", "lab1", "--profile", "nokey", env={"THE_KEY": ""})
    assert done.rc == 2, done
    assert "THE_KEY" in done.err
    assert host.pids() == pids
    assert not host.locked


def test_a_restart_of_the_supervisor_keeps_the_key(keyed: Deployed) -> None:
    (pid,) = keyed.host.pids()
    os.kill(pid, 9)
    until(lambda: keyed.host.get("/server_info", key=KEY), what="the restarted engine")
    assert keyed.host.get("/server_info") is None


def test_release_and_dry_run_name_the_reference_alone(keyed: Deployed) -> None:
    dry = keyed.outputs[4].out
    assert "(secret, env:THE_TOKEN)" in dry
    release = Path(keyed.host.service.current) / "release.json"
    assert json.loads(release.read_text())["spec"]["api_key"] == "env:THE_KEY"
