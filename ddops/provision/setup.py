"""A host's setup as steps: packages, users, files, kernel settings, units; and their undo."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddops.command import cmd
from ddops.config.files import read_data
from ddops.errors import CommandFailed, DdopsError, RefusedError
from ddops.hostside import joined
from ddops.inventory.model import Host
from ddops.inventory.setup import FileTable, SetupTable, table_values
from ddops.plan import Change, Proposal
from ddops.provision.side import NOTHING, HostSide, Query
from ddops.render import render

Lookup = Callable[[str], Path]
Resource = Mapping[str, object]
#: Installing packages and starting Fabric Manager take their time.
DO_DEADLINE_S = 3600.0
#: Which tables of a setup make a step together, and what the step is called.
_GROUPS = (
    ("setup:packages", "packages", ("require", "package")),
    ("setup:users", "users", ("user",)),
    ("setup:files", "files and folders", ("dir", "file", "line", "link")),
    ("setup:kernel", "kernel settings", ("sysctl", "module")),
    ("setup:units", "units", ("unit",)),
    ("setup:advice", "advice", ("advice",)),
)
_KEY = {"package": "name", "user": "name", "sysctl": "key", "module": "name", "unit": "name",
        "advice": "cmdline"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SetupStep:
    """Some resources of a host's setup, in their order. What was before is kept on the host."""

    id: str
    title: str
    side: HostSide
    resources: tuple[Resource, ...]

    def query(self) -> Query:
        return {"setup": self.resources}

    def observe(self) -> Proposal:
        rows = self.side.state(setup=self.resources)["setup"]
        changes, lines = set(), []
        for resource in self.resources:
            change, said = _row(rows[str(resource["id"])])
            changes.add(change)
            lines += said
        for change in (Change.UNKNOWN, Change.UPDATE, Change.CREATE):
            if change in changes:
                return Proposal(change, tuple(lines))
        return Proposal(Change.NONE, tuple(lines)) if lines else NOTHING

    def apply(self) -> None:
        ask_setup(self.side, "do", op=self.id, resources=list(self.resources))


def setup_steps(side: HostSide, host: Host, setup: SetupTable, lookup: Lookup) -> list[SetupStep]:
    """The steps of a setup, each of one group of tables; none for an empty setup."""
    steps = []
    for step_id, title, kinds in _GROUPS:
        found = tuple(r for kind in kinds for r in _resources(kind, host, setup, lookup))
        if found:
            steps.append(SetupStep(step_id, f"setup: {title} ({len(found)})", side, found))
    return steps


def undo_setup(side: HostSide, op: str, ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """Undo what was set up: what was undone, and what was left and why."""
    answer = ask_setup(side, "undo", op=op, ids=list(ids))
    return _texts(answer.get("done")), _texts(answer.get("left"))


def setup_manifest(side: HostSide) -> list[str]:
    """Ids of what was set up and not undone, the last change first."""
    rows = ask_setup(side, "manifest").get("rows")
    return [str(r["id"]) for r in rows] if isinstance(rows, list) else []


def ask_setup(side: HostSide, verb: str, **more: object) -> Mapping[str, object]:
    """One call of hostside/setup.py; as root through sudo where that is needed."""
    text = joined("setup_files", "setup_system", "setup_run", "setup")
    spec = json.dumps({"verb": verb, "state": side.layout.state, **more}).encode()
    host = side.transport.host
    answer: dict[str, object] = {}
    for words in ((side.python,), ("sudo", "-n", side.python)):
        done = side.transport.run(cmd(*words, "-c", text, stdin=spec), deadline_s=DO_DEADLINE_S)
        if not done.ok and words[0] == "sudo" and "sudo" in done.err:
            raise RefusedError(
                f"{host}: {answer['id']} needs root, and sudo wants a password",
                why=done.err.strip()[-300:],
                next=f"log in as root, or allow it in sudoers: on {host}, sudo -n true",
            )
        if not done.ok:
            raise CommandFailed(f"{host}: the setup's script failed", rc=done.rc, stderr=done.err)
        answer = json.loads(done.out)
        if answer["state"] != "root":
            break
    if answer["state"] != "ok":
        finished = _texts(answer.get("done"))
        raise DdopsError(
            f"{host}: {answer['id']} was not {'undone' if verb == 'undo' else 'done'}",
            why=f"{answer.get('why', '')}; {len(finished)} before it were",
            next=f"mend it and run: ddops provision {host}",
        )
    return answer


def _resources(kind: str, host: Host, setup: SetupTable, lookup: Lookup) -> Iterator[Resource]:
    for table in getattr(setup, kind):
        values = table_values(table)
        if isinstance(table, FileTable):
            values = {k: v for k, v in values.items() if k not in ("source", "template")}
            data = _content(table, host, lookup)
            values["content"] = base64.b64encode(data).decode()
        for key, value in values.items():
            if isinstance(value, str) and key != "content":
                values[key] = _filled(value, host)
        name = values.get(_KEY.get(kind, "path"))
        told = f"{name}: {values['line']}" if kind == "line" else name
        yield {"kind": kind, "id": f"{kind} {told}", **values}


def _content(table: FileTable, host: Host, lookup: Lookup) -> bytes:
    if table.source is not None:
        return read_data(lookup(table.source))
    if table.template is not None:
        values = {"host": host.name, "engine_dir": host.engine_dir, "vars": dict(host.vars)}
        return render(lookup, table.template, values).encode()
    return _filled(table.content or "", host).encode()


def _filled(text: str, host: Host) -> str:
    return text.replace("${engine_dir}", host.engine_dir).replace("${host}", host.name)


def _row(value: object) -> tuple[Change, list[str]]:
    if not isinstance(value, list) or len(value) != 2:
        raise DdopsError("the setup's script answered nothing readable")
    return Change(value[0]), [str(line) for line in value[1]]


def _texts(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else []
