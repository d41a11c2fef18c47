"""The `process` supervisor: supervisord on the host, driven over its own socket.

For hosts without systemd: the lab, containers. It survives the controller; restarting after a
reboot of the host is not its promise.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping

from ddops.command import ALONE, Cmd, cmd, sh
from ddops.errors import CommandFailed, DdopsError
from ddops.render import render
from ddops.supervise.base import Lookup, Order, ServiceState, read_state
from ddops.supervise.onhost import TAIL, OnHost
from ddops.transport.files import read_file, write_file

#: A stop waits for the engine's grace period and for what it left behind.
STOP_DEADLINE_S = 120.0
#: A load that dies sooner than this is retried by the supervisor, then given up.
STARTSECS, STARTRETRIES = 10, 3
PROGRAM = "program.conf"
_UP = ("RUNNING", "STARTING")
_DOWN = ("STOPPED", "EXITED", "FATAL", "BACKOFF", None)


class ProcessSupervisor(OnHost):
    """One host's supervisord."""

    def render(self, order: Order, lookup: Lookup) -> Mapping[str, str]:
        layout = self._layout
        values = {
            "service": order.service.name,
            "service_dir": layout.service(order.service.name).dir,
            "state_dir": layout.state,
            "python": self._python,
            "startsecs": STARTSECS,
            "startretries": STARTRETRIES,
            "stop_grace_s": order.launch.stop_grace_s,
        }
        return {PROGRAM: render(lookup, "program.conf.j2", values)}

    def stage(self, order: Order, lookup: Lookup) -> Mapping[str, object]:
        program = self.render(order, lookup)[PROGRAM]
        where = self._layout.service(order.service.name)
        write_file(self._transport, where.program, program.encode(), 0o600)
        return {}

    def compare(self, order: Order, lookup: Lookup) -> Mapping[str, object]:
        have = read_file(self._transport, self._layout.service(order.service.name).program)
        if have is None:
            return {"installed": False}
        want = self.render(order, lookup)[PROGRAM]
        lines = difflib.unified_diff(
            want.splitlines(), have.decode("utf-8", "replace").splitlines(), n=0, lineterm=""
        )
        return {
            "installed": True,
            "diff": [x for x in lines if not x.startswith(("---", "+++", "@@"))],
        }

    def logs(self, service: str, limit: int) -> Mapping[str, Cmd]:
        program = self._layout.service(service).program
        return {"unit.txt": sh(TAIL, program, str(limit)), **super().logs(service, limit)}

    def ensure(self) -> bool:
        """Start the daemon where it does not run; returns whether it was started."""
        return bool(self._call("ensure", "")["started"])

    def daemon_up(self) -> bool:
        return self._call("status", "-")["daemon"] == "up"

    def submit(self, service: str) -> ServiceState:
        return read_state(self._call("start", service), _UP, _DOWN)

    def cancel(self, service: str) -> ServiceState:
        return read_state(self._call("stop", service), _UP, _DOWN)

    def forget(self, service: str) -> ServiceState:
        """Stop it and keep a restarted daemon from starting it again."""
        return read_state(self._call("forget", service), _UP, _DOWN)

    def status(self, service: str) -> ServiceState:
        return read_state(self._call("status", service), _UP, _DOWN)

    def _call(self, verb: str, service: str) -> dict[str, object]:
        layout = self._layout
        script = f"{layout.hostside}/svctl.py"
        words = [self._python, *ALONE, script, layout.state, layout.socket, verb, service]
        done = self._transport.run(cmd(*words), deadline_s=STOP_DEADLINE_S)
        if not done.ok:
            raise CommandFailed(
                f"{self._transport.host}: the process supervisor could not be asked to {verb}",
                rc=done.rc,
                stderr=done.err,
                next=f"ddops provision {self._transport.host}",
            )
        answer: dict[str, object] = json.loads(done.out)
        if answer.get("error"):
            raise DdopsError(
                f"{self._transport.host}: supervisord does not start",
                why=str(answer["error"]),
                next=f"see {layout.state}/supervisor/supervisord.log on the host",
            )
        return answer
