"""Adding a waiver to the project's inventory, beside what people wrote there."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from ddops.config import Project
from ddops.config.files import reason
from ddops.config.toml import shown
from ddops.errors import DdopsError, UsageError

_HEAD = "# Checks that may fail, each with its reason and its last day.\n"


def add_waiver(
    project: Project, check: str, on: Sequence[str], why: str, owner: str, until: date
) -> str:
    """Append one `[[waiver]]` and answer the file's name; what was written before stays as it was.

    One write in append mode: two people at once leave two whole rows.
    """
    for name, text in (("reason", why), ("owner", owner)):
        if not text.strip() or not text.isprintable():
            raise UsageError(f"the {name} of a waiver is one line of text, got {text!r}")
    path = project.inventory / "waivers.toml"
    row = (
        f"\n[[waiver]]\ncheck = {_text(check)}\non = [{', '.join(map(_text, on))}]\n"
        f"reason = {_text(why.strip())}\nowner = {_text(owner)}\nuntil = {until.isoformat()}\n"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, row)
    except OSError as error:
        name = shown(path, project.root)
        raise DdopsError(f"the waiver could not be written to {name}", why=reason(error)) from error
    return shown(path, project.root)


def _append(path: Path, row: str) -> None:
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, ((_HEAD if size == 0 else "\n" if torn else "") + row).encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def _text(value: str) -> str:
    """A TOML basic string; for printable text its escapes are those of JSON."""
    return json.dumps(value, ensure_ascii=False)
