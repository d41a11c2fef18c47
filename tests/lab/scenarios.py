"""What takes long and mostly waits: begun with the session, each in a lab of its own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.lab.harness import HostView, Project, Snapshot, snapshot
from tests.lab.looking import until

LIMIT_S = 400.0
QUICK = {"DDOPS_CONNECT_TIMEOUT_S": "2"}
HOSTS = ("lab1", "lab2", "lab3", "lab4")


@dataclass(frozen=True)
class Fault:
    """A script of the stand-in, and what the message must hold."""

    name: str
    sim: str
    says: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    #: State of the ledger in which the failure shows: what was reached before it.
    reached: str = "started"

    @property
    def profile(self) -> str:
        return f"bad-{self.name}".replace("_", "-")


SHORT = {"DDOPS_LOAD_BUDGET_S": "3"}
FAULTS = (
    Fault("oom", "die_loading=oom", ("G0", "ended while loading", "CUDA out of memory"),
          reached="switched"),
    Fault("arch", "die_loading=arch", ("G0", "no kernel image is available"), reached="switched"),
    Fault("flag", "die_loading=flag", ("G0", "server arguments is not supported"),
          reached="switched"),
    Fault("never_ready", "never_ready", ("G2", "not ready after"), SHORT, "switched"),
    Fault("hang_health", "hang=health", ("G2", "not ready after"), SHORT, "switched"),
    Fault("health_503", "status_503=health", ("G2", "not ready after"), SHORT, "switched"),
    Fault("die_after", "die_after_s=1", ("G0",), {"DDOPS_READY_QUIET_S": "3"}, "switched"),
    Fault("identity_all", "wrong_identity=all", ("G3", "the server says it is")),
    Fault("identity_info", "wrong_identity=info", ("G3", "the server says it is")),
    Fault("identity_meta", "wrong_identity=meta", ("G4 exactness", "was answered by")),
    Fault("stale", "stale_identity", ("G3", "the server says it is")),
    Fault("garbage", "garbage", ("G4 exactness", "2 of 2 golden prompts differ")),
    Fault("mask_bug", "mask_bug", ("G4 exactness", "golden prompts differ", "from token 3")),
    Fault("hang_generate", "hang=generate", ("G4 exactness", "timed out"),
          {"DDOPS_GATE_TIMEOUT_S": "2"}),
    Fault("generate_503", "status_503=generate", ("G4 exactness", "HTTP 503")),
    Fault("early_eos", "early_eos=3", ("G4 exactness", "from token 2")),
    Fault("leak", "leak_child,garbage", ("G4 exactness",)),
)  # fmt: skip
BY_NAME = {f.name: f for f in FAULTS}
OVER_ANOTHER = ("oom", "never_ready", "die_after", "identity_info", "identity_meta", "mask_bug",
                "hang_generate", "leak")  # fmt: skip

Make = Callable[[str], Project]
T = TypeVar("T")


@dataclass(frozen=True)
class Faults:
    """Each fault on a host that never served, over one that serves, and one way back that fails."""

    first: Mapping[str, Snapshot]
    over: Mapping[str, Snapshot]
    stuck: Snapshot
    again: Snapshot


@dataclass(frozen=True)
class Frozen:
    """A host that froze in the middle of a deploy, and the same deploy when it is back."""

    during: Snapshot
    after: Snapshot


class Scenarios:
    """Runs what was asked for in threads; a result is waited for where it is looked at."""

    def __init__(self, make: Make, wanted: frozenset[str]) -> None:
        self._pool = ThreadPoolExecutor(3, thread_name_prefix="scenario")
        self._faults = self._begin(_faults, make, "faults" in wanted)
        self._frozen = self._begin(_frozen, make, "frozen" in wanted)
        self._lost_lock = self._begin(_lost_lock, make, "lost_lock" in wanted)

    def _begin(self, work: Callable[[Make], T], make: Make, wanted: bool) -> Future[T] | None:
        return self._pool.submit(work, make) if wanted else None

    def faults(self) -> Faults:
        assert self._faults is not None
        return self._faults.result(LIMIT_S)

    def frozen(self) -> Frozen:
        assert self._frozen is not None
        return self._frozen.result(LIMIT_S)

    def lost_lock(self) -> Snapshot:
        assert self._lost_lock is not None
        return self._lost_lock.result(LIMIT_S)

    def close(self) -> None:
        self._pool.shutdown()


def _faults(make: Make) -> Faults:
    lab = make("f")
    lab.ok("lab", "up", "--engine", "sim", "--hosts", str(len(HOSTS)))
    lab.ok("provision", "lab")
    for fault in FAULTS:
        lab.profile(fault.profile, fault.sim)
    first = _deploy_all(lab, tuple(BY_NAME))
    lab.ok("deploy", *HOSTS)
    over = _deploy_all(lab, OVER_ANOTHER)
    host = lab.host("lab4")
    before = host.serves()
    host.fault(garbage=True)  # of the machine, not of the release: the old one has it too
    stuck = snapshot(lab.run("deploy", "lab4", "--profile", "bad-early-eos"), host, before)
    host.fault()
    again = snapshot(lab.run("deploy", "lab4"), host, before)
    return Faults(first, over, stuck, again)


def _deploy_all(lab: Project, names: tuple[str, ...]) -> dict[str, Snapshot]:
    """One command a fault; each host takes the next one when it is done."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        todo.put(name)
    out: dict[str, Snapshot] = {}

    def work(host: HostView) -> None:
        while not todo.empty():
            try:
                fault = BY_NAME[todo.get_nowait()]
            except queue.Empty:
                return
            before = host.serves()
            done = lab.run("deploy", host.name, "--profile", fault.profile, env=fault.env)
            out[fault.name] = snapshot(done, host, before)

    threads = [threading.Thread(target=work, args=(lab.host(h),)) for h in HOSTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def _frozen(make: Make) -> Frozen:
    lab = make("z")
    lab.ok("lab", "up", "--engine", "sim")
    lab.ok("provision", "lab")
    lab.ok("deploy", "lab1")
    host = lab.host("lab1")
    before = host.serves()
    lab.profile("freeze", "load_s=4")
    env = {**QUICK, "DDOPS_LOAD_BUDGET_S": "5"}
    run = lab.spawn("deploy", "lab1", "--profile", "freeze", env=env)
    loading(host, before)
    pids = listeners(lab, "lab1")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        during = snapshot(run.end(), host, before)
    finally:
        for pid in pids:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGCONT)
    after = snapshot(lab.run("deploy", "lab1", "--profile", "freeze"), host, before)
    return Frozen(during, after)


