"""Real OpenSSH servers on loopback, each with keys and configuration of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

SSHD = "/usr/sbin/sshd"


def missing_tools() -> str:
    """Why no server can be started here; empty when it can."""
    absent = [t for t in (SSHD, "ssh", "ssh-keygen") if shutil.which(t) is None]
    return f"needs {', '.join(absent)} (Debian: openssh-server, openssh-client)" if absent else ""


def keygen(path: Path, *options: str, kind: str = "ed25519") -> Path:
    """Make a key pair; its private half is at `path`."""
    words = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run([*words, *options], check=True)
    return path


def public(path: Path) -> tuple[str, str]:
    """Type and base64 of a key pair's public half."""
    kind, base64, *_ = path.with_name(f"{path.name}.pub").read_text().split()
    return kind, base64


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Sshd:
    """One server below `directory`. `extra` are further lines of its configuration."""

    directory: Path
    client_key: Path
    name: str = "host"
    extra: str = ""
    key_kind: str = "ed25519"
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def host_key(self) -> Path:
        return self.directory / "hostkey"

    def known_hosts_line(self) -> str:
        return f"[127.0.0.1]:{self.port} {' '.join(public(self.host_key))}"

    def start(self) -> Sshd:
        home = self.directory / "home"
        home.mkdir(parents=True, exist_ok=True)
        if not self.host_key.exists():
            keygen(self.host_key, kind=self.key_kind)
        allowed = self.directory / "authorized_keys"
        allowed.write_text(" ".join(public(self.client_key)) + "\n")
        config = self.directory / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {self.host_key}\n"
            f"PidFile none\nAuthorizedKeysFile {allowed}\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUseDNS no\n"
            "PermitRootLogin prohibit-password\nMaxStartups 100:30:200\n"
            f"LogLevel VERBOSE\n{self.extra}\n"
            # The account's own start-up files have no part in a test.
            f"SetEnv HOME={home}\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        log = (self.directory / "sshd.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log
            )
        self._wait()
        return self

    def _wait(self) -> None:
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.01)
        raise RuntimeError((self.directory / "sshd.log").read_text())

    def sessions(self) -> list[int]:
        """Process ids of the server's own connections, not of the commands they run."""
        found, parents = [], [self.process.pid if self.process else 0]
        table = [_stat(p) for p in Path("/proc").iterdir() if p.name.isdigit()]
        while parents:
            parent = parents.pop()
            for pid, name, ppid in table:
                if ppid == parent and name.startswith("sshd"):
                    found.append(pid)
                    parents.append(pid)
        return found

    def signal_sessions(self, number: signal.Signals) -> list[int]:
        pids = self.sessions()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def stop(self) -> None:
        if self.process is not None:
            pids = self.sessions()
            for pid in (*pids, self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(10)
            self.process = None


def _stat(entry: Path) -> tuple[int, str, int]:
    """Process id, name and parent; zeros for one that has just gone."""
    try:
        text = (entry / "stat").read_text()
    except OSError:
        return 0, "", 0
    name, _, rest = text.partition("(")[2].rpartition(")")
    return int(entry.name), name, int(rest.split()[1])


def write_config(path: Path, known_hosts: Path, key: Path, *hosts: str) -> Path:
    """A client configuration: `hosts` are whole `Host` blocks, the rest holds for all of them."""
    path.write_text(
        "\n".join(hosts)
        + f"\nHost *\n  IdentityFile {key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        f"  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile none\n"
    )
    return path


def host_block(alias: str, port: int, *lines: str) -> str:
    more = "".join(f"  {line}\n" for line in lines)
    return f"Host {alias}\n  HostName 127.0.0.1\n  Port {port}\n{more}"
