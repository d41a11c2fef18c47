"""The project, its settings, and reading the files people write. Nothing is read at import.

Settings and schemas load on first use: finding the project, which completion does at every key,
must not pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddops.config.project import Project, data_root, find_project, lookup
from ddops.config.xdg import Paths, paths

if TYPE_CHECKING:
    from ddops.config.secrets import is_secret_ref, resolve_secret, secret_ref_fault
    from ddops.config.settings import Place, Settings, env_warnings, load_settings

_LATER = {
    "Place": "settings",
    "Settings": "settings",
    "env_warnings": "settings",
    "is_secret_ref": "secrets",
    "load_settings": "settings",
    "resolve_secret": "secrets",
    "secret_ref_fault": "secrets",
}

__all__ = [
    "Paths",
    "Place",
    "Project",
    "Settings",
    "data_root",
    "env_warnings",
    "find_project",
    "is_secret_ref",
    "load_settings",
    "lookup",
    "paths",
    "resolve_secret",
    "secret_ref_fault",
]


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(name)
    import importlib

    return getattr(importlib.import_module(f"ddops.config.{_LATER[name]}"), name)
