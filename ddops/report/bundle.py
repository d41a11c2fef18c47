"""One archive for somebody who shall help: what is on record here, and what a host says. Redacted.

Every text goes through the redactor on its way in; nothing is written before. What could not be
had or could not be made safe is left out, and the manifest says why.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path

from ddops import __version__
from ddops.command import Redactor
from ddops.config.files import parse_json
from ddops.errors import DdopsError, UsageError
from ddops.ledger import Ledger

#: Rows of each table; the newest ones.
MOST = 200
_SERVICES = "(SELECT value FROM json_each(:services))"
_OPS = f"SELECT op_id FROM deployment WHERE service IN {_SERVICES}"  # noqa: S608 - constants
_TABLES: Mapping[str, str] = {
    "deployment": f"SELECT * FROM deployment WHERE service IN {_SERVICES}",  # noqa: S608
    "transition": f"SELECT * FROM transition WHERE op_id IN ({_OPS})",  # noqa: S608
    "launch": f"SELECT * FROM launch WHERE deployment IN ({_OPS})",  # noqa: S608
    "gate": f"SELECT * FROM gate WHERE deployment IN ({_OPS})",  # noqa: S608
    "release": f'SELECT * FROM "release" WHERE service IN {_SERVICES}',  # noqa: S608
    "run": f"""SELECT r.* FROM run r JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
WHERE c.service IN {_SERVICES}""",  # noqa: S608
    "retraction": "SELECT * FROM retraction",
    "conclusion": "SELECT *, at AS seq FROM conclusion",
}
_FACTS = """SELECT f.* FROM facts f JOIN host h ON h.ledger = f.ledger AND h.id = f.host
WHERE h.name = :host ORDER BY f.at DESC, f.seq DESC LIMIT 1"""
#: What a version matters of.
_PACKAGES = (
    "click", "fabric", "invoke", "paramiko", "cryptography", "jinja2", "sqlite-utils", "msgspec",
    "supervisor", "numpy", "scipy", "rich", "textual", "matplotlib",
)  # fmt: skip


@dataclass(slots=True)
class Bundle:
    """Files by their path in the archive. Texts come in unmasked and are kept masked."""

    redactor: Redactor
    files: dict[str, bytes] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)

    def text(self, name: str, text: str) -> None:
        self.files[name] = self.redactor(text).encode("utf-8", "backslashreplace")

    def json(self, name: str, value: object) -> None:
        masked = self.redactor.tree(value)
        self.text(name, json.dumps(masked, indent=1, sort_keys=True, default=str) + "\n")

    def rows(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        """JSON lines; columns that hold JSON are opened, so that their keys are looked at."""
        lines = (json.dumps(self.redactor.tree(_opened(r)), default=str) for r in rows)
        self.text(name, "".join(f"{line}\n" for line in lines))

    def without(self, name: str, why: str) -> None:
        self.left_out.append({"what": self.redactor(name), "why": self.redactor(why)})

    def remask(self) -> None:
        """Mask again with what was learned since: a host's secrets may stand in the ledger too."""
        for name, data in self.files.items():
            self.text(name, data.decode("utf-8", "backslashreplace"))


def _opened(row: Mapping[str, object]) -> dict[str, object]:
    out: dict[str, object] = {}
    for key, value in row.items():
        if isinstance(value, bytes):
            value = f"{len(value)} bytes"
        elif isinstance(value, str) and value[:1] in "{[":
            # A text that only begins like JSON stays a text.
            with suppress(ValueError):
                value = parse_json(value)
        out[key] = value
    return out


def add_here(bundle: Bundle, now: datetime, settings: Mapping[str, object]) -> None:
    """Versions and settings of the machine that ddops runs on."""
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    bundle.json(
        "here/versions.json",
        {"ddops": __version__, "python": platform.python_version(), "at": now.isoformat(),
         "platform": platform.platform(), "packages": versions},
    )  # fmt: skip
    bundle.json("here/settings.json", dict(settings))


def add_ledger(
    bundle: Bundle, ledger: Ledger, services: Sequence[str], hosts: Sequence[str]
) -> None:
    """The newest rows about these services, each host's newest facts, and the chain's head."""
    head = ledger.head()
    (version,) = ledger.query("SELECT sqlite_version() AS sqlite")
    bundle.json("ledger/head.json",
                {"ledger": head.ledger, "seq": head.seq, "hash": head.hash, **version})  # fmt: skip
    for table, sql in _TABLES.items():
        marks = {"services": json.dumps(list(services))} if ":services" in sql else {}
        newest = f"SELECT * FROM ({sql}) ORDER BY seq DESC LIMIT {MOST}"  # noqa: S608
        bundle.rows(f"ledger/{table}.jsonl", ledger.query(newest, marks, timeout_s=60.0))
    for host in hosts:
        rows = ledger.query(_FACTS, {"host": host})
        if rows:
            bundle.rows(f"hosts/{host}/facts.jsonl", rows)
        else:
            bundle.without(f"hosts/{host}/facts.jsonl", "no facts of this host are on record")


def write(bundle: Bundle, path: Path, now: datetime) -> int:
    """The archive, 0600, whole or not at all. Answers its size. An existing file is kept."""
    manifest = {
        "schema": "ddops.bundle/1",
        "ddops": __version__,
        "at": now.isoformat(),
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(bundle.files.items())
        },
        "left_out": bundle.left_out,
    }
    bundle.json("manifest.json", manifest)
    stem = path.name.removesuffix(".tar.gz")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(
            f"{path} is there already", why="a bundle is not written over",
            next="give another --out",
        ) from None  # fmt: skip
    except OSError as error:
        raise DdopsError(
            f"cannot write {path}", why=error.strerror or str(error),
            next=f"ls -ld {path.parent}",
        ) from error  # fmt: skip
    try:
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, data in sorted(bundle.files.items()):
                member = tarfile.TarInfo(f"{stem}/{name}")
                member.size, member.mode, member.mtime = len(data), 0o600, int(now.timestamp())
                archive.addfile(member, io.BytesIO(data))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path.stat().st_size
