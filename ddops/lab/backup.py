"""The lab's backup place: an sshd of its own, for a bare git and a restic repository."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable

from ddops.lab.host import place
from ddops.lab.spec import MAX_HOSTS, LabHost, LabPaths

NAME = "lab-backup"


def place_backup(hosts: Iterable[LabHost]) -> LabHost:
    """An address and ports behind those of all hosts a lab can have."""
    return place(NAME, MAX_HOSTS + 1, {p for h in hosts for p in (h.ssh_port, h.service_port)})


def write_backup(paths: LabPaths, host: LabHost) -> None:
    """The lab's `[backup]`, and the password of its restic repository."""
    password = paths.dir / "restic-password"
    password.touch(mode=0o600)
    password.write_text(secrets.token_hex(16) + "\n")
    folder = paths.host(host.name)
    git = {"ssh": host.name, "ssh_config": str(paths.ssh_config), "path": f"{folder}/snapshots.git"}
    restic = {"repository": f"sftp:{host.name}:{folder}/restic", "password": f"file:{password}",
              "ssh_config": str(paths.ssh_config)}  # fmt: skip
    text = _table("backup.git", git) + _table("backup.restic", restic)
    descriptor = os.open(paths.backup, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as f:
        f.write(text)


def _table(name: str, values: dict[str, str]) -> str:
    rows = (f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in values.items())
    return f"[{name}]\n{''.join(rows)}\n"
