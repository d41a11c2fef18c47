"""A project whose lab hosts boot, and such a host as its own files and processes show it.

The machine sees a host's files through the holder's root folder, and its processes under numbers
of its own: what a host calls pid 40 is translated before anybody sends it a signal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ddops.lab.boot import ask
from ddops.lab.cgroups import cgroup_roots, group_name
from ddops.layout import HostLayout, ServiceLayout
from tests.lab.harness import SERVICE, HostView, Project
from tests.lab.looking import below, until

ENGINE_DIR = "/opt/ddops"
UNIT = f"ddops-{SERVICE}.service"
_GET = (
    "import http.client, sys\n"
    "c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=float(sys.argv[3]))\n"
    "h = {'Authorization': 'Bearer ' + sys.argv[4]} if sys.argv[4] else {}\n"
    "c.request('GET', sys.argv[2], headers=h); r = c.getresponse()\n"
    "sys.stdout.write(r.read().decode()); sys.exit(r.status != 200)\n"
)


WHEEL = "labnote-1.0-py3-none-any.whl"


def make_wheel(folder: Path) -> None:
    """The smallest wheel that pip installs: one module."""
    meta = "labnote-1.0.dist-info"
    files = {
        "labnote.py": "said = 'from the wheelhouse'\n",
        f"{meta}/METADATA": "Metadata-Version: 2.1\nName: labnote\nVersion: 1.0\n",
        f"{meta}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{meta}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{meta}/RECORD"])
    with zipfile.ZipFile(folder / WHEEL, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)


@dataclass
class BootedProject(Project):
    """`Project`, with hosts that boot, and no place for snapshots."""

    keeps: ClassVar[bool] = False

    def up(self, *more: str) -> None:
        """The first one on a machine builds the root filesystem too."""
        run = self.spawn("lab", "up", "--systemd", *more)
        try:
            done = run.end(400)
        except BaseException:  # Ctrl-C of a whole test run: nobody would take down what comes up
            run.kill()
            raise
        assert done.rc == 0, done

    def host(self, name: str) -> BootedHost:
        port = next(h.service_port for h in self.state.hosts if h.name == name)
        return BootedHost(self, name, port)

    def sh(self, host: str, *words: str, check: bool = True) -> str:
        """Run a command on the host, as its login would, whatever ails the host's line."""
        done = self.host(host).enter(*words)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def seen(self) -> Mapping[str, Mapping[str, object]]:
        """What the holder says of its hosts."""
        hosts = ask(self.lab, {"do": "status"})["hosts"]
        assert isinstance(hosts, dict)
        return hosts

    def holders(self) -> dict[str, int]:
        """`outer`: unshare, in the machine's own namespaces; `inner`: the first process inside."""
        out = {}
        for pid in _pids():
            line = text_of(f"/proc/{pid}/cmdline").split("\0")
            if "ddops.lab.holder" in line and str(self.lab.dir / "holder.json") in line:
                out["inner" if _inside_number(pid) == 1 else "outer"] = pid
        return out


