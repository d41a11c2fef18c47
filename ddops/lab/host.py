"""Lays down one lab host: its keys, its sshd, its login wrapper, its empty home."""

from __future__ import annotations

import errno
import getpass
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from ddops.errors import DdopsError, RefusedError
from ddops.lab.processes import TAG
from ddops.lab.spec import LabHost, LabPaths, LabSpec
from ddops.render import Lookup, render

#: Below what systems hand out to clients (32768 and up).
_PORTS = range(20000, 32000)
#: What the host's package tools need of the machine's own settings; everything else is dropped.
_PASSED = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PASSED_ANY_CASE = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
_SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server",
                 "/usr/lib/ssh/sftp-server", "/usr/libexec/sftp-server")  # fmt: skip


def find_sshd() -> str:
    """The sshd to run, or one error with the one command to type."""
    for candidate in (shutil.which("sshd"), "/usr/sbin/sshd", "/usr/local/sbin/sshd"):
        if candidate and Path(candidate).exists():
            return candidate
    raise RefusedError(
        "the lab needs OpenSSH's server, and there is no sshd on this machine",
        why="lab hosts are real sshd processes on loopback",
        next="sudo apt-get install openssh-server   (or: make system, as root)",
    )


def free_ports(taken: Collection[int] = ()) -> tuple[int, int]:
    """Two neighbouring TCP ports that nobody listens on, and that no client is given by chance.

    The first, an even number, is for an sshd and the second for its host's service. The sshd holds
    its number as long as the lab is up, and so keeps the other one free from every other lab, until
    the service comes to use it. `taken` are ports of hosts to come.
    """
    for _ in range(200):
        port = _PORTS.start + 2 * secrets.randbelow(len(_PORTS) // 2)
        if port not in taken and _free(port) and _free(port + 1):
            return port, port + 1
    raise DdopsError("no two free ports that lie side by side", next="ss -ltn")


def _free(port: int) -> bool:
    """Whether nobody listens on the port, at whatever address: one number is one listener."""
    with socket.socket() as s:
        try:
            s.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def place(name: str, index: int, taken: Collection[int] = ()) -> LabHost:
    """Choose a loopback address of its own where the system has them, and ports (`free_ports`)."""
    address = f"127.0.{1 + index // 250}.{index % 250 + 1}"
    with socket.socket() as s:
        try:
            s.bind((address, 0))
        except OSError:
            address = "127.0.0.1"
    return LabHost(name, address, *free_ports(taken))


def make_host(paths: LabPaths, host: LabHost, spec: LabSpec, lookup: Lookup, cache: Path) -> None:
    """Write everything of one host below its own folder."""
    folder = paths.host(host.name)
    for part in ("home", "bin", "engine", "tmp"):
        (folder / part).mkdir(parents=True, mode=0o700)
    keygen(folder / "hostkey", f"lab host {host.name}")
    values = {
        "address": host.address,
        "port": host.ssh_port,
        "host_dir": str(folder),
        "lab_dir": str(paths.dir),
        "user": getpass.getuser(),
        "sftp_server": next((p for p in _SFTP_SERVERS if Path(p).exists()), "internal-sftp"),
    }
    (folder / "sshd_config").write_text(render(lookup, "lab/sshd_config.j2", values))
    for script in ("login", "enter"):
        target = folder / script
        target.write_text(render(lookup, f"lab/{script}.j2", values))
        target.chmod(0o700)
    recorded = None
    if spec.gpu != "cpu":
        recorded = lookup(f"lab/hosts/{spec.gpu}")
        shutil.copytree(recorded / "root", folder / "root")
        shutil.copy2(lookup("lab/hosts/bin/nvidia-smi"), folder / "bin" / "nvidia-smi")
        shutil.copy2(recorded / "nvidia-smi.json", folder / "nvidia-smi.json")
    environment = folder / "environment"
    environment.touch(mode=0o600)
    environment.write_text("".join(_environment(paths, folder, cache, recorded is not None)))


def _environment(paths: LabPaths, folder: Path, cache: Path, recorded: bool) -> Iterator[str]:
    base = Path(sys.base_prefix) / "bin"
    values = {
        "HOME": str(folder / "home"),
        "USER": getpass.getuser(),
        "LOGNAME": getpass.getuser(),
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TMPDIR": str(folder / "tmp"),
        "PATH": f"{folder / 'bin'}:{base}:/usr/local/bin:/usr/bin:/bin",
        TAG: str(paths.dir),
        "DDOPS_LAB_HOST": folder.name,
        "PIP_CACHE_DIR": str(cache / "pip"),
    }
    if recorded:
        values["DDOPS_RECORDED_SMI"] = str(folder / "nvidia-smi.json")
    for name, value in os.environ.items():
        passed = name in _PASSED or name.upper() in _PASSED_ANY_CASE or name.startswith("PIP_")
        if passed and name not in values:
            values[name] = value
    own = Path.home() / ".config" / "pip" / "pip.conf"
    if own.is_file():
        values.setdefault("PIP_CONFIG_FILE", str(own))
    for name, value in values.items():
        yield f"{name}={shlex.quote(value)}\n"


def keygen(path: Path, comment: str) -> None:
    """An ed25519 key pair without a passphrase, at `path` and `path.pub`."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )


def start_sshd(paths: LabPaths, host: LabHost, sshd: str) -> None:
    """Start the host's sshd; it puts itself in the background."""
    folder = paths.host(host.name)
    done = subprocess.run(
        [sshd, "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log")],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", TAG: str(paths.dir)},
        cwd=folder,
    )
    if done.returncode:
        raise DdopsError(
            f"sshd of lab host {host.name} did not start",
            why=(done.stderr.strip() or (folder / "sshd.log").read_text().strip())[-600:],
            next=f"{sshd} -t -f {folder / 'sshd_config'}",
        )