def _lost_lock(make: Make) -> Snapshot:
    lab = make("k")
    lab.ok("lab", "up", "--engine", "sim")
    lab.ok("provision", "lab")
    lab.ok("deploy", "lab1")
    host = lab.host("lab1")
    before = host.serves()
    lab.profile("loses-lock", "load_s=16")
    run = lab.spawn("deploy", "lab1", "--profile", "loses-lock")
    loading(host, before)
    lab.ok("lock", "release", "lab1", "--force")
    hold(host)
    return snapshot(run.end(), host, before)


def loading(host: HostView, old: str | None) -> None:
    """Wait until another release than `old` is being loaded."""
    until(lambda: host.current != old and host.pids(), what="the load")


def hold(host: HostView, **owner: object) -> None:
    """Lay down a lock as an operator on another machine would."""
    lock = Path(host.layout.lock)
    lock.mkdir(mode=0o700)
    told = {"token": "t", "who": "ann", "where": "elsewhere", "pid": 1, "purpose": "deploy x",
            "at": "2026-01-01T00:00:00+00:00", **owner}  # fmt: skip
    (lock / "owner.json").write_text(json.dumps(told))
    (lock / "heartbeat").touch()


def listeners(project: Project, host: str) -> list[int]:
    """The host's sshd, then its sessions."""
    pid = int((project.lab.host(host) / "sshd.pid").read_text())
    done = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [pid, *(int(p) for p in done.stdout.split())]
