"""A dry run writes nothing anywhere: every command it sends to a host is on an allow-list.

The list holds whole texts: scripts that read, and programs of ours with verbs that read. A new
command in a dry run fails here until somebody has looked at it and added it.
To see it fail: call `make_dirs` in an `observe` of ddops/provision/steps.py, or take the lock
before the plan in ddops/cli/provision.py.
"""

from __future__ import annotations

import base64
import json
import posixpath
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddops import lock
from ddops.cli import root as root_module
from ddops.cli.app import App
from ddops.command import ALONE, Cmd
from ddops.deploy import host as deploy_host
from ddops.hostside import joined, source
from ddops.model import Result
from ddops.provision.side import look_text
from ddops.transport import FakeTransport, scripts
from ddops.transport.fake import Answer
from ddops.transport.fakefs import FakeError
from ddops.transport.files import digest_command

ENGINE = "/opt/ddops"
SIDE = f"{ENGINE}/.ddops/hostside"

#: Scripts sent whole on standard input that only look.
LOOK = joined("observe", "board").encode()
READING_SOURCES = (source("collect").encode(), LOOK, digest_command("/x").stdin)
#: What builds an environment.
BUILD = joined("env_whole", "build_env")
#: Shell scripts that only look.
READING_SCRIPTS = (scripts.READ, lock._READ, deploy_host._LINKS)
#: Programs provision has laid down, with the words behind state folder and socket, or none.
READING_PROGRAMS = {"observe.py": None, "svctl.py": "status"}


def reads_only(command: Cmd) -> bool:
    """Whether a command is on the allow-list."""
    argv = command.argv
    if argv[:3] == ("python3", "-S", "-c"):
        return argv[3:] == (look_text(),)
    if argv[:4] == ("python3", *ALONE, "-"):
        return command.stdin in READING_SOURCES
    if argv[:2] == ("sh", "-c"):
        return argv[2] in READING_SCRIPTS
    if argv[0] == "python3":
        argv = tuple(a for a in argv if a not in ALONE)
    if argv[0] == "python3" and len(argv) > 1 and posixpath.dirname(argv[1]) == SIDE:
        name = posixpath.basename(argv[1])
        return name in READING_PROGRAMS and READING_PROGRAMS[name] in (None, *argv[4:5])
    return False


