"""`[backup]` of ddops.toml: where snapshots go, what they leave out, how many are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ddops.config.schema import Fault, decode, problems
from ddops.config.secrets import secret_ref_fault
from ddops.config.toml import raise_all, read_toml

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]


class GitTable(Struct, frozen=True, kw_only=True):
    """A bare git repository over SSH. `ssh` is what ssh would be called with."""

    ssh: Annotated[
        str, Meta(pattern=r"^[^-\s][^\s]*$", description="what ssh would be called with")
    ]
    path: Annotated[str, Meta(pattern=r"^/", description="an absolute path on that machine")]
    ssh_config: Text | None = None
    host_key: Annotated[str, Meta(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")] | None = None


class ResticTable(Struct, frozen=True, kw_only=True):
    """A restic repository, as restic spells it: a path, `sftp:HOST:/PATH`, `rest:URL`, `s3:...`.

    `password` is a reference to a secret. `env` are variables restic is given, such as keys of
    an object store; their values may be references too.
    """

    repository: Text
    password: Text
    ssh_config: Text | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    check_percent: Annotated[int, Meta(ge=1, le=100)] = 10


class BackupTable(Struct, frozen=True, kw_only=True):
    """`keep` snapshots of each host stay at every place; without it none is ever removed."""

    git: GitTable | None = None
    restic: ResticTable | None = None
    keep: Count | None = None
    allow: tuple[Text, ...] = ()
    large_mb: Count = 64


def load_backup(file: Path, *, base: Path | None = None) -> BackupTable:
    """The `[backup]` of a file; an empty one where there is no file. Raises ConfigError."""
    if not file.exists():
        return BackupTable()
    document = read_toml(file, base=base)
    table = document.data.get("backup", {})
    decoded = decode(table, BackupTable, ("backup",))
    faults = [*decoded.faults]
    restic = decoded.value.restic if decoded.value else None
    if restic is not None and (wrong := secret_ref_fault(restic.password)):
        faults.append(Fault(("backup", "restic", "password"), wrong))
    raise_all(problems(document, faults))
    return decoded.value or BackupTable()
