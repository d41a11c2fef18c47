"""A service, a host and a suite to make cells of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddops.bench.prompts import Prompt, Prompts
from ddops.inventory.model import Host, Origin, Profile, Service, Spec
from ddops.inventory.suites import Suite

ORIGIN = Origin("project", Path("x.toml"))
HOST = Host(name="h", origin=ORIGIN, ssh="h", host_class="cpu", engine_env="sim")
SERVICE = Service(
    name="tiny", origin=ORIGIN, model="m", profile="p", hosts=("h",), gates=("exactness",)
)
SUITE = Suite(name="suites/x.toml", kind="concurrency", levels=(1, 4))
PROMPTS = Prompts("p.jsonl", "ab" * 32, (Prompt("a", "one"), Prompt("b", "two")))


def profile(name: str = "p", launch: dict[str, Any] | None = None, **spec: Any) -> Profile:
    return Profile(name=name, origin=ORIGIN, launch=launch or {}, spec=Spec(**spec))
