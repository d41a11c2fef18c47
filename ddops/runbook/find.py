"""Runbooks by name: the project's `runbooks/` over the shipped ones.

A runbook can run commands. So a folder without a `ddops.toml` has none: what somebody else put
beside the files one happens to work on must not stand in for a shipped one.
"""

from __future__ import annotations

import re
from pathlib import Path

from ddops.config import Project, data_root, lookup
from ddops.config.words import unknown
from ddops.errors import UsageError
from ddops.runbook.model import Runbook
from ddops.runbook.parse import read_runbook

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")


def runbook_names(project: Project) -> dict[str, str]:
    """Every name, with where it is from: `project` or `shipped`."""
    found = dict.fromkeys(_below(data_root()), "shipped")
    if project.explicit and project.root != data_root():
        found |= dict.fromkeys(_below(project.root), "project")
    return dict(sorted(found.items()))


def _below(root: Path) -> list[str]:
    return [p.stem for p in (root / "runbooks").glob("*.toml") if _NAME.match(p.stem)]


def find_runbook(project: Project, name: str) -> Runbook:
    """Read and judge one. Raises UsageError for a name that is none, ConfigError for faults."""
    known = runbook_names(project)
    if name not in known:
        raise UsageError(unknown(name[:60], known, "runbook"), next="ddops runbook list")
    place = project if known[name] == "project" else Project(data_root())
    return read_runbook(lookup(place, f"runbooks/{name}.toml"), name, project.root)
