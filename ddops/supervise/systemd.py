"""The `systemd` supervisor: one unit a service, driven on the host by `hostside/unitctl.py`.

The unit is part of the release that `current` names, so going back to a release goes back to its
unit. It is enabled: after a reboot of the host the committed release comes back by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ddops.command import Cmd, cmd, sh
from ddops.errors import CommandFailed, RefusedError
from ddops.supervise.base import Lookup, Order, ServiceState, read_state
from ddops.supervise.onhost import TAIL, OnHost
from ddops.supervise.process import STOP_DEADLINE_S

SCHEMA = "ddops.unitctl/1"
_UP = ("active", "activating", "reloading", "deactivating")
_DOWN = ("inactive", "failed", None)
_JOURNAL = 'journalctl -u "$1" -n 2000 --no-pager -o short-iso 2>&1 | tail -c "$2"'


class SystemdSupervisor(OnHost):
    """One host's systemd."""

    def render(self, order: Order, lookup: Lookup) -> Mapping[str, str]:
        """The unit as the release holds it: the host fills in its own names."""
        return {f"ddops-{order.service.name}.service": order.unit}

    def stage(self, order: Order, lookup: Lookup) -> Mapping[str, object]:
        """The unit lies in the release; systemd looks at it, and whether root can be had."""
        self._call("verify", order.service.name, order.digest)
        return {}

    def compare(self, order: Order, lookup: Lookup) -> Mapping[str, object]:
        """By the host's own `current`; see hostside/unitctl.py."""
        return self._call("compare", order.service.name)

    def logs(self, service: str, limit: int) -> Mapping[str, Cmd]:
        unit = f"/etc/systemd/system/ddops-{service}.service"
        return {
            "unit.txt": sh(TAIL, unit, str(limit)),
            **super().logs(service, limit),
            "systemd-journal.log": sh(_JOURNAL, f"ddops-{service}", str(limit)),
        }

    def submit(self, service: str) -> ServiceState:
        return read_state(self._call("start", service), _UP, _DOWN)

    def cancel(self, service: str) -> ServiceState:
        return read_state(self._call("stop", service), _UP, _DOWN)

    def forget(self, service: str) -> ServiceState:
        """Stop it and remove its unit."""
        return read_state(self._call("forget", service), _UP, _DOWN)

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
