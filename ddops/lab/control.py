"""Brings a lab up and takes it down. A lab that crashed is cleaned by the next `up`."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ddops.config.files import read_text, writing
from ddops.errors import DdopsError, LockHeldError, RefusedError, UsageError
from ddops.events import Event, Reporter
from ddops.lab import boot, hold, needs, netplan, rootfs, slurm
from ddops.lab.backup import place_backup, write_backup
from ddops.lab.booted import WHEELHOUSE
from ddops.lab.faults import Fault
from ddops.lab.host import find_sshd, keygen, make_host, place, start_sshd
from ddops.lab.processes import end_all, lab_processes, with_descendants
from ddops.lab.spec import LabHost, LabPaths, LabSpec, LabState
from ddops.layout import HostLayout
from ddops.render import Lookup

#: Answers that the stand-in engine replays on recorded GPU hosts.
SIM_GOLDEN = "lab/hosts/golden.json"
#: Engines stop within their own grace; what takes longer is killed.
STOP_GRACE_S = 45.0


@dataclass(frozen=True, slots=True)
class Lab:
    """One project's lab. `taken` are names the project's own inventory defines."""

    paths: LabPaths
    lookup: Lookup
    cache: Path
    report: Reporter

    def up(self, spec: LabSpec, taken: frozenset[str] = frozenset()) -> tuple[LabState, bool]:
        """Start the lab; returns its state and whether anything was started."""
        with self._locked():
            old = self.state()
            if old is not None and old.ready and self._alive(old):
                if old.spec == spec:
                    return old, False
                raise RefusedError(
                    f"a lab of another shape is up: {old.spec.hosts} x {old.spec.gpu},"
                    f" engine {old.spec.engine}{', systemd' if old.spec.systemd else ''}",
                    next="ddops lab down",
                )
            clash = sorted(taken & {*spec.names(), "lab"})
            if clash:
                raise RefusedError(
                    f"the project's own inventory defines {', '.join(clash)}",
                    why="a lab host must never stand in for a host you own",
                    next="rename it in inventory/hosts.toml, or use a project of its own",
                )
            if self.paths.dir.exists():
                self._say("a lab that did not end well is in the way; cleaning it")
                self._clean(old)
            start = self._ready_to(spec)
            try:
                return start(), True
            except BaseException:
                self._clean(self.state())
                raise

    def down(self) -> bool:
        """Stop everything of the lab and remove it; False when there was none."""
        with self._locked() as lock:
            there = self.paths.dir.exists()
            if there:
                self._clean(self.state())
            lock.unlink()  # nobody waits for it: a second command is told, not queued
            return there

    def fault(self, name: str, fault: Fault) -> None:
        """Make something go wrong with one host; it stays so until `heal`."""
        state = self._one(name)
        if state.spec.systemd:
            request = {"do": "fault", "host": name, "kind": fault.kind, "amount": fault.amount}
            boot.ask(self.paths, request)
        else:
            hold.fault(self.paths, name, fault)

    def heal(self, name: str) -> None:
        """Undo the host's faults; a host that is off is switched on."""
        state = self._one(name)
        if state.spec.systemd:
            boot.ask(self.paths, {"do": "heal", "host": name})
        else:
            hold.heal(self.paths, name)

    def seen(self, state: LabState) -> dict[str, tuple[str, str]]:
        """Each host's state and faults, as the lab sees them."""
        if not state.spec.systemd:
            return {h.name: (hold.seen(self.paths, h.name), "") for h in state.hosts}
        hosts = boot.ask(self.paths, {"do": "status"})["hosts"]
        assert isinstance(hosts, dict)  # noqa: S101 - the holder's answer
        return {n: (h["state"], ", ".join(h["faults"])) for n, h in hosts.items()}

    def _one(self, name: str) -> LabState:
        state = self.state()
        if state is None or not state.ready:
            raise RefusedError("no lab is up", next="ddops lab up --systemd")
        if name not in {h.name for h in state.hosts}:
            names = ", ".join(h.name for h in state.hosts)
            raise UsageError(f"the lab has no host {name}", next=f"one of: {names}")
        return state

    def state(self) -> LabState | None:
        try:
            return LabState.load(self.paths.state.read_text())
        except (OSError, ValueError, KeyError, TypeError, DdopsError):
            return None  # none, or half written by one that crashed: cleaned all the same

    def _ready_to(self, spec: LabSpec) -> Callable[[], LabState]:
        """Look for all that a start needs, and make what is only made once."""
        self.cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        if spec.systemd:
            needs.require(spec.hosts, spec.wheelhouse)
            folder = rootfs.ensure(self.cache, self.lookup, self._say)
            return lambda: self._boot(spec, folder)
        if spec.slurm:
            slurm.require()
        sshd = find_sshd()
        return lambda: self._start(spec, sshd)

    def _lay_down(self, spec: LabSpec, made: tuple[str, ...], *, backup: bool = False) -> LabState:
        """The lab's folder, with what is known before anything runs."""
        self.paths.dir.mkdir(parents=True, mode=0o700)
        hosts = _placed(spec)
        place_of = place_backup(hosts) if backup else None
        state = LabState(spec, hosts, ready=False, made=made, backup=place_of)
        self._write(state)
        keygen(self.paths.key, "lab login")
        shutil.copy2(f"{self.paths.key}.pub", self.paths.dir / "authorized_keys")
        return state

    def _boot(self, spec: LabSpec, folder: Path) -> LabState:
        state = self._lay_down(spec, ())
        lab = boot.boot(self.paths, spec, state.hosts, folder)
        self._write_ssh(state.hosts, "ops")
        self._write_inventory(spec, state.hosts)
        lab.wait(state.hosts)
        state = replace(state, ready=True)
        self._write(state)
        return state

    def _start(self, spec: LabSpec, sshd: str) -> LabState:
        state = self._lay_down(spec, _privsep_dir(), backup=True)
        for host in state.all_hosts:
            make_host(self.paths, host, spec, self.lookup, self.cache)
            if spec.slurm and host in state.hosts:
                slurm.begin(self.paths, spec, host, sshd)
            else:
                start_sshd(self.paths, host, sshd)
        for host in state.all_hosts:
            _wait_listening(host)
        self._write_ssh(state.all_hosts)
        if state.backup is not None:
            write_backup(self.paths, state.backup)
        self._write_inventory(spec, state.hosts)
        state = replace(state, ready=True)
        self._write(state)
        return state

    def _write(self, state: LabState) -> None:
        temp = self.paths.state.with_suffix(".partial")
        temp.write_text(state.dump())
        temp.replace(self.paths.state)

    def _write_ssh(self, hosts: tuple[LabHost, ...], user: str | None = None) -> None:
        known, config = [], []
        for h in hosts:
            kind, key = (self.paths.host(h.name) / "hostkey.pub").read_text().split()[:2]
            known.append(f"[{h.address}]:{h.ssh_port} {kind} {key}\n")
            config.append(f"Host {h.name}\n  HostName {h.address}\n  Port {h.ssh_port}\n")
        self.paths.known_hosts.write_text("".join(known))
        quoted = f'"{self.paths.known_hosts}"'
        login = f"  User {user}\n" if user else ""
        config.append(
            f'Host *\n{login}  IdentityFile "{self.paths.key}"\n  IdentitiesOnly yes\n'
            f"  IdentityAgent none\n  UserKnownHostsFile {quoted}\n"
            "  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 10\n"
        )
        self.paths.ssh_config.write_text("".join(config))

    def _write_inventory(self, spec: LabSpec, hosts: tuple[LabHost, ...]) -> None:
        self.paths.inventory.mkdir(mode=0o700)
        text = "".join(_host_toml(self.paths, spec, h) for h in hosts)
        (self.paths.inventory / "hosts.toml").write_text(text)
        if spec.gpu != "cpu":
            self._write_service(spec)
        if spec.slurm:
            self._write_job()

    def _write_service(self, spec: LabSpec) -> None:
        """The shipped service with golden answers for the stand-in, and with all hosts of the lab.

        No reference answers of the real model are shipped; these are made up, and only a lab that
        says `simulated` is gated by them.
        """
        name = f"k26-{spec.gpu}"
        shipped = read_text(self.lookup(f"inventory/services/{name}.toml"))
        names = json.dumps(spec.names())
        text = re.sub(r"^hosts = .*$", f"hosts = {names}", shipped, count=1, flags=re.MULTILINE)
        folder = self.paths.inventory / "services"
        folder.mkdir(mode=0o700)
        golden = f'golden = "{SIM_GOLDEN}"\n'
        (folder / f"{name}.toml").write_text(f"# Of the lab: made-up answers.\n{golden}{text}")

    def _write_job(self) -> None:
        """The shipped service, with the one line that hands it to Slurm."""
        shipped = read_text(self.lookup("inventory/services/tiny.toml"))
        folder = self.paths.inventory / "services"
        folder.mkdir(mode=0o700)
        (folder / "tiny.toml").write_text(f'engine = "slurm"\n{shipped}')

    def _alive(self, state: LabState) -> bool:
        if state.spec.systemd:
            try:
                boot.ask(self.paths, {"do": "status"})
            except DdopsError:
                return False
        return all(_listening(h) for h in state.all_hosts)

    def _clean(self, state: LabState | None) -> None:
        where = self.paths.dir
        boot.end(self.paths)
        hold.wake(lab_processes(where))
        left = end_all(lambda: with_descendants(lab_processes(where)), grace_s=STOP_GRACE_S)
        if left:
            raise DdopsError(f"processes of the lab cannot be ended: {left}", next="ps -fp <pid>")
        for host in where.glob("hosts/*"):
            socket_dir = Path(HostLayout(str(host / "engine")).socket).parent
            if where not in socket_dir.parents:
                shutil.rmtree(socket_dir, ignore_errors=True)
        for path in state.made if state else ():
            Path(path).rmdir()
        shutil.rmtree(where)

    @contextmanager
    def _locked(self) -> Iterator[Path]:
        """One `up` or `down` at a time; a second one is told, not queued."""
        lock = self.paths.dir.with_suffix(".flock")
        with writing(lock):
            lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            f = lock.open("w")
        with f, writing(self.paths.dir):
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LockHeldError(
                    "another `ddops lab` command is at work on this lab",
                    next="wait for it, then again",
                ) from error
            if not lock.exists() or lock.stat().st_ino != os.fstat(f.fileno()).st_ino:
                raise LockHeldError("a `ddops lab down` has just ended", next="again, please")
            yield lock

    def _say(self, message: str) -> None:
        self.report.emit(Event("lab", message))


