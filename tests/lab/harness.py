"""A project with a lab of `sim` hosts, driven through the real command line."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ddops.command import Redactor
from ddops.lab import LabPaths, LabState
from ddops.layout import HostLayout, ServiceLayout
from ddops.ledger import Deployment, Ledger, Transition
from tests.lab.looking import tagged

ROOT = Path(__file__).resolve().parents[2]
SERVICE = "tiny"
GOLDEN = {
    "schema": "ddops.golden/1",
    "prompts": [
        {"id": "a", "input_ids": [1, 2, 3, 4], "output_ids": [5, 6, 7, 8, 9, 10, 11, 12]},
        {"id": "b", "input_ids": [9, 8, 7], "output_ids": [15, 16, 17, 18, 19, 20]},
    ],
}
SETTINGS = "[settings]\nload_budget_s = 20\nready_quiet_s = 0.2\nkeep_releases = 3\n"
#: Bounds every command of a test; the tier's own limit is far below their sum.
LIMIT_S = 150.0


@dataclass(frozen=True)
class Done:
    """What a command line answered."""

    rc: int
    out: str
    err: str

    @property
    def json(self) -> object:
        document = json.loads(self.out)
        return document["data"]

    def __str__(self) -> str:
        return f"exit {self.rc}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@dataclass
class Project:
    """A project folder with models and profiles of its own, and no inventory of hosts."""

    root: Path
    settings: str = SETTINGS
    more_env: dict[str, str] = field(default_factory=dict)
    #: Whether its lab has a place that snapshots are copied to.
    keeps: ClassVar[bool] = True

    def make(self) -> Project:
        for folder in ("account", "tmp", "lab/models/tiny-qwen3", "lab/models/tiny-qwen3-dflash"):
            (self.root / folder).mkdir(parents=True)
        for model in ("tiny-qwen3", "tiny-qwen3-dflash"):
            self.write(f"lab/models/{model}/config.json", '{"vocab_size": 1024}\n')
        self.write("lab/models/golden.json", json.dumps(GOLDEN))
        self.write("ddops.toml", self.settings)
        return self

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def profile(self, name: str, sim: str = "", env: Mapping[str, str] | None = None) -> str:
        """A profile like the lab's own whose engine follows a script of faults."""
        text = (ROOT / "inventory/profiles/tiny-dflash.toml").read_text(encoding="utf-8")
        extra = {"DDOPS_SIM": sim, "VARIANT": name, **(env or {})}
        lines = "".join(f"{k} = {json.dumps(v)}\n" for k, v in extra.items())
        self.write(f"inventory/profiles/{name}.toml", text.replace("[env]\n", f"[env]\n{lines}"))
        return name

    def service(self, **changes: str) -> None:
        """The lab's service, with top-level keys set to the given TOML texts."""
        text = (ROOT / "inventory/services/tiny.toml").read_text(encoding="utf-8")
        for key, value in changes.items():
            kept = [line for line in text.splitlines() if not line.startswith(f"{key} =")]
            text = f"{key} = {value}\n" + "\n".join(kept) + "\n"
        self.write("inventory/services/tiny.toml", text)

    @property
    def lab(self) -> LabPaths:
        return LabPaths(self.root / ".ddops" / "lab")

    @property
    def state(self) -> LabState:
        return LabState.load(self.lab.state.read_text())

    def host(self, name: str) -> HostView:
        port = next(h.service_port for h in self.state.hosts if h.name == name)
        return HostView(self, name, port)

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.root / "account"),
            "TMPDIR": str(self.root / "tmp"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),  # this very tree, wherever it was checked out
            "COLUMNS": "200",
            **self.more_env,
            **(more or {}),
        }

    def spawn(self, *args: str, env: Mapping[str, str] | None = None) -> Running:
        made = subprocess.Popen(
            [sys.executable, "-m", "ddops", *args],
            cwd=self.root, env=self.env(env), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        return Running(made)

    def run(self, *args: str, env: Mapping[str, str] | None = None) -> Done:
        return self.spawn(*args, env=env).end()

    def ok(self, *args: str, env: Mapping[str, str] | None = None) -> Done:
        done = self.run(*args, env=env)
        assert done.rc == 0, f"ddops {' '.join(args)}: {done}"
        return done

    def ledger(self) -> Ledger:
        return Ledger.open(self.root / ".ddops" / "ledger.db", redactor=Redactor(), readonly=True)

    def ssh(self, host: str, *command: str) -> subprocess.CompletedProcess[str]:
        words = ["ssh", "-F", str(self.lab.ssh_config), host, *command]
        return subprocess.run(
            words, env=self.env(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip


@dataclass
class Running:
    """A command line at work. `end` bounds the wait and never leaves it behind."""

    process: subprocess.Popen[str]

    def end(self, limit_s: float = LIMIT_S) -> Done:
        try:
            out, err = self.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"no end within {limit_s:g} s\n{out}\n{err}") from None
        return Done(self.process.returncode, out, err)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class HostView:
    """A lab host as its own file system and process table show it, with no ddops between."""

    project: Project
    name: str
    port: int

    @property
    def dir(self) -> Path:
        return self.project.lab.host(self.name)

    @property
    def layout(self) -> HostLayout:
        return HostLayout(str(self.project.lab.engine_dir(self.name)))

    @property
    def service(self) -> ServiceLayout:
        return self.layout.service(SERVICE)

    def fault(self, **faults: object) -> None:
        """The script of the host's engines, read live; none without arguments."""
        path = self.dir / "home" / ".ddops-sim.json"
        if not faults:
            path.unlink(missing_ok=True)
            return
        temp = path.with_suffix(".partial")
        temp.write_text(json.dumps(faults))
        temp.replace(path)

    def link(self, name: str) -> str | None:
        path = Path(self.service.dir) / name
        return path.readlink().name if path.is_symlink() else None

    @property
    def current(self) -> str | None:
        return self.link("current")

    @property
    def committed(self) -> str | None:
        return self.link("committed")

    @property
    def locked(self) -> bool:
        return Path(self.layout.lock).exists()

    def launch(self) -> dict[str, object] | None:
        try:
            value: dict[str, object] = json.loads(Path(self.service.launch_record).read_text())
        except OSError:
            return None
        return value

    def pids(self) -> list[int]:
        """All processes that carry the service's tag: engines and whatever came of them."""
        return tagged(f"DDOPS_SERVICE={self.service.dir}")

    def get(self, path: str, timeout_s: float = 5.0, key: str = "") -> dict[str, object] | None:
        """What the engine answers; None when nothing does."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            client.request("GET", path, headers=headers)
            answer = client.getresponse()
            value: dict[str, object] = json.loads(answer.read() or b"{}")
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            client.close()
        return value if answer.status == 200 else None

    def serves(self) -> str | None:
        """Digest of the release whose start answers on the port, by its own word."""
        info, launch = self.get("/model_info"), self.launch()
        if info is None or launch is None or info["weight_version"] != launch["weight_version"]:
            return None
        return str(launch["release"])

    def svctl(self, *words: str) -> dict[str, object]:
        layout = self.layout
        command = ["python3", f"{layout.hostside}/svctl.py", layout.state, layout.socket, *words]
        done = self.project.ssh(self.name, *command)
        assert done.returncode == 0, done.stderr
        value: dict[str, object] = json.loads(done.stdout)
        return value

    def forget(self) -> None:
        """Back to a host that is provisioned and has never served."""
        self.fault()
        self.svctl("forget", SERVICE)
        done = self.project.ssh(self.name, "rm", "-rf", self.service.dir)
        assert done.returncode == 0, done.stderr
        assert not self.pids()

    def deployments(self) -> list[Deployment]:
        with self.project.ledger() as ledger:
            return ledger.deployments(host=self.name, limit=1000)

    def story(self) -> list[Transition]:
        """Transitions of the newest deployment."""
        with self.project.ledger() as ledger:
            newest = ledger.deployments(host=self.name, limit=1)
            return ledger.transitions(newest[0].op_id) if newest else []

    def states(self) -> dict[str, str]:
        return {t.state: t.verdict.value for t in self.story()}


@dataclass(frozen=True)
class Snapshot:
    """A command's answer and the host behind it, at one moment."""

    done: Done
    host: HostView
    current: str | None
    committed: str | None
    serves: str | None
    pids: tuple[int, ...]
    engine: object
    locked: bool
    states: Mapping[str, str]
    before: str | None = None

    @property
    def words(self) -> str:
        return self.done.err


def snapshot(done: Done, host: HostView, before: str | None = None) -> Snapshot:
    launch = host.launch() or {}
    return Snapshot(
        done, host, host.current, host.committed, host.serves(), tuple(host.pids()),
        launch.get("pid"), host.locked, host.states(), before,
    )  # fmt: skip


def together(running: Sequence[Running]) -> list[Done]:
    return [r.end() for r in running]
