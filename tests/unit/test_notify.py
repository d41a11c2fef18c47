"""The wrapper of the systemd unit: who may start, when it is ready, and what systemd is told."""

from __future__ import annotations

import importlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: Scripts for hosts are not annotated.
notify: Any = importlib.import_module("ddops.hostside.notify")
observe: Any = importlib.import_module("ddops.hostside.observe")
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
OLD, NEW = "a" * 64, "b" * 64
LAUNCH = {"weight_version": "aaaa-1", "guard_pid": 1, "cgroup": ""}


def staged(service: Path, digest: str) -> None:
    folder = service / "releases" / digest
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text("{}")
    (folder / "gates.json").write_text(json.dumps({"port": 1}))


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """A deploy of `NEW` over the committed `OLD` is under way."""
    made = tmp_path / "tiny"
    staged(made, OLD)
    staged(made, NEW)
    (made / "run").mkdir()
    (made / "log").mkdir()
    (made / "log" / "engine.log").touch()
    (made / "run" / "op_id").write_text("op-1")
    (made / "committed").symlink_to(f"releases/{OLD}")
    (made / "current").symlink_to(f"releases/{NEW}")
    return made


def ticket(service: Path, boot: str) -> None:
    (service / "run" / "ticket.json").write_text(json.dumps({"boot_id": boot}))


def current(service: Path) -> str:
    return (service / "current").readlink().name


def test_a_deploy_of_this_boot_starts_what_it_switched_to(service: Path) -> None:
    ticket(service, BOOT)
    assert notify.may_start(str(service))
    assert current(service) == NEW
    assert (service / "run" / "op_id").read_text() == "op-1"


