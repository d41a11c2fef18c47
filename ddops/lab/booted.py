"""One host of a systemd lab, seen from the holder: its disk, its processes, its link."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from ddops.lab import cgroups, netplan
from ddops.lab.faults import Fault
from ddops.lab.needs import PATH
from ddops.lab.relay import Delay

#: What a host may write in all, in memory: a full disk of a lab host fills nothing else.
DISK_MIB = 768
#: systemd-nspawn's own status for "the host asks to be booted again".
_AGAIN = 133
_LINK_S = 10.0
_OPS = 1000
WHEELHOUSE = "/opt/wheelhouse"


class LabCommandError(Exception):
    """A command of the holder failed; its text is for people."""


def run(*words: str, stdin: str | None = None, cwd: Path | None = None) -> None:
    done = subprocess.run(
        words, input=stdin, capture_output=True, text=True, check=False, cwd=cwd, timeout=30,
        env={"PATH": PATH},
    )  # fmt: skip
    if done.returncode:
        raise LabCommandError(f"{' '.join(words)}: {done.stderr.strip()[-400:]}")


@dataclass(slots=True)
class Booted:
    """`dir` lies on the machine; what is mounted below it is seen by the holder alone."""

    name: str
    index: int
    dir: Path
    group: str
    rootfs: str
    wheelhouse: str | None
    process: subprocess.Popen[bytes] | None = None
    boots: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    delay: Delay | None = None
    cut: bool = False

    @property
    def state(self) -> str:
        if self.process is None:
            return "off"
        return "frozen" if "freeze" in self.faults else "on"

    @property
    def _root(self) -> Path:
        return self.dir / "root"

    def mount(self) -> None:
        """An overlay of the root filesystem: the lower part is shared, the upper in memory."""
        for part in ("lower", "fs", "root"):
            (self.dir / part).mkdir()
        # Relative names: an option of the overlay cannot hold every path that a project may have.
        here = self.dir
        run("mount", "--bind", self.rootfs, "lower", cwd=here)
        run("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "tmpfs", "fs", cwd=here)
        for part in ("upper", "work"):
            (self.dir / "fs" / part).mkdir(mode=0o755)
        options = "lowerdir=lower,upperdir=fs/upper,workdir=fs/work"
        run("mount", "-t", "overlay", "-o", options, "overlay", "root", cwd=here)

    def seed(self, authorized: str) -> None:
        """What makes this host itself: name, address, machine id, host key, who may log in."""
        etc = self._root / "etc"
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        network = etc / "systemd/network/10-host0.network"
        network.write_text(
            f"[Match]\nName=host0\n[Network]\nAddress={netplan.address(self.index)}/24\n"
            "LinkLocalAddressing=no\nIPv6AcceptRA=no\n"
        )
        for suffix, mode in (("", 0o600), (".pub", 0o644)):
            key = etc / f"ssh/ssh_host_ed25519_key{suffix}"
            shutil.copyfile(self.dir / f"hostkey{suffix}", key)
            key.chmod(mode)
        keys = self._root / "home/ops/.ssh/authorized_keys"
        keys.write_text(authorized)
        keys.chmod(0o600)
        os.chown(keys, _OPS, _OPS)

    async def boot(self) -> None:
        """Switch it on. What ails its link is put on the new link too."""
        if self._has_link():  # of a boot that was cut; the kernel removes it some time
            run("ip", "link", "del", netplan.veth(self.name))
        paths = cgroups.make(self.group, self.name)
        bind = [f"--bind-ro={_escaped(self.wheelhouse)}:{WHEELHOUSE}"] if self.wheelhouse else []
        words = [
            "systemd-nspawn", "--quiet", "--boot", f"--directory={self._root}",
            f"--machine={self.name}", f"--hostname={self.name}", "--register=no", "--keep-unit",
            f"--network-bridge={netplan.BRIDGE}", "--settings=no", "--link-journal=no",
            "--resolv-conf=off", "--timezone=off", "--console=pipe", *bind,
        ]  # fmt: skip
        with (self.dir / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                preexec_fn=lambda: cgroups.enter(paths),
                # Else hosts of a machine with cgroup version 1 get that, and their systemd too.
                env={"PATH": PATH, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                     "SYSTEMD_NSPAWN_LOCK": "0"},
            )  # fmt: skip
        self.boots += 1
        await self._link()
        if self.delay is not None:
            run(*netplan.through_taps(self.name))
        for kind in ("netrate", "netdown"):
            if kind in self.faults:
                self._on_link(self.faults[kind])

    def ended(self) -> bool:
        """Its systemd-nspawn has ended; True when it shall be booted again."""
        if self.process is None or self.process.poll() is None:
            return False
        again = self.cut or self.process.returncode == _AGAIN
        self.process, self.cut = None, False
        return again

    def power_cycle(self) -> None:
        """Cut the power. `ended` tells when it is off, and asks for the next boot."""
        self.faults.pop("freeze", None)
        if self.process is not None:
            self.cut = True
            cgroups.kill(self.group, self.name)

    def power_off(self) -> None:
        if self.process is not None:
            cgroups.kill(self.group, self.name)
            self.process.wait(30)
            self.process = None

    def fault(self, fault: Fault) -> None:
        """Make it happen; a second one of a kind replaces the first."""
        if fault.kind == "diskfull":
            self._ballast()
        elif fault.kind == "freeze":
            cgroups.freeze(self.group, self.name, True)
        elif fault.kind in ("netdown", "netrate", "netdelay"):
            self._on_link(fault)
        self.faults[fault.kind] = fault

    def heal(self) -> None:
        """Undo every fault but a reboot; a host that is off stays off."""
        faults, self.faults = self.faults, {}
        if "diskfull" in faults:
            self._ballast_file.unlink()
        if self.process is None:
            return
        if "freeze" in faults:
            cgroups.freeze(self.group, self.name, False)
        for words in self._link_undone(faults):
            run(*words)
        if self.delay is not None:
            self.delay.close()
            self.delay = None

    def _link_undone(self, faults: dict[str, Fault]) -> list[netplan.Argv]:
        out: list[netplan.Argv] = []
        if "netdown" in faults:
            out += netplan.link(self.name, up=True)
        if "netrate" in faults:
            out += netplan.rate(self.name, self._inside(), None)
        if "netdelay" in faults:
            out += netplan.straight(self.name)
        return out

    def _on_link(self, fault: Fault) -> None:
        if fault.kind == "netdown":
            plan = netplan.link(self.name, up=False)
        elif fault.kind == "netrate":
            plan = netplan.rate(self.name, self._inside(), fault.amount)
        elif self.delay is not None:
            self.delay.ms = fault.amount
            return
        else:
            self.delay = Delay(*netplan.taps(self.name), fault.amount)
            plan = [*netplan.delayed(self.name), netplan.through_taps(self.name)]
        for words in plan:
            run(*words)

    @property
    def _ballast_file(self) -> Path:
        return self.dir / "fs" / "ballast"

    def _ballast(self) -> None:
        """Fill what is left of the host's disk, to the last block."""
        with self._ballast_file.open("ab") as f:
            free = os.statvfs(self.dir / "fs")
            if free.f_bavail:
                os.posix_fallocate(f.fileno(), f.tell(), free.f_bavail * free.f_frsize)

    def _has_link(self) -> bool:
        return any(name == netplan.veth(self.name) for _, name in socket.if_nameindex())

    def _joined(self) -> bool:
        """systemd-nspawn is done with the link: up, and a port of the bridge."""
        words = ("ip", "-o", "link", "show", "dev", netplan.veth(self.name), "up")
        seen = subprocess.run(words, capture_output=True, check=False, env={"PATH": PATH})
        return f" master {netplan.BRIDGE} ".encode() in seen.stdout

    async def _link(self) -> None:
        end = time.monotonic() + _LINK_S
        while time.monotonic() < end and self.process and self.process.poll() is None:
            if self._has_link() and self._joined():
                return
            await asyncio.sleep(0.02)
        raise LabCommandError(f"{self.name} does not boot: see {self.dir}/console.log")

    def _inside(self) -> int:
        """A process of the host, as the holder counts them: systemd-nspawn's only child."""
        pid = self.process.pid if self.process else 0
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            raise LabCommandError(f"{self.name} has not booted")
        return int(children[0])


def _escaped(path: str | None) -> str:
    return (path or "").replace("\\", "\\\\").replace(":", "\\:")
