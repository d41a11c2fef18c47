"""The `slurm` member: a service is one job, driven from a host that may submit.

The release lies on a disk that the submitting host and the nodes share. What a gate asks is asked
on the job's own nodes, inside its allocation; see hostside/jobctl.py and hostside/jobstep.py.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping

from ddops.command import Cmd, cmd, sh
from ddops.errors import CommandFailed, RefusedError
from ddops.gates import Observation, parse_observation
from ddops.gates.observation import HTTP_TIMEOUT_S, LOG_BYTES
from ddops.inventory.model import Host, Service
from ddops.model import Result
from ddops.render import render
from ddops.supervise.base import Lookup, Order, ServiceState, read_state
from ddops.supervise.onhost import TAIL, OnHost
from ddops.transport import DEFAULT_DEADLINE_S, DEFAULT_LIMIT, Transport
from ddops.transport.files import read_file, write_file

SCHEMA = "ddops.jobctl/1"
SCRIPT = "job.sbatch"
#: A cancel waits for the launch, the grace period of 30 s, and for Slurm's own kill.
CANCEL_DEADLINE_S = 180.0
OBSERVE_DEADLINE_S = 60.0
_DOWN = (
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL",
    "DEADLINE", "OUT_OF_MEMORY", "REVOKED", None,
)  # fmt: skip
_UP = (
    "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED",
    "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING", "SIGNALING", "STAGE_OUT",
)  # fmt: skip
#: A node that runs nothing and is given nothing.
_FREE = ("drained", "down", "maint", "powered_down")
_QUEUE = 'scontrol show job "$(squeue --noheader --name="$1" --states=all --format=%i | tail -1)"'


class SlurmJob(OnHost):
    """The job of a service. The transport's host submits; the engine runs elsewhere."""

    def render(self, order: Order, lookup: Lookup) -> Mapping[str, str]:
        service, asked, layout = order.service, order.host.slurm, self._layout
        where = layout.service(service.name)
        values = {
            "job_name": job_name(where.dir, service.name),
            "service_dir": where.dir,
            "state_dir": layout.state,
            "python": self._python,
            "nodes": service.nnodes,
            "partition": asked.partition,
            "account": asked.account,
            "gres": asked.gres,
            "time_limit": asked.time_limit,
            "stop_grace_s": order.launch.stop_grace_s,
            "dist_port": service.dist_port,
        }
        return {SCRIPT: render(lookup, f"{SCRIPT}.j2", values)}

    def stage(self, order: Order, lookup: Lookup) -> Mapping[str, object]:
        """The script beside the release, and Slurm's word on it before anything is stopped."""
        path = f"{self._layout.service(order.service.name).release(order.digest)}/{SCRIPT}"
        write_file(self._transport, path, self.render(order, lookup)[SCRIPT].encode(), 0o600)
        answer = self._call("verify", order.service.name, order.digest)
        return {"slurm": str(answer.get("test", ""))}

    def submit(self, service: str) -> ServiceState:
        return read_state(self._call("submit", service), _UP, _DOWN)

    def status(self, service: str) -> ServiceState:
        return read_state(self._call("status", service), _UP, _DOWN)

    def cancel(self, service: str) -> ServiceState:
        return read_state(self._call("cancel", service, deadline_s=CANCEL_DEADLINE_S), _UP, _DOWN)

    def forget(self, service: str) -> ServiceState:
        return self.cancel(service)  # nothing but the job would start it again

    def observe(self, service: str, port: int, *, http: bool = True) -> Observation:
        limits = (str(HTTP_TIMEOUT_S if http else 0), str(LOG_BYTES))
        done = self._run("observe", service, str(port), *limits, deadline_s=OBSERVE_DEADLINE_S)
        self._judge("observe", service, self._read(done))
        return parse_observation(done.out)

    def inside(self, service: str) -> Transport:
        return InJob(self._transport, self._words("run", service))

    def logs(self, service: str, limit: int) -> Mapping[str, Cmd]:
        where = self._layout.service(service)
        return {
            "unit.txt": sh(TAIL, f"{where.current}/{SCRIPT}", str(limit)),
            **super().logs(service, limit),
            "slurm-job.txt": sh(_QUEUE, job_name(where.dir, service)),
        }

    def compare(self, order: Order, lookup: Lookup) -> Mapping[str, object]:
        path = f"{self._layout.service(order.service.name).current}/{SCRIPT}"
        have = read_file(self._transport, path)
        if have is None:
            return {"installed": False}
        want = self.render(order, lookup)[SCRIPT]
        lines = difflib.unified_diff(
            want.splitlines(), have.decode("utf-8", "replace").splitlines(), n=0, lineterm=""
        )
        kept = [x for x in lines if not x.startswith(("---", "+++", "@@"))]
        return {"installed": True, "diff": kept}

    def endpoint(self, service: Service, port: int, seen: Observation | None) -> str:
        node = seen.job.nodes[0] if seen is not None and seen.job and seen.job.nodes else ""
        return f"{node or 'a-node-of-the-job'}:{port}"

    def _words(self, *words: str) -> tuple[str, ...]:
        layout = self._layout
        return (self._python, f"{layout.hostside}/jobctl.py", layout.state, *words)

    def _run(self, *words: str, deadline_s: float) -> Result:
        host = self._transport.host
        done = self._transport.run(cmd(*self._words(*words)), deadline_s=deadline_s)
        if not done.ok:
            raise CommandFailed(
                f"{host}: Slurm could not be asked to {words[0]} {words[1]}",
                rc=done.rc,
                stderr=done.err,
                next=f"ddops provision {host}",
            )
        return done

    def _read(self, done: Result) -> dict[str, object]:
        try:
            answer = json.loads(done.out)
            if not isinstance(answer, dict):
                raise ValueError("no JSON object")  # noqa: TRY004 - told like any other
        except ValueError as error:
            host = self._transport.host
            raise CommandFailed(
                f"{host}: jobctl.py answered nothing readable", rc=0, why=str(error),
                next=f"ddops provision {host}",
            ) from error  # fmt: skip
        return answer

    def _call(self, *words: str, deadline_s: float = 60.0) -> dict[str, object]:
        answer = self._read(self._run(*words, deadline_s=deadline_s))
        if answer.get("schema") != SCHEMA:
            host = self._transport.host
            raise CommandFailed(
                f"{host}: jobctl.py is of another version", rc=0, next=f"ddops provision {host}"
            )
        return self._judge(words[0], words[1], answer)

    def _judge(self, verb: str, service: str, answer: dict[str, object]) -> dict[str, object]:
        if answer.get("error"):
            host = self._transport.host
            raise RefusedError(
                f"{host}: {verb} of the Slurm job of {service} failed",
                why=str(answer["error"]),
                next=f"on {host}: sinfo; squeue --name={self._name(service)}",
            )
        return answer

    def _name(self, service: str) -> str:
        return job_name(self._layout.service(service).dir, service)


