"""The `systemd` supervisor: one unit a service, driven on the host by `hostside/unitctl.py`.

The unit is part of the release that `current` names, so going back to a release goes back to its
unit. It is enabled: after a reboot of the host the committed release comes back by itself.
"""

from __future__ import annotations

import json

from ddops.command import cmd
from ddops.errors import CommandFailed, RefusedError
from ddops.layout import HostLayout
from ddops.supervise.base import ServiceState, read_state
from ddops.supervise.process import STOP_DEADLINE_S
from ddops.transport import Transport

SCHEMA = "ddops.unitctl/1"
_UP = ("active", "activating", "reloading", "deactivating")
_DOWN = ("inactive", "failed", None)


class SystemdSupervisor:
    """One host's systemd. `python` is the host's interpreter."""

    def __init__(self, transport: Transport, layout: HostLayout, python: str) -> None:
        self._transport = transport
        self._layout = layout
        self._python = python

    def verify(self, service: str, digest: str) -> None:
        """Have systemd look at a staged release's unit; raises where it would not take it."""
        self._call("verify", service, digest)

    def start(self, service: str) -> ServiceState:
        return read_state(self._call("start", service), _UP, _DOWN)

    def stop(self, service: str) -> ServiceState:
        return read_state(self._call("stop", service), _UP, _DOWN)

    def forget(self, service: str) -> ServiceState:
        """Stop it and remove its unit."""
        return read_state(self._call("forget", service), _UP, _DOWN)

    def compare(self, service: str) -> dict[str, object]:
        """The installed unit beside the one of `current`; see hostside/unitctl.py."""
        return self._call("compare", service)

    def status(self, service: str) -> ServiceState:
        return read_state(self._call("status", service), _UP, _DOWN)

    def _call(self, verb: str, service: str, *more: str) -> dict[str, object]:
        layout, host = self._layout, self._transport.host
        words = [self._python, f"{layout.hostside}/unitctl.py", layout.state, verb, service, *more]
        done = self._transport.run(cmd(*words), deadline_s=STOP_DEADLINE_S)
        if not done.ok:
            raise CommandFailed(
                f"{host}: systemd could not be asked to {verb} {service}",
                rc=done.rc,
                stderr=done.err,
                next=f"ddops provision {host}",
            )
        answer: dict[str, object] = json.loads(done.out)
        if answer.get("schema") != SCHEMA:
            raise CommandFailed(
                f"{host}: unitctl.py is of another version", rc=0, next=f"ddops provision {host}"
            )
        if answer.get("error"):
            raise RefusedError(
                f"{host}: {verb} of ddops-{service}.service failed",
                why=str(answer["error"]),
                next=f"on {host}: sudo -n true; systemctl status ddops-{service}",
            )
        return answer
