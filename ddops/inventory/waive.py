"""Adding waivers to the project's inventory, beside what people wrote there."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from ddops.config import Project
from ddops.config.files import unwritten
from ddops.config.toml import MAX_BYTES, parse_toml, shown
from ddops.errors import ConfigError, RefusedError, UsageError

#: What a reason and an owner may have, in characters.
MOST_TEXT = 500
_HEAD = "# Checks that may fail, each with its reason and its last day.\n"


def add_waivers(
    project: Project,
    checks: Sequence[str],
    on: Sequence[str],
    why: str,
    owner: str,
    until: date,
    *,
    lab: bool = False,
) -> str:
    """Append a `[[waiver]]` for each check and answer the file's name; the rest stays as it was.

    Those of a `lab` host go to the lab's own inventory, and away with it: a waiver that names a
    host which is not there is a fault of the project's file.

    The new text is read before it is written: RefusedError where the file would be none of ours
    then. Two people at once leave the rows of both.
    """
    for name, text in (("reason", why), ("owner", owner)):
        if not text.strip() or not text.isprintable() or len(text) > MOST_TEXT:
            raise UsageError(
                f"the {name} of a waiver is one line of text, of 1 to {MOST_TEXT} characters, "
                f"got {text[:80]!r}{'...' if len(text) > 80 else ''}",
                next=f"say the {name} shortly, and the rest where the team keeps its notes",
            )
    rows = [
        {
            "check": _text(check),
            "on": f"[{', '.join(map(_text, on))}]",
            "reason": _text(why.strip()),
            "owner": _text(owner),
            "until": until.isoformat(),
        }
        for check in checks
    ]
    folder = project.lab / "inventory" if lab else project.inventory
    path = folder / "waivers.toml"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, rows, shown(path, project.root))
    except OSError as error:
        raise unwritten(path, error) from error
    return shown(path, project.root)


def _append(path: Path, rows: Sequence[Mapping[str, str]], name: str) -> None:
    """In append mode, so that the file keeps its owner and mode, and a link stays one."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        old = os.pread(handle, MAX_BYTES + 1, 0)
        start = _HEAD if not old else "" if old.endswith(b"\n") else "\n"
        new = (start + "".join(map(_table, rows))).encode()
        _judge(old + new, rows, path, name)
        try:
            if os.write(handle, new) != len(new):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)


def _judge(data: bytes, rows: Sequence[Mapping[str, str]], path: Path, name: str) -> None:
    """Raise RefusedError when this would be no file that ddops reads."""
    by_hand = ", ".join(map(_inline, rows))
    if len(data) > MAX_BYTES:
        raise RefusedError(
            f"{name} has no room for another waiver",
            why=f"it would be larger than {MAX_BYTES >> 20} MiB",
            next=f"remove waivers from {name} whose day is over",
        )
    try:
        parse_toml(data.decode("utf-8").replace("\r\n", "\n"), path, name)
    except (ConfigError, UnicodeDecodeError) as error:
        raise RefusedError(
            f"{name} was left as it is: behind what stands there, a [[waiver]] is not valid TOML",
            why=str(error), next=f"add to the list `waiver` of {name}: {by_hand}",
        ) from error  # fmt: skip


def _table(row: Mapping[str, str]) -> str:
    return "\n[[waiver]]\n" + "".join(f"{k} = {v}\n" for k, v in row.items())


def _inline(row: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{k} = {v}" for k, v in row.items()) + " }"


def _text(value: str) -> str:
    """A TOML basic string; for printable text its escapes are those of JSON."""
    return json.dumps(value, ensure_ascii=False)