@dataclass(frozen=True)
class BootedHost(HostView):
    """Paths are of this machine, through the holder; `inside` names them as the host does."""

    project: BootedProject

    @property
    def root(self) -> Path:
        holder = self.project.holders()["inner"]
        return Path(f"/proc/{holder}/root{self.project.lab.host(self.name)}/root")

    @property
    def layout(self) -> HostLayout:
        return HostLayout(f"{self.root}{ENGINE_DIR}")

    @property
    def inside(self) -> ServiceLayout:
        return HostLayout(ENGINE_DIR).service(SERVICE)

    def fault(self, **faults: object) -> None:
        path = self.root / "home/ops/.ddops-sim.json"
        if not faults:
            path.unlink(missing_ok=True)
            return
        temp = path.with_suffix(".partial")
        temp.write_text(json.dumps(faults))
        temp.chmod(0o644)
        temp.replace(path)

    def launch(self) -> dict[str, object] | None:
        """The record of the last start; its `pid` is the machine's, or None when it is gone."""
        raw = super().launch()
        return raw and {**raw, "pid": self.outer(int(str(raw["pid"]))), "inside": raw["pid"]}

    def enter(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the host's namespaces as its login; 255 while the host is not up."""
        first = self.outer(1)
        if first is None:
            return subprocess.CompletedProcess(words, 255, "", "the host is not up")
        env = ["env", "-i", "-C", "/", "HOME=/home/ops", "USER=ops", "LANG=C.UTF-8",
               "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]  # fmt: skip
        inside = ["nsenter", f"--target={first}", "--all", "--setuid=1000",
                  "--setgid=1000", *env, *words]  # fmt: skip
        return subprocess.run(
            inside, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    def outer(self, number: int) -> int | None:
        """The machine's number of a process that the host calls `number`."""
        return next((p for p in self.processes() if _inside_number(p) == number), None)

    def processes(self) -> list[int]:
        """All processes of the host, by the machine's numbers."""
        top = cgroup_roots()[0] / group_name(self.project.lab.dir) / self.name
        # Asked from outside, a group of the host shows the machine's numbers.
        found = [text_of(p).split() for p in below(top) if p.name == "cgroup.procs"]
        return [int(pid) for pids in found for pid in pids if pid != "0"]

    def pids(self) -> list[int]:
        want = f"DDOPS_SERVICE={self.inside.dir}"
        return [p for p in self.processes() if want in text_of(f"/proc/{p}/environ").split("\0")]

    def get(self, path: str, timeout_s: float = 5.0, key: str = "") -> dict[str, object] | None:
        words = ["python3", "-c", _GET, str(self.port), path, str(timeout_s), key]
        done = self.enter(*words)
        if done.returncode:
            return None
        value: dict[str, object] = json.loads(done.stdout or "{}")
        return value

    def svctl(self, *words: str) -> dict[str, object]:
        layout = HostLayout(ENGINE_DIR)
        text = self.project.sh(
            self.name, "python3", f"{layout.hostside}/unitctl.py", layout.state, *words
        )
        value: dict[str, object] = json.loads(text)
        assert "error" not in value, value
        return value

    def forget(self) -> None:
        self.fault()
        self.svctl("forget", SERVICE)
        self.project.sh(self.name, "rm", "-rf", self.inside.dir)
        assert not self.pids()

    def unit(self, *names: str) -> dict[str, str]:
        """Properties of the service's unit."""
        words = ["systemctl", "show", f"--property={','.join(names)}", UNIT]
        lines = self.project.sh(self.name, *words).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def drop_in(self, text: str) -> None:
        """Settings of the unit for one test; an empty text removes them."""
        folder = self.root / f"etc/systemd/system/{UNIT}.d"
        if text:
            folder.mkdir(exist_ok=True)
            (folder / "test.conf").write_text(f"[Service]\n{text}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        self.project.sh(self.name, "sudo", "systemctl", "daemon-reload")

    def boot_id(self) -> str:
        return self.project.sh(self.name, "cat", "/proc/sys/kernel/random/boot_id", check=False)

    def wait_up(self) -> None:
        """Until systemd has started all that it starts at boot."""
        words = ("systemctl", "is-system-running", "--wait")
        until(lambda: self.enter(*words).stdout.strip() == "running",
              limit_s=60, what=f"{self.name} running")  # fmt: skip


def _pids() -> list[int]:
    return [int(n) for n in os.listdir("/proc") if n.isdigit()]


def text_of(path: str | Path) -> str:
    """A file of the kernel's; empty when what it speaks of has gone."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _inside_number(pid: int) -> int | None:
    """The innermost number of a process, from its own pid namespace."""
    for line in text_of(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return None


@dataclass(frozen=True)
class Machine:
    """What a lab could leave behind on the machine; `lab` is known while it is up."""

    mounts: frozenset[str]
    interfaces: frozenset[str]
    groups: frozenset[str]
    files: frozenset[str]


def machine(project: BootedProject) -> Machine:
    ip = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True)
    groups = (str(p) for root in cgroup_roots() for p in root.glob(group_name(project.lab.dir)))
    places = ("/run/systemd/nspawn", "/run/netns", "/run/ddops", "/var/lib/machines")
    files = [str(p) for place in places for p in below(Path(place))]
    files += [str(p) for p in Path("/tmp").glob("nspawn-*")]
    return Machine(
        frozenset(line.split(" ", 3)[3] for line in
                  Path("/proc/self/mountinfo").read_text().splitlines()),
        frozenset(line.split()[0] for line in ip.stdout.splitlines()),
        frozenset(groups),
        frozenset(files),
    )  # fmt: skip


def within(project: BootedProject) -> tuple[set[tuple[int, str]], set[str]]:
    """The lab's processes with their start ticks, and the namespaces that only they live in."""
    ours = {str(Path(f"/proc/self/ns/{n}").readlink()) for n in NAMESPACES}
    pids = {*project.holders().values()}
    for host in project.state.hosts:
        pids |= set(project.host(host.name).processes())
    spaces = {space for pid in pids for space in namespaces(pid)} - ours
    return {(pid, ticks(pid)) for pid in pids}, spaces


NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup")


def namespaces(pid: int) -> set[str]:
    out = set()
    for name in NAMESPACES:
        try:
            out.add(str(Path(f"/proc/{pid}/ns/{name}").readlink()))
        except OSError:
            continue  # gone
    return out


def ticks(pid: int) -> str:
    """When a process started: a number used again is another process. Empty: gone or a zombie."""
    words = text_of(f"/proc/{pid}/stat").rpartition(") ")[2].split()
    return words[19] if words and words[0] not in "ZX" else ""


def still_there(processes: set[tuple[int, str]], spaces: set[str]) -> dict[str, object]:
    """What of a lab is left: its processes, and any process in a namespace of its own.

    One that has ended and waits to be collected by the machine's init is not left.
    """
    inside = {f"{pid} {text_of(f'/proc/{pid}/cmdline')[:80]} {space}"
              for pid in _pids() for space in namespaces(pid) & spaces if ticks(pid)}  # fmt: skip
    return {
        "processes": [p for p, t in processes if t and ticks(p) == t],
        "namespaces": sorted(inside),
    }
