"""Reading one inventory folder after another: entries by name, and every fault found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ddops.config.files import reason
from ddops.config.locate import KeyPath
from ddops.config.schema import Fault, decode, problems
from ddops.config.toml import Document, read_toml, shown
from ddops.config.words import kind as kind_of
from ddops.config.words import nearest, unknown
from ddops.errors import ConfigError, Problem
from ddops.inventory.checks import host_faults, name_fault, profile_faults, service_faults
from ddops.inventory.model import (
    Alias,
    Host,
    HostTable,
    Origin,
    OriginKind,
    Profile,
    ProfileTable,
    Service,
    ServiceTable,
    Waiver,
    WaiverTable,
)

_FILES = ("hosts.toml", "waivers.toml")


class Reader:
    """Takes folders from the weakest to the strongest; a later entry replaces one of its name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.hosts: dict[str, Host] = {}
        self.services: dict[str, Service] = {}
        self.profiles: dict[str, Profile] = {}
        self.aliases: dict[str, Alias] = {}
        self.waivers: list[Waiver] = []
        #: The line of each service's `profile`, for what can be judged only after merging.
        self.profile_lines: dict[str, int] = {}

    def folder(self, kind: OriginKind, folder: Path) -> None:
        for path in self._toml_files(folder):
            if path.name == "hosts.toml":
                self._hosts(kind, path)
            elif path.name == "waivers.toml":
                self._waivers(kind, path)
            else:
                near = nearest(path.name, _FILES)
                self._fault(
                    path,
                    "not a file of an inventory; it has hosts.toml, waivers.toml, services/"
                    " and profiles/" + (f"; nearest is `{near}`" if near else ""),
                )
        for path in self._toml_files(folder / "services"):
            self._service(kind, path)
        for path in self._toml_files(folder / "profiles"):
            self._profile(kind, path)

    def _toml_files(self, folder: Path) -> list[Path]:
        """Sorted. Hidden files are an editor's, and files of other kinds are not ours."""
        try:
            names = sorted(os.listdir(folder)) if os.path.lexists(folder) else []
        except OSError as error:
            self._fault(folder, f"cannot be read: {reason(error)}")
            return []
        return [folder / n for n in names if n.endswith(".toml") and not n.startswith(".")]

    def _fault(self, path: Path, message: str) -> None:
        self.problems.append(Problem(shown(path, self.root), 0, "", message))

    def _read(self, path: Path) -> Document | None:
        try:
            return read_toml(path, base=self.root)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _hosts(self, kind: OriginKind, path: Path) -> None:
        document = self._read(path)
        if document is None:
            return
        faults: list[Fault] = [
            Fault((key,), unknown(key, ("hosts", "aliases")))
            for key in document.data
            if key not in ("hosts", "aliases") and not key.startswith("x-")
        ]
        for name, table in _tables(document.data, "hosts", faults):
            at: KeyPath = ("hosts", name)
            if wrong := name_fault(name, "host"):
                faults.append(Fault(at, wrong))
            decoded = decode(table, HostTable, at)
            faults += decoded.faults
            if decoded.value is not None:
                faults += _below(at, host_faults(decoded.value))
                origin = Origin(kind, path, document.lines.of(at))
                self.hosts[name] = Host(**_fields(decoded.value), name=name, origin=origin)
        for name, target in _tables(document.data, "aliases", faults):
            at = ("aliases", name)
            if wrong := name_fault(name, "alias"):
                faults.append(Fault(at, wrong))
            if not isinstance(target, str) or not target:
                faults.append(Fault(at, f"expected a name, got {kind_of(target)}"))
            else:
                origin = Origin(kind, path, document.lines.of(at))
                self.aliases[name] = Alias(name, target, origin)
        self.problems += problems(document, faults)

    def _waivers(self, kind: OriginKind, path: Path) -> None:
        document = self._read(path)
        if document is None:
            return
        faults: list[Fault] = [
            Fault((key,), unknown(key, ("waiver",)))
            for key in document.data
            if key != "waiver" and not key.startswith("x-")
        ]
        rows = document.data.get("waiver", [])
        if not isinstance(rows, list):
            faults.append(Fault(("waiver",), f"expected [[waiver]] tables, got {kind_of(rows)}"))
            rows = []
        for n, row in enumerate(rows):
            decoded = decode(row, WaiverTable, ("waiver", n))
            faults += decoded.faults
            if decoded.value is not None:
                origin = Origin(kind, path, document.lines.of(("waiver", n)))
                self.waivers.append(Waiver(**_fields(decoded.value), origin=origin))
        self.problems += problems(document, faults)

    def _service(self, kind: OriginKind, path: Path) -> None:
        document = self._read(path)
        if document is None:
            return
        decoded = decode(document.data, ServiceTable)
        faults = [*decoded.faults]
        if decoded.value is not None:
            faults += service_faults(decoded.value, document.data)
            self.profile_lines[path.stem] = document.lines.of(("profile",))
            self.services[path.stem] = Service(
                **_fields(decoded.value), name=path.stem, origin=Origin(kind, path)
            )
        self._finish(document, faults, name_fault(path.stem, "service"))

    def _profile(self, kind: OriginKind, path: Path) -> None:
        document = self._read(path)
        if document is None:
            return
        decoded = decode(document.data, ProfileTable)
        faults = [*decoded.faults]
        if decoded.value is not None:
            # A table that lost a key to a fault is not judged further: it would seem another one.
            hurt = {f.path[0] for f in decoded.faults if f.path}
            faults += [f for f in profile_faults(decoded.value) if f.path[0] not in hurt]
            self.profiles[path.stem] = Profile(
                **_fields(decoded.value), name=path.stem, origin=Origin(kind, path)
            )
        self._finish(document, faults, name_fault(path.stem, "profile"))

    def _finish(self, document: Document, faults: Iterable[Fault], wrong_name: str) -> None:
        if wrong_name:
            self.problems.append(Problem(document.name, 0, "", wrong_name))
        self.problems += problems(document, faults)


def _tables(data: Mapping[str, object], key: str, faults: list[Fault]) -> list[tuple[str, object]]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        faults.append(Fault((key,), f"expected a table, got {kind_of(table)}"))
        return []
    return [(k, v) for k, v in table.items() if not k.startswith("x-")]


def _below(at: KeyPath, faults: Iterable[Fault]) -> list[Fault]:
    return [Fault((*at, *f.path), f.message) for f in faults]


def _fields(table: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(table, name) for name in table.__struct_fields__}
