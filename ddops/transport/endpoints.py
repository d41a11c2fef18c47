"""The way to a host: its jump hops and itself, each with what is known of its key. No paramiko."""

from __future__ import annotations

from dataclasses import dataclass

from ddops.errors import UsageError
from ddops.transport.hostkeys import Peer, load_known_hosts, load_revoked
from ddops.transport.sshconfig import SshSettings, parse_jump, resolve
from ddops.transport.target import SshTarget

_MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One host on the way: how to reach it, and whom to take it for."""

    settings: SshSettings
    peer: Peer


def resolve_endpoints(target: SshTarget) -> list[Endpoint]:
    """The hops and the target, in the order of connecting, with what is known of their keys."""
    settings = resolve(target.alias, target.config)
    hops = _hops(target, settings, 0)
    peers = [_peer(target.name, hop, None, hop.alias) for hop in hops]
    endpoints = [Endpoint(hop, peer) for hop, peer in zip(hops, peers, strict=True)]
    return [*endpoints, Endpoint(settings, _peer(target.name, settings, target.pin, ""))]


def _hops(target: SshTarget, settings: SshSettings, depth: int) -> list[SshSettings]:
    """As OpenSSH: the first hop's own ProxyJump applies, the others are reached through it."""
    if depth + len(settings.jumps) > _MAX_HOPS:
        raise UsageError(
            f"{target.name}: more than {_MAX_HOPS} jump hops",
            why=f"ProxyJump of {settings.alias} leads in a circle",
            next=f"ssh -G {target.alias}",
        )
    found: list[SshSettings] = []
    for number, jump in enumerate(settings.jumps):
        host, user, port = parse_jump(jump)
        hop = resolve(host, target.config, user=user, port=port)
        if number == 0:
            found += _hops(target, hop, depth + len(settings.jumps))
        found.append(hop)
    return found


def _peer(host: str, settings: SshSettings, pin: str | None, hop: str) -> Peer:
    known = load_known_hosts(settings.known_hosts, settings.key_names)
    if settings.revoked_keys is not None:
        known = (*load_revoked(settings.revoked_keys), *known)
    return Peer(host, settings.key_names, known, pin, hop)
