"""A release as data: everything that makes a service run, and its one digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddops.model import digest

RELEASE_SCHEMA = "ddops.release/1"


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """How the engine is started. Paths, ports and places are `${engine_dir} ${port} ${rank}
    ${dist_addr}`, unexpanded.

    `secret_env` maps a variable to a reference (`env:NAME`), `api_key` is a reference or None;
    the values are no part of a release.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    secret_env: tuple[tuple[str, str], ...] = ()
    api_key: str | None = None
    stop_grace_s: int = 30

    def expand(self, values: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """argv and environment of one host. Only the known names are expanded."""

        def fill(text: str) -> str:
            for name, value in values.items():
                text = text.replace("${" + name + "}", value)
            return text

        return [fill(word) for word in self.argv], {k: fill(v) for k, v in self.env}


def release_content(
    *,
    service: str,
    upstream: str,
    series: str,
    plugin: str,
    launch: LaunchSpec,
    unit: str,
    lock: str,
    model: str,
    draft: str,
) -> dict[str, object]:
    """What the digest is taken of. The same on every host, and after a restore.

    `upstream` is engine and version; `series` and `plugin` are digests or empty; `lock` is the
    digest of the engine environment's inputs; `model` and `draft` are `name@revision`.
    """
    return {
        "schema": RELEASE_SCHEMA,
        "service": service,
        "upstream": upstream,
        "series": series,
        "plugin": plugin,
        "spec": {
            "argv": list(launch.argv),
            "env": dict(launch.env),
            "secret_env": dict(launch.secret_env),
            "api_key": launch.api_key,
            "stop_grace_s": launch.stop_grace_s,
            "unit": unit,
        },
        "lock": lock,
        "model": model,
        "draft": draft,
    }


def release_digest(content: Mapping[str, object]) -> str:
    """sha256 over the canonical JSON of the content, 64 hex digits."""
    return digest(content)
