"""The systemd supervisor over a scripted host, the gates that hear systemd, and unitctl's text."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddops.engines import LaunchSpec
from ddops.errors import CommandFailed, RefusedError
from ddops.gates import judge_g0
from ddops.gates.observation import Unit
from ddops.inventory.model import Host, Origin, Service
from ddops.layout import HostLayout
from ddops.model import Result, State, Verdict
from ddops.supervise import Order, SystemdSupervisor
from ddops.transport.fake import FakeTransport
from tests.unit.test_gates import LAUNCH, WELL, but

#: A script for hosts is not annotated.
unitctl: Any = importlib.import_module("ddops.hostside.unitctl")
SCHEMA = "ddops.unitctl/1"
UNIT = Unit("ddops-tiny.service", "active", main_pid=LAUNCH.guard_pid, restarts=0, result="success")


def answering(**answer: object) -> tuple[FakeTransport, SystemdSupervisor]:
    host = FakeTransport("box").on("python3", json.dumps({"schema": SCHEMA, **answer}))
    return host, SystemdSupervisor(host, HostLayout("/opt/ddops"), "python3")


def order(service: str, digest: str) -> Order:
    """A release that asks for nothing."""
    here = Origin("project", Path("inventory/x.toml"))
    return Order(
        Service(model="m", profile="p", hosts=("box",), name=service, origin=here),
        Host(ssh="box", name="box", origin=here), 30000, digest, LaunchSpec(("python",), ()),
        "[Unit]\n",
    )  # fmt: skip


def test_the_unit_is_the_one_of_the_release() -> None:
    _, supervisor = answering()
    assert supervisor.render(order("tiny", "ab" * 32), Path) == {"ddops-tiny.service": "[Unit]\n"}


@pytest.mark.parametrize(
    ("word", "state"),
    [("active", State.UP), ("activating", State.UP), ("deactivating", State.UP),
     ("inactive", State.DOWN), ("failed", State.DOWN), (None, State.DOWN),
     ("maintenance", State.UNKNOWN)],
)  # fmt: skip
def test_words_of_systemd(word: str | None, state: State) -> None:
    host, supervisor = answering(state=word, why="exit-code", left=[3, 4])
    seen = supervisor.cancel("tiny")
    assert (seen.state, seen.word, seen.why, seen.left) == (
        state, word or "absent", "exit-code", (3, 4),
    )  # fmt: skip
    assert host.calls[0].argv == (
        "python3", "/opt/ddops/.ddops/hostside/unitctl.py", "/opt/ddops/.ddops", "stop", "tiny",
    )  # fmt: skip


def test_a_staged_release_is_verified_by_its_digest() -> None:
    host, supervisor = answering(state=None)
    supervisor.stage(order("tiny", "ab" * 32), Path)
    assert host.calls[0].argv[-3:] == ("verify", "tiny", "ab" * 32)


def test_what_the_host_refuses_is_told_with_what_to_do() -> None:
    _, supervisor = answering(error="systemctl start: sudo: a password is required")
    with pytest.raises(RefusedError) as told:
        supervisor.submit("tiny")
    assert "a password is required" in told.value.why
    assert "sudo -n true" in told.value.next


def test_another_version_on_the_host_is_not_guessed_at() -> None:
    host = FakeTransport("box").on("python3", '{"schema": "ddops.unitctl/9", "state": "active"}')
    with pytest.raises(CommandFailed, match="another version"):
        SystemdSupervisor(host, HostLayout("/opt/ddops"), "python3").status("tiny")


def test_a_script_that_dies_is_an_error() -> None:
    host = FakeTransport("box").on("python3", Result(2, b"", b"can't open file", 0.0))
    with pytest.raises(CommandFailed) as told:
        SystemdSupervisor(host, HostLayout("/opt/ddops"), "python3").cancel("tiny")
    assert "ddops provision box" in told.value.next


def test_g0_hears_systemd() -> None:
    well = but(unit=UNIT)
    assert judge_g0(well, well, "op").verdict is Verdict.PASS
    for changed, verdict, words in (
        ({"active": "activating"}, Verdict.FAIL, "is activating"),
        ({"active": "failed"}, Verdict.FAIL, "is failed"),
        ({"active": "unknown", "why": "timed out"}, Verdict.UNKNOWN, "cannot be asked for: timed"),
        ({"main_pid": 99}, Verdict.FAIL, "main pid 99"),
        ({"restarts": 1}, Verdict.FAIL, "was restarted"),
    ):
        seen = but(unit=dataclasses.replace(UNIT, **changed))
        result = judge_g0(well, seen, "op")
        assert (result.verdict, words in result.message) == (verdict, True), result


def test_healthy_is_also_started() -> None:
    assert WELL.healthy
    assert but(unit=UNIT).healthy
    assert not but(unit=dataclasses.replace(UNIT, active="activating")).healthy
    assert not but(unit=UNIT, health=None).healthy


def release(tmp_path: Path, unit: str, engine: str = "opt") -> Any:
    state = tmp_path / engine / ".ddops"
    folder = state / "services" / "tiny" / "releases" / "r"
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(json.dumps({"spec": {"unit": unit}}))
    return unitctl.Unit(str(state), "tiny")


def test_a_unit_is_filled_in_for_its_host(tmp_path: Path) -> None:
    made = release(tmp_path, "ExecStart=${python} ${engine_dir}/x\nUser=${user}\n")
    text = made.text(f"{made.dir}/releases/r")
    assert text.splitlines()[0].endswith(f" {tmp_path}/opt/x")
    assert text.splitlines()[0].startswith("ExecStart=/")
    assert "${" not in text
    assert Path(sys.executable).name in text


@pytest.mark.parametrize("folder", ["a b", "a%n", 'a"b', "a$b", "a\nb", "a;b"])
def test_a_folder_that_a_unit_would_read_another_way_is_refused(
    tmp_path: Path, folder: str
) -> None:
    made = release(tmp_path, "ExecStart=${engine_dir}/x\n", folder)
    with pytest.raises(unitctl.Refused, match="cannot be written into a unit"):
        made.text(f"{made.dir}/releases/r")


def test_a_name_that_the_host_does_not_know_is_refused(tmp_path: Path) -> None:
    made = release(tmp_path, "ExecStart=${rank}\n")
    with pytest.raises(unitctl.Refused, match="does not know"):
        made.text(f"{made.dir}/releases/r")


def test_members_of_no_group_are_none() -> None:
    assert unitctl.members("") == []
    assert unitctl.members("/") == []  # the root is everybody's
    assert unitctl.members("/no/such.service") == []


def test_errors_of_the_host_become_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no systemctl
    assert unitctl.main([str(tmp_path / ".ddops"), "status", "tiny"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == SCHEMA
    assert "systemctl" in answer["error"]