@pytest.mark.parametrize("left", ["of another boot", None, "torn"])
def test_a_boot_goes_back_to_what_passed_its_gates(
    service: Path, left: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if left == "torn":
        (service / "run" / "ticket.json").write_bytes(b'{"boot_id": "\xff')
    elif left:
        ticket(service, left)
    assert notify.may_start(str(service))
    assert current(service) == OLD
    assert not (service / "run" / "op_id").exists()
    assert f"back to releases/{OLD}" in capsys.readouterr().out
    assert sorted(p.name for p in service.iterdir()) == [
        "committed", "current", "log", "releases", "run",
    ]  # fmt: skip


def test_a_boot_starts_nothing_that_never_passed(service: Path) -> None:
    (service / "committed").unlink()
    assert not notify.may_start(str(service))
    assert notify.main(["notify.py", "condition", str(service)]) == 1


def test_a_committed_release_that_is_gone_is_none(service: Path) -> None:
    (service / "releases" / OLD / "launch.json").unlink()
    assert not notify.may_start(str(service))


def test_a_boot_needs_no_current(service: Path) -> None:
    (service / "current").unlink()
    assert notify.may_start(str(service))
    assert current(service) == OLD


def test_a_ticket_without_a_release_starts_nothing(service: Path) -> None:
    ticket(service, BOOT)
    (service / "current").unlink()
    assert not notify.may_start(str(service))


class FakeLook:
    """`observe`, with an engine that comes up step by step."""

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps

    def Http(self, _port: int, _timeout: float, _key: object) -> FakeLook:
        return self

    def api_key(self, _dir: str) -> None:
        return None

    def listening(self, _port: int, _dir: str, _launch: object) -> dict[str, object]:
        step = self.steps[0]
        if len(self.steps) > 1:
            self.steps.pop(0)
        self.now = step
        return {"listening": step != "closed", "owned": step != "foreign", "owner": "pid 7 x"}

    def get(self, _path: str) -> dict[str, object]:
        return {"status": 503 if self.now == "503" else 200}

    def get_json(self, _path: str, _allowed: object) -> dict[str, object]:
        said = {"other": {"weight_version": "zzzz-9"}, "mute": {}}.get(
            self.now, {"weight_version": "aaaa-1"}
        )
        return {"status": 200, **({"values": said} if said else {"error": "not JSON"})}


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """A place for messages to systemd, and what came so far."""
    path = str(tmp_path / "n.sock")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(path)
    server.setblocking(False)

    def read() -> list[str]:
        out = []
        while True:
            try:
                out.append(server.recv(4096).decode())
            except BlockingIOError:
                return out

    yield path, read
    server.close()


def watched(service: Path, steps: list[str], address: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(notify, "POLL_S", 0.001)
    return notify.Watch(str(service), notify.Notify(address), FakeLook(steps))


def test_ready_comes_last_and_once(
    service: Path, heard: tuple[str, Callable[[], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, read = heard
    steps = ["closed", "foreign", "503", "mute", "other", "well"]
    watched(service, steps, address, monkeypatch).until_ready(LAUNCH)
    said = read()
    assert [m.split(";")[0] for m in said[:-1]] == [
        "STATUS=loading",
        "STATUS=port 1 is held by pid 7 x",
        "STATUS=loading: /health does not answer 200",
        "STATUS=/model_info does not name this start",
    ]
    assert said[-1].startswith("READY=1\nSTATUS=ready after")
    assert sum("READY=1" in m for m in said) == 1


def test_progress_extends_the_start_and_silence_does_not(
    service: Path, heard: tuple[str, Callable[[], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, read = heard
    watch = watched(service, ["closed"], address, monkeypatch)
    job = threading.Thread(target=watch.until_ready, args=(LAUNCH,))
    job.start()
    time.sleep(0.2)
    assert [m for m in read() if "EXTEND" in m] == []
    log = service / "log" / "engine.log"
    log.write_text("shard 1\n")
    time.sleep(0.2)
    assert [m for m in read() if "EXTEND" in m] == ["EXTEND_TIMEOUT_USEC=600000000"]
    watch.observe.steps = ["well"]
    job.join(10)
    assert "READY=1" in read()[-1]


def test_no_line_of_the_log_is_told_to_systemd(
    service: Path, heard: tuple[str, Callable[[], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is for every user of the host to see; a log may hold a secret."""
    address, read = heard
    (service / "log" / "engine.log").write_text("api_key=canary-5512-egret\n")
    watched(service, ["closed", "503", "well"], address, monkeypatch).until_ready(LAUNCH)
    assert "canary" not in "".join(read())


def test_an_abstract_address_and_none_at_all(tmp_path: Path) -> None:
    name = f"ddops-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"\0{name}")
        server.settimeout(5)
        notify.Notify(f"@{name}").send("READY=1")
        assert server.recv(100) == b"READY=1"
    notify.Notify("").send("READY=1")


def test_a_log_that_grew_is_copied_and_emptied_under_the_engine(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with log.open("a") as engine:
        for n in range(5):
            engine.write(f"line {n}\n" * 10)
            engine.flush()
            assert notify.rotate(str(log), limit=50, keep=3)
        assert not notify.rotate(str(log), limit=50, keep=3)
        engine.write("after\n")
        engine.flush()
    assert log.read_text() == "after\n"  # no hole of zeros: it appends
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "engine.log", "engine.log.1", "engine.log.2", "engine.log.3",
    ]  # fmt: skip
    assert (tmp_path / "engine.log.1").read_text() == "line 4\n" * 10
    assert (tmp_path / "engine.log.3").read_text() == "line 2\n" * 10


def test_a_log_that_cannot_be_rotated_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not notify.rotate(str(tmp_path / "absent"))
    assert "not rotated" in capsys.readouterr().out


V2 = "0::/system.slice/ddops-tiny.service\n"
V1 = (
    "12:memory:/system.slice/ddops-tiny.service\n5:cpu,cpuacct:/\n"
    "1:name=systemd:/system.slice/ddops-tiny.service\n"
)
HYBRID = "4:memory:/\n1:name=systemd:/system.slice/ddops-tiny.service\n0::/\n"
#: A container that has version 2 on a machine with version 1.
INSIDE = "9:name=systemd:/\n8:pids:/\n0::/system.slice/ddops-tiny.service\n"


@pytest.mark.parametrize("text", [V2, V1, HYBRID, INSIDE], ids=["v2", "v1", "hybrid", "inside"])
def test_the_group_that_systemd_manages_is_found(text: str) -> None:
    assert observe.managed(text) == "/system.slice/ddops-tiny.service"


@pytest.mark.parametrize(
    ("text", "group"),
    [("", None), ("0::/\n", "/"), ("1:name=systemd:/\n0::/\n", "/"), ("nonsense", None),
     ("3:memory:/a\n", None), ("0::/a:b/c.service\n", "/a:b/c.service")],
)  # fmt: skip
def test_odd_groups(text: str, group: str | None) -> None:
    assert observe.managed(text) == group


def test_ownership_by_group_is_of_that_group_and_below(tmp_path: Path) -> None:
    own = observe.managed(Path("/proc/self/cgroup").read_text())
    pid = os.getpid()
    assert not observe.in_group(pid, "")
    assert not observe.in_group(pid, "/")  # the root is everybody's
    assert not observe.in_group(pid, None)
    if own and own != "/":
        assert observe.in_group(pid, own)
        assert not observe.in_group(pid, own + "x")
    assert not observe.in_group(2**22 + 1, "/system.slice/ddops-tiny.service")