def _placed(spec: LabSpec) -> tuple[LabHost, ...]:
    """Addresses and ports, no port twice."""
    hosts: list[LabHost] = []
    for index, name in enumerate(spec.names(), 1):
        taken = {p for h in hosts for p in (h.ssh_port, h.service_port)}
        hosts.append(place(name, index, taken))
    return tuple(hosts)


def _privsep_dir() -> tuple[str, ...]:
    """sshd run by root wants /run/sshd; made only where it is missing, and removed after."""
    path = Path("/run/sshd")
    if os.geteuid() != 0 or path.exists():
        return ()
    path.mkdir(mode=0o755)
    return (str(path),)


def _listening(host: LabHost) -> bool:
    try:
        socket.create_connection((host.address, host.ssh_port), 1).close()
    except OSError:
        return False
    return True


def _wait_listening(host: LabHost) -> None:
    for _ in range(200):
        if _listening(host):
            return
        time.sleep(0.02)
    raise DdopsError(f"sshd of lab host {host.name} does not listen", next="ddops lab down")


def _host_toml(paths: LabPaths, spec: LabSpec, host: LabHost) -> str:
    if spec.systemd:
        return _booted_toml(paths, spec, host)
    cpu = spec.gpu == "cpu"
    groups = ["lab"] if cpu else ["lab-gpu"]
    values: dict[str, object] = {
        "ssh": host.name,
        "ssh_config": str(paths.ssh_config),
        "groups": groups,
        "engine_dir": str(paths.engine_dir(host.name)),
        "class": "cpu" if cpu else ("pcie" if spec.gpu == "pcie" else "nvlink"),
        "engine_env": spec.engine,
        "supervisor": "process",
        "simulated": not cpu,
    }
    if spec.slurm:
        values["slurm"] = {"partition": "gpu", "gres": "gpu:h200:8", "queue_s": 60}
    variables: dict[str, object] = {"port": host.service_port, "address": host.address}
    if not cpu:
        variables["root"] = str(paths.host(host.name) / "root")
    return (
        _table(f"hosts.{host.name}", values) + _table(f"hosts.{host.name}.vars", variables) + "\n"
    )


def _booted_toml(paths: LabPaths, spec: LabSpec, host: LabHost) -> str:
    values: dict[str, object] = {
        "ssh": host.name,
        "ssh_config": str(paths.ssh_config),
        "groups": ["lab"],
        "engine_dir": "/opt/ddops",
        "class": "cpu",
        "engine_env": spec.engine,
        "supervisor": "systemd",
        "simulated": False,
    }
    if spec.wheelhouse:
        values["wheelhouse"] = WHEELHOUSE
    here = netplan.address(spec.names().index(host.name) + 1)
    variables: dict[str, object] = {"port": host.service_port, "address": here}
    return (
        _table(f"hosts.{host.name}", values) + _table(f"hosts.{host.name}.vars", variables) + "\n"
    )


def _table(name: str, values: Mapping[str, object]) -> str:
    plain = {k: v for k, v in values.items() if not isinstance(v, dict)}
    lines = [f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in plain.items()]
    below = [_table(f"{name}.{k}", v) for k, v in values.items() if isinstance(v, dict)]
    return "".join(["\n".join([f"[{name}]", *lines]) + "\n", *below])
