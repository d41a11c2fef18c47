"""known_hosts, and the one judgement over a host's key. No paramiko, no network.

paramiko's own table skips `@revoked` and `@cert-authority` lines silently, knows no patterns and
keeps no line numbers, so it cannot refuse a revoked key or say which entry a new key contradicts.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ddops.errors import HostKeyError

_REVOKED, _AUTHORITY = "@revoked", "@cert-authority"


def fingerprint(blob: bytes) -> str:
    """`SHA256:...`, as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a known_hosts file. `marker` is `@revoked`, `@cert-authority` or empty."""

    hosts: str
    keytype: str
    blob: bytes
    marker: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def covers(self, name: str) -> bool:
        """Whether the line speaks of `name`: hashed, or a list of patterns with negations."""
        if self.hosts.startswith("|1|"):
            return _hash_matches(self.hosts, name)
        found = False
        for pattern in self.hosts.lower().split(","):
            if pattern.startswith("!") and _matches(pattern[1:], name):
                return False
            found = found or _matches(pattern, name)
        return found


@dataclass(frozen=True, slots=True)
class Peer:
    """Whose key is judged, and against what. `pin` replaces known_hosts for the target only."""

    host: str
    names: tuple[str, ...]
    known: tuple[KnownKey, ...]
    pin: str | None = None
    #: A hop's alias; empty for the target itself.
    hop: str = ""

    @property
    def label(self) -> str:
        return f"{self.host}: jump host {self.hop}" if self.hop else self.host


def parse_known_hosts(text: str, file: str) -> tuple[KnownKey, ...]:
    """Every readable line; comments and lines of unknown form are passed over."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) < 3 or marker not in ("", _REVOKED, _AUTHORITY):
            continue
        with contextlib.suppress(binascii.Error, ValueError):
            blob = base64.b64decode(words[2], validate=True)
            found.append(KnownKey(words[0], words[1], blob, marker, file, number))
    return tuple(found)


def load_known_hosts(files: Iterable[Path], names: Sequence[str] = ()) -> tuple[KnownKey, ...]:
    """The lines of all files that exist; one that exists and cannot be read is an error.

    With `names`, only the lines that speak of one of them.
    """
    found: list[KnownKey] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            # It may hold the @revoked line that matters.
            raise HostKeyError(f"{file} cannot be read", why=str(error)) from error
        table = _table(text, str(file))
        found += table.about(names) if names else table.entries
    return tuple(found)


class _Table:
    """A file's lines, found by name: a fleet's file has a line or more for each of its hosts."""

    def __init__(self, entries: tuple[KnownKey, ...]) -> None:
        self.entries = entries
        self._plain: dict[str, list[KnownKey]] = {}
        self._others: list[KnownKey] = []
        for entry in entries:
            if any(c in entry.hosts for c in "*?!|"):
                self._others.append(entry)
                continue
            for name in set(entry.hosts.lower().split(",")):
                self._plain.setdefault(name, []).append(entry)

    def about(self, names: Sequence[str]) -> list[KnownKey]:
        """In the file's order."""
        found = {e.line: e for name in names for e in self._plain.get(name.lower(), ())}
        found |= {e.line: e for e in self._others if _speaks(e, names)}
        return [found[line] for line in sorted(found)]


@lru_cache(maxsize=8)
def _table(text: str, file: str) -> _Table:
    """By the text, so that a file which was mended is read anew."""
    return _Table(parse_known_hosts(text, file))


