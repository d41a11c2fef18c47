"""Names for completion: fast, without schemas, and without a word about faults."""

from __future__ import annotations

from pathlib import Path

from ddops.config.project import Project, data_root
from ddops.config.toml import read_toml
from ddops.errors import ConfigError


def target_names(project: Project) -> tuple[str, ...]:
    """Hosts, groups, services and aliases that a target may be called, sorted.

    The same as `Inventory.names` of an inventory without faults; of a faulty one, what it can see.
    """
    hosts: dict[str, tuple[str, ...]] = {}
    others: set[str] = set()
    for folder in (
        data_root() / "inventory",
        project.lab / "inventory",
        project.inventory,
    ):
        others.update(p.stem for p in folder.glob("services/[!.]*.toml"))
        data = _read(folder / "hosts.toml")
        others.update(_table(data, "aliases"))
        for name, host in _table(data, "hosts").items():
            groups = host.get("groups") if isinstance(host, dict) else None
            words = groups if isinstance(groups, list) else []
            hosts[name] = tuple(g for g in words if isinstance(g, str))
    return tuple(sorted({*hosts, *(g for groups in hosts.values() for g in groups), *others}))


def _read(file: Path) -> dict[str, object]:
    try:
        return read_toml(file).data
    except ConfigError:
        return {}


def _table(data: dict[str, object], key: str) -> dict[str, object]:
    table = data.get(key)
    found = table if isinstance(table, dict) else {}
    return {k: v for k, v in found.items() if not k.startswith("x-")}
