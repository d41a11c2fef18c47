"""A project whose lab has a Slurm, and the cluster as its own commands and processes show it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.harness import SERVICE, HostView, Project
from tests.lab.looking import tagged, until

_GET = (
    "import http.client, sys\n"
    "c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=5)\n"
    "h = {'Authorization': 'Bearer ' + sys.argv[3]} if sys.argv[3] else {}\n"
    "c.request('GET', sys.argv[2], headers=h); r = c.getresponse()\n"
    "sys.stdout.write(r.read().decode()); sys.exit(r.status != 200)\n"
)


@dataclass
class SlurmProject(Project):
    """`Project`, with one host that submits."""

    @property
    def submitting(self) -> Submitting:
        port = self.state.hosts[0].service_port
        return Submitting(self, "slurm", port)

    def sh(self, script: str, check: bool = True) -> str:
        """A shell line on the submitting host, as its login would run it."""
        done = self.ssh("slurm", script)
        assert not check or done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def jobs(self) -> list[dict[str, str]]:
        """Jobs that hold nodes or wait for some, by Slurm's own word."""
        names = ("id", "state", "reason", "nodes", "name")
        lines = self.sh("squeue --noheader --format='%i|%T|%r|%N|%j'").splitlines()
        return [dict(zip(names, line.split("|"), strict=True)) for line in lines]

    def asked(self, **values: object) -> None:
        """What the host asks of Slurm, in the lab's own inventory."""
        path = self.lab.inventory / "hosts.toml"
        head, _, rest = path.read_text().partition("[hosts.slurm.slurm]")
        tail = rest[rest.index("[hosts.slurm.vars]") :]
        lines = "".join(f"{k} = {json.dumps(v)}\n" for k, v in {**ASKED, **values}.items())
        path.write_text(f"{head}[hosts.slurm.slurm]\n{lines}{tail}")

    def job_service(self, **changes: str) -> None:
        """The lab's service as the project's own, handed to Slurm."""
        self.service(**{"engine": '"slurm"', **changes})

    def statuses(self) -> Mapping[str, object]:
        found = self.ok("status", "tiny", "--json").json
        assert isinstance(found, list)
        (one,) = found
        assert isinstance(one, dict)
        return one

    # ---- nodes

    def daemon(self, node: str) -> int:
        """The machine's number of a node's slurmd."""
        ours = tagged(f"DDOPS_LAB={self.lab.dir}")
        lines = {p: Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0") for p in ours}
        found = [p for p, w in lines.items() if w[0] == b"slurmd" and node.encode() in w]
        assert len(found) == 1, found
        return found[0]

    def kill_daemon(self, node: str) -> None:
        """The node's daemon is killed and stays away; what it started runs on."""
        pid = self.daemon(node)
        (self.lab.dir / "slurm" / f"{node}.down").touch()
        os.kill(pid, signal.SIGKILL)

    def bring_back(self) -> None:
        """Every node has a daemon, and nothing to do."""
        for path in (self.lab.dir / "slurm").glob("*.down"):
            path.unlink()
        want = "g1 idle\ng2 idle"

        def ready() -> bool:
            self.sh("scontrol update nodename=g[1-2] state=resume", check=False)
            return self.sh("sinfo --noheader --Node --format='%N %T'") == want

        until(ready, 60, "idle nodes")


ASKED: Mapping[str, object] = {"partition": "gpu", "gres": "gpu:h200:8", "queue_s": 60}


@dataclass(frozen=True)
class Submitting(HostView):
    """The submitting host. Its engines run on nodes with networks of their own."""

    project: SlurmProject

    def job(self) -> dict[str, str]:
        (job,) = self.project.jobs()
        return job

    def get(
        self, path: str, timeout_s: float = 5.0, key: str = "", node: str = ""
    ) -> dict[str, object] | None:
        """What the engine answers on its own node's loopback; None when nothing does."""
        jobs = [j for j in self.project.jobs() if j["state"] == "RUNNING"]
        if not jobs:
            return None
        where = f"--nodelist={node}" if node else ""
        line = f"srun --jobid={jobs[0]['id']} --overlap -N1 -n1 {where} python3 -c"
        done = self.project.ssh("slurm", f"{line} {_shell(_GET)} {self.port} {path} {_shell(key)}")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def started_after(self, old: str | None) -> bool:
        """Whether a start of another release is on record."""
        launch = self.launch()
        return launch is not None and launch["release"] != old

    def engines(self) -> list[int]:
        """Processes of any rank, on any node."""
        followers = f"DDOPS_SERVICE={self.service.dir}/nodes/1"
        return [*self.pids(), *tagged(followers)]

    def reset(self) -> None:
        self.fault()
        self.project.sh("scancel --quiet --user=root", check=False)
        until(lambda: not self.project.jobs(), 60, "the end of all jobs")
        self.project.bring_back()
        self.svctl("forget", SERVICE)
        until(lambda: not self.engines(), 30, "the end of all engines")
        shutil.rmtree(self.service.dir, ignore_errors=True)
        self.project.asked()
        shutil.rmtree(self.project.root / "inventory", ignore_errors=True)


def _shell(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"
