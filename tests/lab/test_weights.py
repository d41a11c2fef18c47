"""Large weights from a folder of the project: killed in the middle, they go on from there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project
from tests.lab.looking import until

SIZE = 80 << 20


@pytest.fixture(scope="module")
def project(make_project: Callable[[str], Project]) -> Project:
    project = make_project("w")
    big = project.root / "lab/models/big"
    big.mkdir()
    (big / "model.safetensors").write_bytes(os.urandom(SIZE))
    (big / "config.json").write_text('{"vocab_size": 1024}\n')
    project.service(model_source='"lab/models/big"')
    project.ok("lab", "up", "--engine", "sim")
    return project


@pytest.fixture
def host(project: Project) -> Iterator[HostView]:
    yield project.host("lab1")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_killed_in_the_middle_it_goes_on_from_there(project: Project, host: HostView) -> None:
    target = Path(host.layout.models) / "tiny-qwen3"
    partial = Path(f"{target}.partial/model.safetensors")
    run = project.spawn("provision", "lab1")
    until(lambda: partial.exists() and partial.stat().st_size > 0, what="the first piece")
    run.kill()
    assert not target.exists()
    first, inode = partial.stat().st_size, partial.stat().st_ino
    assert 0 < first < SIZE
    shown = project.ok("provision", "lab1", "--dry-run", "--diff")
    assert "goes on with what was brought before" in shown.out
    assert partial.stat().st_size >= first
    project.ok("provision", "lab1")
    right = project.root / "lab/models/big/model.safetensors"
    assert digest(target / "model.safetensors") == digest(right)
    assert (target / "model.safetensors").stat().st_ino == inode, "the same file, gone on with"
    assert not partial.exists()
    record = json.loads(Path(f"{target}.weights.json").read_text())
    assert record["want"].startswith("sha256:")
    assert "nothing to do" in project.ok("provision", "lab1").err


def test_weights_that_were_changed_by_hand_stop_a_deploy(project: Project, host: HostView) -> None:
    project.ok("provision", "lab1")
    config = Path(host.layout.models) / "tiny-qwen3/config.json"
    config.write_text('{"vocab_size": 1}\n')
    refused = project.run("deploy", "lab1")
    assert refused.rc == 4, refused
    assert "changed since they were checked: config.json" in refused.err
    project.ok("provision", "lab1")
    assert config.read_text() == '{"vocab_size": 1024}\n'
    assert "nothing to do" in project.ok("provision", "lab1").err
