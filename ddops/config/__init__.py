"""The project, its settings, and reading the files people write. Nothing is read at import."""

from ddops.config.paths import Paths, paths
from ddops.config.project import Project, data_root, find_project, lookup
from ddops.config.secrets import is_secret_ref, resolve_secret, secret_ref_fault
from ddops.config.settings import Place, Settings, env_warnings, load_settings

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