def require_drained(transport: Transport, host: Host) -> None:
    """Raise RefusedError where the host is a node that Slurm may be using, or may use next."""
    node = host.slurm.node
    if node is None:
        return
    done = transport.run(cmd("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T"))
    states = sorted(set(done.out.split()))
    if done.ok and states and all(s.rstrip("*~#!%$@^-") in _FREE for s in states):
        return
    said = f"Slurm says {', '.join(states)}" if states else (
        done.err.strip()[-300:] or "Slurm knows no such node")  # fmt: skip
    raise RefusedError(
        f"{host.name}: the node {node} is not drained",
        why=f"{said}; jobs run there, or may begin to at any moment",
        next=f"scontrol update nodename={node} state=drain reason=provision, and wait for its jobs",
    )


def job_name(folder: str, service: str) -> str:
    """As hostside/jobctl.py spells it: the folder tells two services of one name apart."""
    return f"ddops-{service}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"


class InJob:
    """Runs commands on the first node of a running job, over the submitting host's transport."""

    def __init__(self, transport: Transport, words: tuple[str, ...]) -> None:
        self._transport = transport
        self._words = words

    @property
    def host(self) -> str:
        return self._transport.host

    def run(
        self, command: Cmd, *, deadline_s: float = DEFAULT_DEADLINE_S, limit: int = DEFAULT_LIMIT
    ) -> Result:
        env = [f"{k}={v}" for k, v in command.env]
        words = [*self._words, *(["env", *env] if env else []), *command.argv]
        stdin = command.stdin
        wrapped = cmd(*words, stdin=stdin, cwd=command.cwd)
        return self._transport.run(wrapped, deadline_s=deadline_s, limit=limit)

    def close(self) -> None:
        self._transport.close()
