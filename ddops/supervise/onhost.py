"""What the supervisors have in common: the engine runs on the host itself, under one folder."""

from __future__ import annotations

from collections.abc import Mapping

from ddops.command import Cmd, sh
from ddops.gates import Observation, observe
from ddops.inventory.model import Service
from ddops.layout import HostLayout
from ddops.transport import Transport

TAIL = 'tail -c "$2" -- "$1"'


class OnHost:
    """One host. `python` is the host's interpreter."""

    def __init__(self, transport: Transport, layout: HostLayout, python: str) -> None:
        self._transport = transport
        self._layout = layout
        self._python = python

    def observe(self, service: str, port: int, *, http: bool = True) -> Observation:
        return observe(self._transport, self._layout, self._python, service, port, http=http)

    def inside(self, service: str) -> Transport:
        return self._transport

    def logs(self, service: str, limit: int) -> Mapping[str, Cmd]:
        where = self._layout.service(service)
        files = {
            "launch-record.json": where.launch_record,
            "engine.log": f"{where.log}/engine.log",
            "journal.jsonl": self._layout.journal,
        }
        return {name: sh(TAIL, path, str(limit)) for name, path in files.items()}

    def endpoint(self, service: Service, port: int, seen: Observation | None) -> str:
        return f"{service.listen}:{port}"
