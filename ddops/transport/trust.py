"""The key that a host shows, where it would be pinned, and whether one is known already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddops.config.files import writing
from ddops.errors import UsageError
from ddops.transport.hostkeys import append_known_host, load_known_hosts
from ddops.transport.policy import ConnectPolicy
from ddops.transport.sshconfig import SshSettings, resolve
from ddops.transport.target import SshTarget


@dataclass(frozen=True, slots=True)
class Shown:
    """What a host shows now; nobody has logged in there. `file` is where it would be pinned."""

    kind: str
    key: str
    fingerprint: str
    settings: SshSettings
    file: Path

    @property
    def place(self) -> str:
        return f"{self.settings.hostname}:{self.settings.port}"

    def pin(self, *, replace: bool = False) -> None:
        """Write it into the known_hosts file that ssh is configured with."""
        name = self.settings.key_names[0]  # holds the port already, where it is another than 22
        with writing(self.file):
            append_known_host(self.file, f"{name} {self.kind} {self.key}", replace=replace)


def look_at_key(target: SshTarget, policy: ConnectPolicy | None = None) -> Shown:
    """Ask the host for its key. Raises UsageError where ssh has no file to pin into."""
    from ddops.transport.ssh import scan_host_key

    kind, key, fingerprint = scan_host_key(target, policy)
    settings = resolve(target.alias, target.config)
    if not settings.known_hosts:
        raise UsageError(f"{target.name}: ssh is configured with no known_hosts file to pin into")
    return Shown(kind, key, fingerprint, settings, settings.known_hosts[0])


def known_here(target: SshTarget) -> bool:
    """Whether a key is pinned or known for the host, from files here; the host is not asked."""
    if target.pin is not None:
        return True
    settings = resolve(target.alias, target.config)
    return any(not k.marker for k in load_known_hosts(settings.known_hosts, settings.key_names))
