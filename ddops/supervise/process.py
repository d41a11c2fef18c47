"""The `process` supervisor: supervisord on the host, driven over its own socket.

For hosts without systemd: the lab, containers. It survives the controller; restarting after a
reboot of the host is not its promise.
"""

from __future__ import annotations

import json

from ddops.command import cmd
from ddops.errors import CommandFailed, DdopsError
from ddops.layout import HostLayout
from ddops.supervise.base import ServiceState, read_state
from ddops.transport import Transport

#: A stop waits for the engine's grace period and for what it left behind.
STOP_DEADLINE_S = 120.0
_UP = ("RUNNING", "STARTING")
_DOWN = ("STOPPED", "EXITED", "FATAL", "BACKOFF", None)


class ProcessSupervisor:
    """One host's supervisord. `python` is the host's interpreter."""

    def __init__(self, transport: Transport, layout: HostLayout, python: str) -> None:
        self._transport = transport
        self._layout = layout
        self._python = python

    def ensure(self) -> bool:
        """Start the daemon where it does not run; returns whether it was started."""
        return bool(self._call("ensure", "")["started"])

    def daemon_up(self) -> bool:
        return self._call("status", "-")["daemon"] == "up"

    def start(self, service: str) -> ServiceState:
        return read_state(self._call("start", service), _UP, _DOWN)

    def stop(self, service: str) -> ServiceState:
        return read_state(self._call("stop", service), _UP, _DOWN)

    def forget(self, service: str) -> ServiceState:
        """Stop it and keep a restarted daemon from starting it again."""
        return read_state(self._call("forget", service), _UP, _DOWN)

    def status(self, service: str) -> ServiceState:
        return read_state(self._call("status", service), _UP, _DOWN)

    def _call(self, verb: str, service: str) -> dict[str, object]:
        layout = self._layout
        words = [self._python, f"{layout.hostside}/svctl.py", layout.state, layout.socket, verb]
        done = self._transport.run(cmd(*words, service), deadline_s=STOP_DEADLINE_S)
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
