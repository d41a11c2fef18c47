"""Facts as `hostside/collect.py` reports them. None is "not known", never zero."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddops.command import cmd, python
from ddops.config.files import MISSHAPEN, parse_json, reason
from ddops.errors import CommandFailed, DdopsError
from ddops.hostside import source
from ddops.model import digest
from ddops.transport import Transport

SCHEMA = "ddops.facts/2"
#: /1 had no `commands`, `files` and `probes`; what needs them is UNKNOWN then.
READABLE = ("ddops.facts/1", SCHEMA)
COLLECT_DEADLINE_S = 150.0
SHELL_DEADLINE_S = 20.0
#: Child probes that travel with the collector.
PARTS = ("host", "env", "elf")
#: What changes by itself is no part of the facts' digest.
_VOLATILE = ("at", "collected_s", "disk", "unread", "commands", "probes", "files")
_VOLATILE_FIELDS = ("memory.used", "temperature.gpu", "pcie.link.gen.current",
                    "clocks_event_reasons.active", "fabric.state", "fabric.status")  # fmt: skip


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
        return digest({k: _steady(v) for k, v in self.raw.items() if k not in _VOLATILE})

    @property
    def chain_digest(self) -> str:
        """Like `digest`, with the engine's packages: what a proof by execution depends on."""
        probes = self.raw.get("probes")
        env = probes.get("env") if isinstance(probes, dict) else None
        packages = env.get("packages") if isinstance(env, dict) else None
        return digest([self.digest, packages])

    def raw_text(self, *path: str) -> str | None:
        """A text of the collection by its keys, or None."""
        value: object = self.raw
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, str) else None


def collect(
    transport: Transport,
    python_bin: str,
    engine_dir: str,
    root: str = "/",
    *,
    only: Sequence[str] = (),
) -> Facts:
    """Collect in one round trip. A host without Python 3.9 is a clean error.

    `only` these commands and no probes, which import torch: the GPUs' rows are always there.
    """
    words = ["--root", root, "--engine-dir", engine_dir, *(f"--only={name}" for name in only)]
    for name in PARTS if root == "/" and not only else ():
        packed = base64.b64encode(zlib.compress(source(f"collect_{name}").encode(), 9)).decode()
        words += ["--part", f"{name}={packed}"]
    script = python(source("collect"), *words, interpreter=python_bin)
    done = transport.run(script, deadline_s=COLLECT_DEADLINE_S)
    if done.rc in (126, 127):
        raise without_python(transport, python_bin)
    if not done.ok:
        raise CommandFailed(
            f"{transport.host}: facts could not be collected", rc=done.rc, stderr=done.err
        )
    return parse_facts(done.out)


#: POSIX sh alone: what a host without a usable Python still says of itself.
_SHELL = """
. /etc/os-release 2>/dev/null; printf '%s, %s\\n' "${PRETTY_NAME:-an unknown system}" "$(uname -m)"
for p in /usr/bin/python3* /usr/local/bin/python3* /opt/*/bin/python3; do
  case $p in *-config|*'*'*) continue;; esac
  [ -x "$p" ] && "$p" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && echo "$p"
done
exit 0
"""


def without_python(transport: Transport, python_bin: str) -> DdopsError:
    """The error for a host whose Python does not start, with what its shell can tell."""
    done = transport.run(cmd("sh", "-s", stdin=_SHELL.encode()), deadline_s=SHELL_DEADLINE_S)
    lines = done.out.splitlines() if done.ok else []
    other = next((line for line in lines[1:] if line.startswith("/")), None)
    found = f"it has {other}; set python in hosts.toml" if other else "install Python 3.9 or newer"
    return DdopsError(
        f"{transport.host}: no usable {python_bin} on the host"
        + (f" ({lines[0]})" if lines else ""),
        why="facts are collected by a script for Python 3.9 and newer, standard library only",
        next=f"{found} for {transport.host}" if other else found,
    )


def parse_facts(text: str) -> Facts:
    """Parse a collection. Anything that is not of the known schema is an error."""
    try:
        raw = parse_json(text)
        if raw["schema"] not in READABLE:
            raise ValueError(f"schema {raw['schema']!r}, want {SCHEMA!r}")
        return _facts(raw)
    except MISSHAPEN as error:
        raise DdopsError(
            "the collection of facts is not readable",
            why=reason(error),
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


def _steady(value: object) -> object:
    """GPU rows without what changes from one minute to the next."""
    if not (isinstance(value, list) and all(isinstance(r, dict) for r in value)):
        return value
    return [{k: v for k, v in r.items() if k not in _VOLATILE_FIELDS} for r in value]


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
