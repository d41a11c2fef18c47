"""JSON Schema of every file people write, for editors and for `ddops config schema`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ddops.config.settings import ProjectTable
from ddops.inventory.model import HostsFile, ProfileTable, ServiceTable, WaiversFile
from ddops.inventory.setup import SetupTable
from ddops.inventory.suites import SuiteTable

_FILES: dict[str, type] = {
    "ddops.toml": ProjectTable,
    "inventory/hosts.toml": HostsFile,
    "inventory/waivers.toml": WaiversFile,
    "inventory/services/*.toml": ServiceTable,
    "inventory/profiles/*.toml": ProfileTable,
    "suites/**/*.toml": SuiteTable,
    "setup/*.toml": SetupTable,
}


def json_schema(more: Mapping[str, type] | None = None) -> dict[str, dict[str, object]]:
    """A schema by the files it is for. Keys that start with `x-` are free, others are closed.

    `more` names files whose types live in layers above this one.
    """
    head: dict[str, object] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        name: {**head, "title": name, **_closed(msgspec.json.schema(table))}
        for name, table in {**_FILES, **(more or {})}.items()
    }


def _closed(node: dict[str, object]) -> dict[str, object]:
    """Close every object that names its properties, but for the free keys."""
    out = {key: _inside(value) for key, value in node.items()}
    # TOML has no null: a default of None only says that the key may be left out.
    if node.get("default", ...) is None:
        del out["default"]
    if "type" in node and "properties" in node:
        out["additionalProperties"] = False
        out["patternProperties"] = {"^x-": {}}
    return out


def _inside(value: object) -> object:
    if isinstance(value, dict):
        return _closed(value)
    return [_inside(v) for v in value] if isinstance(value, list) else value
