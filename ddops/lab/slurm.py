"""A Slurm of one machine, for a lab: a host that submits, and nodes that each have a network.

    python -m ddops.lab.slurm PLAN

Started by `ddops lab up --slurm` inside `unshare` (see `needs.UNSHARE`): the kernel ends all of it
with its first process. Real munged, slurmctld and one slurmd a node; the GPUs are made up (the
device files are terminals that nobody uses), and nodes share this machine's processes and disk.
A node whose `NAME.down` lies in the lab's `slurm` folder has no daemon; without it, it has one
again. Standard input is the lifeline: when `lab up` ends before it wrote `ready`, so does this.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ddops.errors import DdopsError, RefusedError
from ddops.lab.booted import LabCommandError, run
from ddops.lab.holder import reap
from ddops.lab.host import start_sshd
from ddops.lab.needs import PATH, UNSHARE
from ddops.lab.processes import TAG
from ddops.lab.relay import serve_tcp
from ddops.lab.spec import LabHost, LabPaths, LabSpec

TOOLS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm", "munged": "munge",
         "ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}  # fmt: skip
READY = b"ready\n"
CONF = "/run/slurm/conf"
_MODULE = "ddops.lab.slurm"
_NET = "10.78.0"
_BRIDGE = "br0"
_GPUS, _CPUS, _MEMORY_MB = 8, 4, 4000
_UP_S = 30.0
_POLL_S = 0.1


def why_not() -> tuple[str, str]:
    """Why no Slurm lab can run here and what to do about it; two empty texts when it can."""
    if os.geteuid() != 0:
        return "needs root: its nodes have networks of their own", "sudo -E ddops lab up --slurm"
    absent = {p for t, p in TOOLS.items() if shutil.which(t, path=PATH) is None}
    if absent:
        names = " ".join(sorted(absent))
        return f"needs the packages {names}", f"apt-get install --no-install-recommends {names}"
    tried = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, env={"PATH": PATH}, timeout=30,
    )  # fmt: skip
    if tried.returncode:
        said = (tried.stderr.strip() or f"exit {tried.returncode}")[-300:]
        return f"needs namespaces, and cannot make them: {said}", "run it on a machine, or a VM"
    return "", ""


def require() -> None:
    """Raise `RefusedError` where a Slurm lab cannot run."""
    why, next_ = why_not()
    if why:
        raise RefusedError(f"a Slurm lab {why}", next=next_)


def node_names(count: int) -> list[str]:
    return [f"g{n}" for n in range(1, count + 1)]


def slurm_conf(hostname: str, log: str, nodes: int) -> str:
    """slurm.conf: waits are cut short, so that a lost node is lost in seconds. Pure."""
    lines = [
        "ClusterName=lab",
        f"SlurmctldHost={hostname}({_NET}.1)",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        "AuthInfo=cred_expire=10",
        "SlurmUser=root",
        "SlurmdUser=root",
        "SlurmctldPort=26817",
        "StateSaveLocation=/run/slurm/state",
        "SlurmctldPidFile=/run/slurm/slurmctld.pid",
        "SlurmdPidFile=/run/slurm/slurmd-%n.pid",
        "SlurmdSpoolDir=/run/slurm/spool-%n",
        f"SlurmctldLogFile={log}/slurmctld.log",
        f"SlurmdLogFile={log}/slurmd-%n.log",
        "ProctrackType=proctrack/pgid",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2",
        "ReturnToService=2",
        "SlurmdTimeout=5",
        "KillWait=2",
        "MpiDefault=none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "GresTypes=gpu",
        "SlurmdParameters=config_overrides",
    ]
    for n, name in enumerate(node_names(nodes), 1):
        lines.append(
            f"NodeName={name} NodeHostname={hostname} NodeAddr={_NET}.{10 + n} Port={26820 + n}"
            f" CPUs={_CPUS} RealMemory={_MEMORY_MB} Gres=gpu:h200:{_GPUS} State=UNKNOWN"
        )
    lines.append("PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def gres_conf(nodes: int) -> str:
    names = ",".join(node_names(nodes))
    return f"AutoDetect=off\nNodeName={names} Name=gpu Type=h200 File=/dev/tty[1-{_GPUS}]\n"


def begin(paths: LabPaths, spec: LabSpec, host: LabHost, sshd: str) -> None:
    """Start it, and return when its nodes are idle and the submitting host listens."""
    (paths.dir / "slurm").mkdir(mode=0o755)
    listener = socket.create_server((host.address, host.ssh_port), backlog=128)
    listener.set_inheritable(True)
    plan = paths.dir / "slurm" / "plan.json"
    plan.write_text(
        json.dumps({"dir": str(paths.dir), "host": host.name, "address": host.address,
                    "ssh_port": host.ssh_port, "nodes": spec.hosts, "sshd": sshd,
                    "fd": listener.fileno()})
    )  # fmt: skip
    log = paths.dir / "slurm" / "holder.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*UNSHARE, sys.executable, "-m", _MODULE, str(plan)],
            stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True,
            pass_fds=[listener.fileno()],
            env={"PATH": PATH, TAG: str(paths.dir), "LANG": "C.UTF-8",
                 "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )  # fmt: skip
    listener.close()
    ready, end = paths.dir / "slurm" / "ready", time.monotonic() + _UP_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            process.wait()
            raise DdopsError(
                "Slurm did not come up", why=log.read_text(errors="replace").strip()[-1500:],
                next=f"see {paths.dir}/slurm/*.log, then ddops lab down",
            )  # fmt: skip
        time.sleep(_POLL_S)
    assert process.stdin is not None  # noqa: S101 - PIPE above
    process.stdin.write(READY)
    process.stdin.close()


class Cluster:
    """All daemons, seen from the first process of their namespaces."""

    def __init__(self, plan: Mapping[str, object]) -> None:
        self.paths = LabPaths(Path(str(plan["dir"])))
        self.dir = self.paths.dir / "slurm"
        self.nodes = node_names(int(str(plan["nodes"])))
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.plan = plan

    def start(self) -> None:
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
        for folder in (CONF, "/run/slurm/state", "/run/munge", "/run/sshd"):
            Path(folder).mkdir(parents=True)
        for folder in ("/run/slurm", "/run/munge"):
            Path(folder).chmod(0o755)
        self._network()
        key = Path("/run/munge.key")
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(1024))
        self._daemon("munged", "munged", "--foreground", "--force", f"--key-file={key}",
                     "--seed-file=/run/munge.seed", "--socket=/run/munge/munge.socket.2",
                     "--pid-file=/run/munged.pid", f"--log-file={self.dir}/munged.log")  # fmt: skip
        name, count = socket.gethostname().split(".")[0], len(self.nodes)
        Path(CONF, "slurm.conf").write_text(slurm_conf(name, str(self.dir), count))
        Path(CONF, "gres.conf").write_text(gres_conf(count))
        _wait(lambda: Path("/run/munge/munge.socket.2").exists(), "munged")
        self._daemon("slurmctld", "slurmctld", "-D", "-f", f"{CONF}/slurm.conf", "-c")
        self.watch()
        _wait(lambda: _idle() == count, "all nodes idle")
        host = LabHost(str(self.plan["host"]), str(self.plan["address"]),
                       int(str(self.plan["ssh_port"])), 0)  # fmt: skip
        start_sshd(self.paths, host, str(self.plan["sshd"]))

    def _network(self) -> None:
        Path("/run/netns").mkdir()
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", _BRIDGE, "type", "bridge", "forward_delay", "0")
        run("ip", "addr", "add", f"{_NET}.1/24", "dev", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")
        for n, name in enumerate(self.nodes, 1):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"v-{name}", "type", "veth", "peer", "eth0", "netns", name)
            run("ip", "link", "set", f"v-{name}", "master", _BRIDGE, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "addr", "add", f"{_NET}.{10 + n}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            Path(f"/run/slurm/spool-{name}").mkdir(mode=0o755)

    def watch(self) -> None:
        """Each node that is not down has a daemon."""
        for name in self.nodes:
            known = self.daemons.get(name)
            if known is not None and known.poll() is None:
                continue
            if not (self.dir / f"{name}.down").exists():
                self._daemon(name, "nsenter", f"--net=/run/netns/{name}", "slurmd", "-D",
                             "-f", f"{CONF}/slurm.conf", "-N", name)  # fmt: skip

    def _daemon(self, name: str, *words: str) -> None:
        with (self.dir / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
                env={"PATH": PATH, TAG: str(self.paths.dir), "LANG": "C.UTF-8"},
            )  # fmt: skip

    def hold(self) -> None:
        """Until the lab's folder goes, or a daemon that all need."""
        while Path(str(self.dir / "plan.json")).exists():
            for name in ("munged", "slurmctld"):
                if self.daemons[name].poll() is not None:
                    raise LabCommandError(f"{name} ended; see {self.dir}/{name}.out")
            self.watch()
            # Slurm takes a step for alive while one of its group waits to be collected.
            reap({d.pid for d in self.daemons.values()})
            time.sleep(_POLL_S)