def test_the_allow_list_refuses_what_changes_things() -> None:
    from ddops.command import cmd, python, sh

    assert reads_only(sh(scripts.READ, "/etc/hostname"))
    for command in (
        cmd("mkdir", "/x"),
        sh(scripts.WRITE, "/x"),
        sh("true"),
        sh(f"{scripts.READ}; true", "/x"),
        python("print(1)"),
        cmd("python3", f"{SIDE}/svctl.py", "/s", "/s.sock", "start", "tiny"),
        cmd("python3", "-c", BUILD, "{}"),
        cmd("python3", "/elsewhere/observe.py"),
        cmd("python3", "-c", "print(1)"),
        cmd("sudo", "-n", "python3", "-S", "-c", look_text()),
    ):
        assert not reads_only(command), command


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One host with the stand-in engine, one service whose weights come from the project."""
    root = tmp_path / "project"
    for name, text in {
        "ddops.toml": "",
        "inventory/hosts.toml": (
            '[hosts.box]\nssh = "box"\nclass = "cpu"\nengine_env = "sim"\nsupervisor = "process"\n'
        ),
        "inventory/services/echo.toml": (
            'model = "acme/echo"\nmodel_path = "${engine_dir}/models/echo"\n'
            'model_source = "weights/echo"\nprofile = "plain"\nhosts = ["box"]\n'
        ),
        "inventory/profiles/plain.toml": '[launch]\ndevice = "cpu"\n',
        "weights/echo/config.json": "{}",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def _state(host: FakeTransport, query: dict[str, list[Any]]) -> dict[str, object]:
    """What hostside/state.py would say of the files in memory."""

    def mode(path: str) -> int | None:
        node = host.files.get(path)
        if node is None:
            return None
        return stat.S_IMODE(node.mode) if stat.S_ISDIR(node.mode) else -1

    def env(path: str) -> object:
        node = host.files.get(f"{path}/env.json")
        return None if node is None else {**json.loads(node.data), "wrong": [], "unknown": []}

    def text(path: str) -> str | None:
        node = host.files.get(path)
        return None if node is None else base64.b64encode(node.data).decode()

    def digest(path: str) -> str | None:
        there = host.files.get(path)
        return None if there is None else host.files._tree_digest(path).decode().strip()

    return {
        "schema": "ddops.state/1",
        "dirs": {p: mode(p) for p in query.get("dirs", [])},
        "trees": {p: digest(p) for p in query.get("trees", [])},
        "texts": {p: text(p) for p in query.get("texts", [])},
        "setup": {str(r["id"]): ["none", []] for r in query.get("setup", [])},
        "code": dict.fromkeys(query.get("code", [])),
        "files": {p: "there" if host.files.get(p) else None for p in query.get("files", [])},
        "envs": {p: env(p) for p in query.get("envs", [])},
    }


def _facts() -> dict[str, object]:
    return {
        "schema": "ddops.facts/1", "at": 0, "collected_s": 0, "simulated": False,
        "identity": {"hostname": "box"}, "os": {"pretty": "x", "arch": "x86_64", "glibc": "2.36"},
        "python": {"version": "3.11.2", "venv": True}, "driver": None, "tools": {}, "unread": {},
        "disk": {"path": ENGINE, "exists": True, "writable": True, "free_bytes": 1 << 40},
        "gpus": [],
    }  # fmt: skip


def _look(spec: dict[str, dict[str, int]]) -> dict[str, object]:
    """What the board's script would say of a host on which nothing was ever served."""
    seen = {
        "schema": "ddops.observation/1", "at": 0, "current": None, "launch": None, "unit": None,
        "engine": {"state": "down", "why": "never launched here"}, "committed": None,
        "port": {"port": 30000, "listening": False, "owned": False, "owner": None},
        "log": {"size": 0, "inode": 0, "tail": ""},
    }  # fmt: skip
    return {
        "schema": "ddops.look/1", "at": 0, "provisioned": True, "load_1m": 0, "lock": None,
        "services": dict.fromkeys(spec["services"], seen), "gpus": {"rows": None, "why": "none"},
    }  # fmt: skip


class Box:
    """The host in memory: files, and the few programs of ours that run there."""

    def __init__(self) -> None:
        self.transport = FakeTransport("box")
        self.daemon = "down"
        self.transport.on(lambda c: c.argv[0] == "python3", self._python)
        self.transport.on("chmod", self._chmod)
        self.transport.on(lambda c: c.argv[:2] == ("sh", "-c"), self._sh)

    def _python(self, command: Cmd) -> Answer:
        argv, files = command.argv, self.transport.files
        if argv[1:] == ("-S", "-c", look_text()):
            return json.dumps(_state(self.transport, json.loads(command.stdin_bytes() or b"")))
        if command.stdin == source("collect").encode():
            return json.dumps(_facts())
        if command.stdin == LOOK:
            return json.dumps(_look(json.loads(argv[-1])))
        if argv[1:3] == ("-c", BUILD):
            spec = json.loads(argv[3])
            files.put(f"{spec['dir']}/env.json", json.dumps({"digest": spec["digest"]}).encode())
            return b"{}"
        if argv[3].endswith("svctl.py"):
            if argv[6] == "ensure":
                self.daemon = "up"
            return json.dumps({"daemon": self.daemon, "started": True, "state": None})
        if argv[3].endswith("observe.py"):
            missing = f"python3: can't open file '{argv[3]}': No such file or directory"
            return Result(2, b"", missing.encode(), 0.0)
        return self._files(command, Result(127, b"", b"", 0.0))

    def _files(self, command: Cmd, otherwise: Answer) -> Answer:
        try:
            answer = self.transport.files.answer(command)
        except FakeError as error:
            return Result(error.rc, b"", f"{error.stderr}\n".encode(), 0.0)
        return answer if answer is not None else otherwise

    def _chmod(self, command: Cmd) -> Answer:
        files, (_, mode, path) = self.transport.files, command.argv
        node = files.nodes[path]
        files.nodes[path] = type(node)(stat.S_IFMT(node.mode) | int(mode, 8), node.data)
        return b""

    def _sh(self, command: Cmd) -> Answer:
        script = command.argv[2]
        if script == deploy_host._LINKS:
            return b"\n\n"
        if script == lock._READ:
            return Result(3, b"", b"", 0.0)
        return self._files(command, b"")


