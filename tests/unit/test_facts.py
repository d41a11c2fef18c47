"""Facts: the real collector on this machine, recorded roots, and texts that are no facts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddops import hostside
from ddops.errors import CommandFailed, DdopsError
from ddops.model import Result
from ddops.probe import collect, parse_facts
from ddops.transport import FakeTransport, LocalTransport

SCRIPT = Path(hostside.__file__).with_name("collect.py")
HOSTS = Path(__file__).resolve().parents[2] / "lab" / "hosts"


def run(*args: str, path: str = os.defpath) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *args], capture_output=True, check=True, timeout=30,
        env={"PATH": path},
    )  # fmt: skip
    value: dict[str, object] = json.loads(done.stdout)
    return value


def test_this_machine(tmp_path: Path) -> None:
    facts = collect(LocalTransport("here"), sys.executable, str(tmp_path / "no" / "such"))
    assert not facts.simulated
    assert facts.python == sys.version_info[:3]
    assert not facts.disk.exists
    assert facts.disk.free > 0
    again = collect(LocalTransport("here"), sys.executable, str(tmp_path / "no" / "such"))
    assert again.digest == facts.digest  # what changes by itself does not count


def test_only_some_commands_leave_the_probes_out(tmp_path: Path) -> None:
    done = run("--only=smi_apps", path=_smi(tmp_path, "echo 4711, 300"))
    commands = done["commands"]
    assert isinstance(commands, dict)
    assert list(commands) == ["smi_apps"]
    assert commands["smi_apps"]["out"] == "4711, 300\n"
    assert done["probes"] == {}
    assert "gpus" in done


def test_looking_makes_nothing(tmp_path: Path) -> None:
    run("--engine-dir", str(tmp_path / "engine"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "cap", "count"), [("b300", "10.3", 8), ("pcie", "12.0", 8)])
def test_a_recorded_host(kind: str, cap: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{HOSTS / 'bin'}:{Path(sys.executable).parent}:{os.defpath}"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--root", str(HOSTS / kind / "root")],
        capture_output=True, check=True, text=True, timeout=30,
        env={"PATH": path, "DDOPS_RECORDED_SMI": str(HOSTS / kind / "nvidia-smi.json")},
    )  # fmt: skip
    facts = parse_facts(done.stdout)
    assert facts.simulated
    assert facts.gpus is not None
    assert len(facts.gpus) == count
    assert {g.compute_cap for g in facts.gpus} == {cap}
    assert facts.driver is not None
    assert facts.hostname != os.uname().nodename


def _smi(tmp_path: Path, body: str) -> str:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    return f"{tmp_path}:{os.defpath}"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "ended with 9: NVIDIA-SMI has failed"),
        ("echo 'a, new, banner'", "unexpected line"),
        ("exec sleep 60", "no answer"),
    ],
)
def test_a_tool_that_does_not_answer_is_unread_never_none_there(
    tmp_path: Path, body: str, why: str
) -> None:
    facts = run("--time-limit", "0.5", path=_smi(tmp_path, body))
    assert facts["gpus"] is None
    unread = facts["unread"]
    assert isinstance(unread, dict)
    assert why in unread["gpus"]


def test_an_empty_list_is_no_gpu(tmp_path: Path) -> None:
    assert run(path=_smi(tmp_path, "exit 0"))["gpus"] == []


def test_what_the_tool_does_not_know_is_null(tmp_path: Path) -> None:
    row = "0, X, GPU-1, 12.0, [N/A], 1, 580.1, 00:01, [Not Supported], [Unknown Error]"
    facts = run(path=_smi(tmp_path, f"echo '{row}'"))
    gpus = facts["gpus"]
    assert isinstance(gpus, list)
    assert (gpus[0]["memory.total"], gpus[0]["power.limit"], gpus[0]["mig.mode.current"]) == (
        None, None, "[Unknown Error]",
    )  # fmt: skip
    # A marker of a fault is evidence, not absence: GPU-03 looks for it.


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "ddops.facts/0"}'])
def test_texts_that_are_no_facts(text: str) -> None:
    with pytest.raises(DdopsError, match="not readable"):
        parse_facts(text)


def test_a_host_without_python_and_one_whose_script_fails() -> None:
    with pytest.raises(DdopsError, match="no usable python3 on the host"):
        collect(FakeTransport("box"), "python3", "/opt/ddops")
    told = b"Ubuntu 20.04 LTS, x86_64\n/usr/bin/python3.11\n"
    old = FakeTransport("box").on("python3", Result(126, b"", b"Python 3.8 is too old", 0.0))
    with pytest.raises(DdopsError) as caught:
        collect(old.on("sh", Result(0, told, b"", 0.0)), "python3", "/opt/ddops")
    assert "Ubuntu 20.04 LTS, x86_64" in caught.value.what
    assert "it has /usr/bin/python3.11; set python in hosts.toml for box" in caught.value.next
    bad = FakeTransport("box").on("python3", Result(1, b"", b"Traceback", 0.0))
    with pytest.raises(CommandFailed, match="could not be collected"):
        collect(bad, "python3", "/opt/ddops")