def _idle() -> int:
    done = subprocess.run(
        ["sinfo", "-h", "-t", "idle", "-o", "%D"], capture_output=True, text=True, check=False,
        env={"PATH": PATH, "SLURM_CONF": f"{CONF}/slurm.conf"}, timeout=20,
    )  # fmt: skip
    return sum(int(n) for n in done.stdout.split())


def _wait(done: object, what: str) -> None:
    assert callable(done)  # noqa: S101 - our own call
    end = time.monotonic() + _UP_S
    while not done():
        if time.monotonic() > end:
            raise LabCommandError(f"no {what} within {_UP_S:g} s")
        time.sleep(_POLL_S)


def _relay(plan: Mapping[str, object]) -> None:
    """SSH from the machine's loopback to the sshd in here, which has the same address."""
    import asyncio

    listener = socket.socket(fileno=int(str(plan["fd"])))
    listener.setblocking(False)
    asyncio.run(serve_tcp(listener, (str(plan["address"]), int(str(plan["ssh_port"])))))


def main(argv: list[str]) -> int:
    plan = json.loads(Path(argv[0]).read_text())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cluster = Cluster(plan)
    try:
        cluster.start()
        threading.Thread(target=_relay, args=(plan,), daemon=True).start()
        (cluster.dir / "ready").touch()
        if sys.stdin.buffer.readline() != READY:
            print("`lab up` ended before the lab was ready", flush=True)
            return 1
        cluster.hold()
    except (LabCommandError, DdopsError, OSError) as error:
        print(f"error: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