Drive = Callable[..., int]


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def drive(
    project: Path,
    box: Box,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Drive:
    """Run a command line in the project, against the host in memory."""
    monkeypatch.setattr(App, "transport", lambda _self, _host: box.transport)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)

    def go(*argv: str) -> int:
        box.transport.calls.clear()
        return root_module.run(["--project", str(project), *argv])

    return go


def _all(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


LOOKING = [
    ("provision", "box", "--dry-run"),
    ("provision", "box", "--dry-run", "--diff"),
    ("provision", "box", "--dry-run", "--json"),
    ("deploy", "box", "--dry-run"),
    ("deploy", "box", "--dry-run", "--json"),
    ("check", "box"),
    ("status", "box"),
    ("lock", "status", "box"),
    ("host", "list"),
    ("config", "show", "--origin"),
    ("config", "paths"),
    ("runbook", "run", "new-host", "--host", "box", "--dry-run"),
    ("runbook", "run", "new-host", "--host", "box", "--dry-run", "--json"),
    ("runbook", "run", "upgrade-sglang", "--host", "box", "--dry-run"),
    ("runbook", "list"),
    ("runbook", "show", "new-host"),
    ("task", "list"),
]
#: What is answered from files here, no host being asked.
LOCAL = (("host", "list"), ("config", "show"), ("config", "paths"), ("runbook", "list"),
         ("runbook", "show"), ("task", "list"))  # fmt: skip


@pytest.mark.parametrize("prepared", [False, True], ids=["bare", "provisioned"])
@pytest.mark.parametrize("argv", LOOKING, ids=" ".join)
def test_looking_changes_nothing(
    argv: tuple[str, ...], prepared: bool, drive: Drive, box: Box, tmp_path: Path
) -> None:
    if prepared:
        provision(drive)
    here, there = _all(tmp_path), dict(box.transport.files.nodes)
    assert drive(*argv) == 0
    sent = box.transport.calls
    assert not [str(c) for c in sent if not reads_only(c)]
    assert bool(sent) is (argv[:2] not in LOCAL)
    assert box.transport.files.nodes == there
    assert _all(tmp_path) == here


@pytest.mark.parametrize("prepared", [False, True], ids=["bare", "provisioned"])
def test_a_probe_writes_in_the_ledger_alone(
    prepared: bool, drive: Drive, box: Box, tmp_path: Path
) -> None:
    if prepared:
        provision(drive)
    here, there = _all(tmp_path), dict(box.transport.files.nodes)
    assert drive("probe", "box") == 0
    sent = box.transport.calls
    assert sent
    assert not [str(c) for c in sent if not reads_only(c)]
    assert box.transport.files.nodes == there
    changed = {p for p, data in _all(tmp_path).items() if here.get(p) != data}
    assert changed
    assert {Path(p).name.split("-")[0] for p in changed} <= {".ddops", "ledger.db", ".gitignore"}


def provision(drive: Drive) -> None:
    assert drive("provision", "box", "--yes") == 0


def test_the_same_plan_applied_does_change_things(drive: Drive, box: Box) -> None:
    """So that the tests above watch commands that could have changed something."""
    provision(drive)
    assert [c for c in box.transport.calls if not reads_only(c)]
    assert box.daemon == "up"
    assert drive("provision", "box", "--dry-run", "--exit-code") == 0, "nothing is left to do"


def test_pending_changes_are_told_by_exit_code_only_when_asked(drive: Drive) -> None:
    assert drive("provision", "box", "--dry-run") == 0
    assert drive("provision", "box", "--dry-run", "--exit-code") == 8


def test_a_host_that_does_not_answer_is_unknown_and_no_failure(
    drive: Drive, box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    box.transport.unreachable()
    assert drive("deploy", "box", "--dry-run") == 0
    assert "UNKNOWN: box: cannot connect" in capsys.readouterr().out
    assert drive("provision", "box", "--dry-run") == 0
    assert "? folders" in capsys.readouterr().out
    assert drive("runbook", "run", "new-host", "--host", "box", "--dry-run") == 0
    assert "would stop: require is not known" in capsys.readouterr().out
