"""Logging in with keys only: the agent's and the files', in OpenSSH's order. Never a prompt."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko  # type: ignore[import-untyped,unused-ignore]
from paramiko.agent import AgentSSH  # type: ignore[import-untyped,unused-ignore]
from paramiko.pkey import PublicBlob  # type: ignore[import-untyped,unused-ignore]

from ddops.errors import UnreachableError
from ddops.transport.hostkeys import fingerprint
from ddops.transport.sshconfig import SshSettings

_AGENT_TIMEOUT_S = 10.0


class Agent(AgentSSH):  # type: ignore[misc]
    """The agent behind one socket. paramiko's own knows $SSH_AUTH_SOCK alone."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(_AGENT_TIMEOUT_S)
            connection.connect(str(path))
            self._connect(connection)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._close()


@dataclass(slots=True)
class Login:
    """One try to log in. paramiko calls `authenticate`; what was tried is kept for the error."""

    host: str
    settings: SshSettings
    tried: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    locked: list[Path] = field(default_factory=list)

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Return once logged in; `UnreachableError` when nothing was accepted."""
        agent = self._open_agent()
        try:
            for label, key in self._candidates(agent):
                self.tried.append(label)
                try:
                    more = transport.auth_publickey(self.settings.user, key)
                except paramiko.BadAuthenticationType as error:
                    raise self._refused(f"the host takes only {error.allowed_types}") from error
                except paramiko.AuthenticationException:
                    if not transport.is_active():
                        raise self._refused("the host hung up after these") from None
                    continue
                if not more:
                    return []
                raise self._refused(f"the host asks for a second factor: {', '.join(more)}")
            if not self.tried and self._without_key(transport):
                return []
        finally:
            if agent is not None:
                agent.close()
        raise self._refused("")

    def _candidates(self, agent: Agent | None) -> Iterator[tuple[str, paramiko.PKey]]:
        """Agent keys of configured files, other agent keys unless IdentitiesOnly, then files."""
        held = list(agent.get_keys()) if agent is not None else []
        wanted = {blob for file in self.settings.identity_files for blob in _public_blobs(file)}
        configured = [key for key in held if key.blob in wanted]
        others = [] if self.settings.identities_only else [k for k in held if k not in configured]
        for key in (*configured, *others):
            yield f"agent key {fingerprint(key.blob)} {key.comment}".rstrip(), key
        in_agent = {key.blob for key in held}
        for file in self.settings.identity_files:
            if not in_agent & _public_blobs(file):
                yield from self._from_file(file)

    def _from_file(self, file: Path) -> Iterator[tuple[str, paramiko.PKey]]:
        try:
            key = paramiko.PKey.from_path(str(file))
        except FileNotFoundError:
            if self.settings.identities_only:  # otherwise it is one of ssh's seven default names
                self.unusable.append(f"{file}: missing")
            return
        except (TypeError, paramiko.PasswordRequiredException):
            # cryptography says TypeError for a key that needs a passphrase.
            self.unusable.append(f"{file}: needs a passphrase, and the agent does not hold it")
            self.locked.append(file)
            return
        except Exception as error:  # a key file can be wrong in any way its parser likes
            self.unusable.append(f"{file}: {type(error).__name__}: {error}")
            return
        for certificate in (Path(f"{file}-cert.pub"), *self.settings.certificate_files):
            blob = _certificate_for(key, certificate)
            if blob is not None:
                key.public_blob = blob
                yield f"{file} with certificate {certificate}", key
        key.public_blob = None
        yield str(file), key

    def _without_key(self, transport: paramiko.Transport) -> bool:
        """Some servers (a mesh VPN's) know the user by the network and take no key at all."""
        try:
            transport.auth_none(self.settings.user)
        except paramiko.SSHException:
            return False
        return True

    def _open_agent(self) -> Agent | None:
        if self.settings.agent is None:
            return None
        try:
            return Agent(self.settings.agent)
        except (OSError, paramiko.SSHException) as error:
            self.unusable.append(f"agent {self.settings.agent}: {error}")
            return None

    def _refused(self, why: str) -> UnreachableError:
        parts = [
            why,
            f"tried: {'; '.join(self.tried)}" if self.tried else "no key to try",
            f"not usable: {'; '.join(self.unusable)}" if self.unusable else "",
        ]
        load = f"ssh-add {self.locked[0]}" if self.locked else ""
        return UnreachableError(
            f"{self.host}: login as {self.settings.user} was refused",
            why="; ".join(part for part in parts if part),
            next=load or f"ssh -v {self.settings.alias} true",
        )


def _public_blobs(file: Path) -> set[bytes]:
    """The public key beside an identity file: how an agent's key is known to be that one's."""
    try:
        return {PublicBlob.from_file(f"{file}.pub").key_blob}
    except (OSError, ValueError):
        return set()


def _certificate_for(key: paramiko.PKey, file: Path) -> PublicBlob | None:
    """The certificate, if it was issued for this very key."""
    try:
        blob = PublicBlob.from_file(str(file))
    except (OSError, ValueError):
        return None
    body = key.asbytes()[4 + len(key.get_name()) :]  # what follows the type's length and name
    return blob if body in blob.key_blob and "-cert-" in blob.key_type else None
