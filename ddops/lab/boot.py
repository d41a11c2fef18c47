"""Starts the holder of a systemd lab, talks to it, ends it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import ddops
from ddops.errors import CommandFailed, DdopsError
from ddops.lab import cgroups
from ddops.lab.host import keygen
from ddops.lab.needs import PATH, UNSHARE
from ddops.lab.processes import TAG, end_at_once, kill_and_wait, lab_processes, wait_gone
from ddops.lab.spec import LabHost, LabPaths, LabSpec

_MODULE = "ddops.lab.holder"
_START_S, _SSH_S, _ANSWER_S, _UNSHARE_S = 60.0, 60.0, 60.0, 2.0
_READY = b"ready\n"


def boot(paths: LabPaths, spec: LabSpec, hosts: Sequence[LabHost], rootfs: Path) -> BootedLab:
    """Start all hosts; returns at once. The caller waits with `BootedLab.wait`."""
    for host in hosts:
        paths.host(host.name).mkdir(parents=True, mode=0o700)
        keygen(paths.host(host.name) / "hostkey", f"lab host {host.name}")
    sockets = {host.name: _listen(host) for host in hosts}
    sockets[""] = _control(paths)
    plan = {
        "dir": str(paths.dir),
        "group": cgroups.group_name(paths.dir),
        "rootfs": str(rootfs),
        "wheelhouse": spec.wheelhouse,
        "hosts": [h.name for h in hosts],
        "fds": {name: s.fileno() for name, s in sockets.items()},
    }
    file = paths.dir / "holder.json"
    file.write_text(json.dumps(plan))
    with (paths.dir / "holder.log").open("wb") as log:
        process = subprocess.Popen(
            [*UNSHARE, sys.executable, "-m", _MODULE, str(file)],
            stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            pass_fds=[s.fileno() for s in sockets.values()],
            env={"PATH": PATH, TAG: str(paths.dir), "LANG": "C.UTF-8",
                 "PYTHONPATH": str(Path(ddops.__file__).resolve().parents[1])},
        )  # fmt: skip
    for s in sockets.values():
        s.close()
    return BootedLab(paths, process)


class BootedLab:
    """A lab between its start and being ready."""

    def __init__(self, paths: LabPaths, process: subprocess.Popen[bytes]) -> None:
        self._paths = paths
        self._process = process

    def wait(self, hosts: Sequence[LabHost]) -> None:
        """Until the strict SSH client of the lab logs in on every host; then the lab may stay."""
        ask(self._paths, {"do": "status"}, limit_s=_START_S, alive=self._alive)
        end = time.monotonic() + _SSH_S
        for host in hosts:
            while (said := _login(self._paths, host)) is not None:
                self._alive()
                if time.monotonic() > end:
                    raise DdopsError(
                        f"lab host {host.name} booted, and does not let us in",
                        why=said,
                        next=f"see {self._paths.host(host.name)}/console.log",
                    )
                time.sleep(0.05)
        assert self._process.stdin is not None  # noqa: S101 - PIPE above
        self._process.stdin.write(_READY)
        self._process.stdin.close()

    def _alive(self) -> None:
        if self._process.poll() is not None:
            log = (self._paths.dir / "holder.log").read_text(errors="replace")
            raise CommandFailed(
                "the lab did not start", rc=self._process.returncode, why=log.strip()[-1500:],
                next="ddops lab down, then again",
            )  # fmt: skip


def ask(
    paths: LabPaths, request: Mapping[str, object], *, limit_s: float = _ANSWER_S,
    alive: Callable[[], None] = lambda: None,
) -> dict[str, object]:  # fmt: skip
    """One request to the holder, and its answer. A holder that starts answers when it is up.

    `alive` is called while waiting, and raises when there is nobody to wait for.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s, _short(paths.dir) as folder:
        s.settimeout(0.5)
        try:
            s.connect(f"{folder}/control.sock")
            s.sendall(json.dumps(dict(request)).encode() + b"\n")
            data, end = b"", time.monotonic() + limit_s
            while not data.endswith(b"\n"):
                alive()
                try:
                    data += (part := s.recv(1 << 16))
                except TimeoutError:
                    if time.monotonic() > end:
                        raise
                    continue
                if not part:
                    raise ConnectionError("it ended")
        except OSError as error:
            alive()
            raise DdopsError(
                "the lab does not answer", why=str(error), next="ddops lab down, then up again"
            ) from error
    answer: dict[str, object] = json.loads(data)
    if "error" in answer:
        raise DdopsError(f"the lab says: {answer['error']}", next=f"see {paths.dir}/holder.log")
    return answer


def end(paths: LabPaths) -> None:
    """End the holder, and with it all that it holds; then remove what namespaces do not take.

    `unshare` stands above the holder. It is killed last: it collects the holder, and goes.
    """

    def holders() -> list[int]:
        return [p for p in lab_processes(paths.dir) if _is_holder(p)]

    found = holders()
    for pid in found[1:]:
        kill_and_wait(pid)
    for pid in found[:1]:
        wait_gone(pid, _UNSHARE_S)
    end_at_once(holders)
    cgroups.remove(cgroups.group_name(paths.dir))


def _is_holder(pid: int) -> bool:
    try:
        return _MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _listen(host: LabHost) -> socket.socket:
    """On the machine's own loopback: the holder, in a network of its own, cannot."""
    listener = socket.create_server((host.address, host.ssh_port), backlog=128)
    listener.set_inheritable(True)
    return listener


def _control(paths: LabPaths) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(paths.dir) as folder:
        made.bind(f"{folder}/control.sock")
    (paths.dir / "control.sock").chmod(0o600)
    made.listen(16)
    made.set_inheritable(True)
    return made


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A short name of a folder: a socket's path may hold 107 bytes, a project's more."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _login(paths: LabPaths, host: LabHost) -> str | None:
    """What keeps us from logging in; None when nothing does."""
    words = ["ssh", "-F", str(paths.ssh_config), "-o", "ConnectTimeout=3", host.name, "true"]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=10, env={**os.environ, "PATH": PATH},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "no answer in 10 s"
    return None if done.returncode == 0 else done.stderr.strip()[-300:] or str(done.returncode)
