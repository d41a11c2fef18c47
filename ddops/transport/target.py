"""Which host an SSH transport talks to; data only, so that an inventory can build it cheaply."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ddops.errors import UsageError

_PIN = re.compile(r"SHA256:[A-Za-z0-9+/]{43}\Z")


def check_alias(alias: str) -> str:
    """An alias goes to `ssh` as a word: refuse what ssh could read as an option or not at all."""
    why = _no_destination(alias)
    if why is not None:
        raise UsageError(
            f"not an SSH destination: {alias!r}",
            why=why,
            next="name a host, an alias of ~/.ssh/config, user@host, or ssh://user@host:port",
        )
    return alias


def _no_destination(alias: str) -> str | None:
    """Why ssh would not take it, or would take it for something else than what was meant."""
    if not alias or alias.startswith("-") or any(c.isspace() or ord(c) < 32 for c in alias):
        return "it is empty, starts with '-' or holds blanks"
    if alias.startswith("ssh://"):
        try:
            parts = urlsplit(alias)
            named, _ = parts.hostname, parts.port
        except ValueError as error:
            return str(error)
        return None if named and not parts.path.strip("/") else "a URI names a host and no path"
    user, at, host = alias.rpartition("@")
    if not host or (at and not user):
        return "there is nothing on one side of the '@'"
    if ":" in host and not _is_ipv6(host):
        return f"ssh would look for a host of the name {host!r}: a port is no part of it"
    return None


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SshTarget:
    """`name` is the inventory's, `alias` what `ssh` would be called with.

    `config` replaces ~/.ssh/config. `pin` is the fingerprint `SHA256:...` of the host's key: with
    it the key must match, and no known_hosts entry is needed. Jump hops always need known_hosts.
    """

    name: str
    alias: str
    config: Path | None = None
    pin: str | None = None

    def __post_init__(self) -> None:
        check_alias(self.alias)
        if self.pin is not None and not _PIN.match(self.pin):
            raise UsageError(
                f"{self.name}: not a host key fingerprint: {self.pin!r}",
                why="a pin is SHA256: and 43 base64 characters, as ssh-keygen -l prints it",
                next=f"ddops host trust {self.name}",
            )
