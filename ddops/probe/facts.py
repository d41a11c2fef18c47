"""Facts as `hostside/collect.py` reports them. None is "not known", never zero."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddops.command import python
from ddops.errors import CommandFailed, DdopsError
from ddops.hostside import source
from ddops.model import digest
from ddops.transport import Transport

SCHEMA = "ddops.facts/1"
COLLECT_DEADLINE_S = 60.0
#: What changes by itself is no part of the facts' digest.
_VOLATILE = ("at", "collected_s", "disk", "unread")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One row of `nvidia-smi --query-gpu`; memory in MiB."""

    index: int
    name: str | None
    uuid: str | None
    compute_cap: str | None
    memory_mib: int | None
    driver: str | None


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that holds, or would hold, the engine's folder. Bytes."""

    path: str
    exists: bool
    writable: bool
    free: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a host. `raw` is the whole collection; `unread` says what is missing."""

    simulated: bool
    hostname: str
    os: str | None
    arch: str
    glibc: str | None
    python: tuple[int, int, int]
    can_venv: bool
    disk: Disk
    gpus: tuple[Gpu, ...] | None
    driver: str | None
    driver_open: bool | None
    tools: Mapping[str, str | None]
    unread: Mapping[str, str]
    raw: Mapping[str, object]

    @property
    def digest(self) -> str:
        """sha256 over what does not change by itself, 64 hex digits."""
        return digest({k: v for k, v in self.raw.items() if k not in _VOLATILE})


def collect(transport: Transport, python_bin: str, engine_dir: str, root: str = "/") -> Facts:
    """Collect in one round trip. A host without Python 3.9 is a clean error."""
    script = python(
        source("collect"), "--root", root, "--engine-dir", engine_dir, interpreter=python_bin
    )
    done = transport.run(script, deadline_s=COLLECT_DEADLINE_S)
    if done.rc == 127:
        raise DdopsError(
            f"{transport.host}: no {python_bin} on the host",
            why="facts are collected by a Python script, standard library only",
            next=f"install Python 3.9 or newer, or set python in hosts.toml for {transport.host}",
        )
    if not done.ok:
        raise CommandFailed(
            f"{transport.host}: facts could not be collected", rc=done.rc, stderr=done.err
        )
    return parse_facts(done.out)


def parse_facts(text: str) -> Facts:
    """Parse a collection. Anything that is not of the known schema is an error."""
    try:
        raw = json.loads(text)
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}, want {SCHEMA!r}")
        return _facts(raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DdopsError(
            "the collection of facts is not readable",
            why=f"{type(error).__name__}: {error}",
            next="collect it anew with this version of ddops",
        ) from error


def _facts(raw: dict[str, Any]) -> Facts:
    disk = raw["disk"]
    driver = raw["driver"] or {}
    version = str(raw["python"]["version"]).split(".")
    rows = raw["gpus"]
    return Facts(
        simulated=raw["simulated"] is True,
        hostname=str(raw["identity"]["hostname"]),
        os=_text(raw["os"]["pretty"]),
        arch=str(raw["os"]["arch"]),
        glibc=_text(raw["os"]["glibc"]),
        python=(int(version[0]), int(version[1]), int(version[2])),
        can_venv=raw["python"]["venv"] is True,
        disk=Disk(
            str(disk["path"]),
            disk["exists"] is True,
            disk["writable"] is True,
            int(str(disk["free_bytes"])),
        ),
        gpus=tuple(_gpu(r) for r in rows) if isinstance(rows, list) else None,
        driver=_text(driver.get("version")),
        driver_open=bool(driver["open"]) if "open" in driver else None,
        tools={k: _text(v) for k, v in raw["tools"].items()},
        unread={k: str(v) for k, v in raw["unread"].items()},
        raw=raw,
    )


def _gpu(row: dict[str, object]) -> Gpu:
    memory = _text(row["memory.total"])
    return Gpu(
        index=int(str(row["index"])),
        name=_text(row["name"]),
        uuid=_text(row["uuid"]),
        compute_cap=_text(row["compute_cap"]),
        memory_mib=int(memory) if memory and memory.isdigit() else None,
        driver=_text(row["driver_version"]),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