def load_revoked(file: Path) -> tuple[KnownKey, ...]:
    """A RevokedHostKeys file of plain public keys. As with OpenSSH, unreadable refuses all."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise HostKeyError(f"RevokedHostKeys {file} cannot be read", why=str(error)) from error
    if data.startswith(b"SSHKRL"):
        raise HostKeyError(
            f"RevokedHostKeys {file} is a binary key revocation list",
            why="only lists of public keys are understood here",
            next="list the revoked keys as text, or as @revoked lines in known_hosts",
        )
    lines = data.decode("utf-8", "surrogateescape").splitlines()
    return parse_known_hosts("\n".join(f"@revoked * {line}" for line in lines), str(file))


def key_types(peer: Peer) -> tuple[str, ...]:
    """The key types to ask the host for first: those by which it is known here."""
    entries = _entries(peer)
    pinned = [e.keytype for e in entries if peer.pin == fingerprint(e.blob)]
    return tuple(dict.fromkeys(pinned if peer.pin else [e.keytype for e in entries]))


def check_key(peer: Peer, keytype: str, blob: bytes) -> None:
    """`HostKeyError` unless the key is the pinned one, or is known and nothing is pinned."""
    shown = f"{keytype} {fingerprint(blob)}"
    for entry in peer.known:
        if entry.marker == _REVOKED and entry.blob == blob and _speaks(entry, peer.names):
            raise HostKeyError(
                f"{peer.label}: the host key is revoked",
                why=f"{shown} is marked @revoked in {entry.place}",
                next="do not connect; ask who revoked it",
            )
    if peer.pin is not None:
        if fingerprint(blob) != peer.pin:
            raise _changed(peer, shown, f"{peer.pin} (pinned in the inventory)")
        return
    entries = _entries(peer)
    if any(entry.blob == blob for entry in entries):
        return
    # Under the bare name of a host on another port a key may match, but not contradict.
    exact = [e for e in entries if e.covers(peer.names[0])]
    if exact:
        old = next((e for e in exact if e.keytype == keytype), exact[0])
        raise _changed(peer, shown, f"{old.keytype} {fingerprint(old.blob)} ({old.place})")
    raise _unknown(peer, shown)


def known_hosts_line(hostname: str, port: int, keytype: str, key_base64: str) -> str:
    """A line for a known_hosts file, without a newline."""
    name = hostname.lower() if port == 22 else f"[{hostname.lower()}]:{port}"
    return f"{name} {keytype} {key_base64}"


def append_known_host(path: Path, line: str, *, replace: bool = False) -> None:
    """Add a line to a known_hosts file, by a rename, mode 0600. A line already there stays alone.

    `replace` drops the older plain lines for the same name: after a reinstall the old key must
    not stay valid beside the new one.
    """
    path = path.resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # two at once would lose one line
        try:
            old = path.read_bytes().decode("utf-8", "surrogateescape").splitlines()
        except FileNotFoundError:
            old = []
        name = line.split()[0]
        kept = [o for o in old if o != line and not (replace and _is_plain_line_of(o, name))]
        _write_private(path, "\n".join([*kept, line]) + "\n")
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode("utf-8", "surrogateescape"))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _is_plain_line_of(line: str, name: str) -> bool:
    words = line.split()
    if len(words) < 3 or words[0].startswith(("@", "#")):
        return False
    return words[0].lower() == name or _hash_matches(words[0], name)


def _entries(peer: Peer) -> list[KnownKey]:
    return [e for e in peer.known if not e.marker and _speaks(e, peer.names)]


def _speaks(entry: KnownKey, names: Sequence[str]) -> bool:
    return any(entry.covers(name) for name in names)


def _changed(peer: Peer, shown: str, expected: str) -> HostKeyError:
    mend = "correct that known_hosts line" if peer.hop else f"ddops host trust {peer.host}"
    return HostKeyError(
        f"{peer.label}: the host key has changed",
        why=f"it shows {shown}, expected {expected}; a reinstalled host does this, "
        "and so does somebody in between",
        next=f"compare the fingerprint with the host's owner, then: {mend}",
    )


def _unknown(peer: Peer, shown: str) -> HostKeyError:
    authority = [e for e in peer.known if e.marker == _AUTHORITY and _speaks(e, peer.names)]
    why = f"it shows {shown}, and {peer.names[0]} is in no known_hosts file"
    if authority:
        why = (
            f"{authority[0].place} trusts a certificate authority for it, but host certificates "
            f"cannot be verified here; its plain key is {shown}"
        )
    if peer.hop:
        mend = f"connect once with `ssh {peer.hop}`, comparing the fingerprint"
    else:
        mend = f"ddops host trust {peer.host}"
    return HostKeyError(f"{peer.label}: the host key is not known", why=why, next=mend)


def _matches(pattern: str, name: str) -> bool:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), name.lower(), re.DOTALL) is not None


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        _, version, salt, digest = hashed.split("|")
        key, wanted = base64.b64decode(salt), base64.b64decode(digest)
    except (ValueError, binascii.Error):
        return False
    made = hmac.new(key, name.lower().encode("utf-8", "surrogateescape"), hashlib.sha1).digest()
    return version == "1" and hmac.compare_digest(made, wanted)
