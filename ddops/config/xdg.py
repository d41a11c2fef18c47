"""Where a user's own files lie, by the XDG Base Directory rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Paths:
    """Folders of this user. None of them is made here."""

    config: Path
    cache: Path
    state: Path
    data: Path
    runtime: Path | None

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"


def paths(env: Mapping[str, str] | None = None) -> Paths:
    """All folders. `XDG_*` counts only as an absolute path, as its specification says."""
    env = os.environ if env is None else env
    home = Path(env.get("HOME") or Path.home())

    def folder(name: str, default: str) -> Path:
        value = env.get(name, "")
        return (Path(value) if value.startswith("/") else home / default) / "ddops"

    runtime = env.get("XDG_RUNTIME_DIR", "")
    return Paths(
        config=folder("XDG_CONFIG_HOME", ".config"),
        cache=folder("XDG_CACHE_HOME", ".cache"),
        state=folder("XDG_STATE_HOME", ".local/state"),
        data=folder("XDG_DATA_HOME", ".local/share"),
        runtime=Path(runtime) / "ddops" if runtime.startswith("/") else None,
    )
