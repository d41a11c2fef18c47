"""What OpenSSH would do for an alias, asked from `ssh -G`: Include, Match and all.

`parse_ssh_g` is pure. What `ssh -G` prints unexpanded (`~`, `%h`, `${VAR}`) is expanded here.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddops.errors import UnreachableError, UsageError
from ddops.transport.target import check_alias

_TIMEOUT_S = 15.0
_TOKEN = re.compile(r"%(.)")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: `ssh -G` prints several paths on a line without quotes; each starts at the root or at home.
_NEXT_PATH = re.compile(r"\s+(?=[/~])")


@dataclass(frozen=True, slots=True)
class SshSettings:
    """The part of an alias's settings that this transport acts on."""

    alias: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    certificate_files: tuple[Path, ...]
    identities_only: bool
    #: Socket of the agent; `None` for no agent.
    agent: Path | None
    known_hosts: tuple[Path, ...]
    revoked_keys: Path | None
    #: HostKeyAlias: the name the key is kept under, instead of the address.
    key_alias: str | None
    connect_timeout_s: float | None
    jumps: tuple[str, ...]
    proxy_command: str | None

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names known_hosts may hold this host's key under, the exact one first."""
        if self.key_alias:
            return (self.key_alias,)
        host = self.hostname.lower()
        return (host,) if self.port == 22 else (f"[{host}]:{self.port}", host)


def resolve(
    alias: str, config: Path | None = None, *, user: str | None = None, port: int | None = None
) -> SshSettings:
    """Ask `ssh -G`. `UsageError` when the configuration is wrong."""
    words = ["ssh", "-G"]
    words += ["-F", str(config)] if config else []
    words += ["-l", user] if user else []
    words += ["-p", str(port)] if port else []
    try:
        answer = subprocess.run(
            [*words, "--", check_alias(alias)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise UsageError(
            "the program `ssh` is missing here",
            why="it resolves aliases, Include and Match exactly as OpenSSH does",
            next="install the OpenSSH client (Debian: apt-get install openssh-client)",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(
            f"{alias}: `ssh -G` did not answer within {_TIMEOUT_S:g} s",
            why="a `Match exec` or a name lookup of the SSH configuration hangs",
            next=f"ssh -G {alias}",
        ) from error
    if answer.returncode != 0:
        raise UsageError(
            f"{alias}: the SSH configuration is wrong",
            why="; ".join(answer.stderr.decode(errors="replace").strip().splitlines()),
            next=f"{' '.join(words)} {alias}",
        )
    return parse_ssh_g(answer.stdout.decode(errors="surrogateescape"), alias, os.environ, home())


def parse_ssh_g(text: str, alias: str, env: Mapping[str, str], home_dir: str) -> SshSettings:
    """The settings in the output of `ssh -G`."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value.strip())

    def one(key: str) -> str | None:
        value = values.get(key, ["none"])[-1]
        return None if value.lower() == "none" or not value else value

    hostname, user = one("hostname") or alias, one("user") or ""
    tokens = {"h": hostname, "p": one("port") or "22", "r": user, "n": alias, "d": home_dir}
    tokens |= {"u": _login(), "i": str(os.getuid()), "k": one("hostkeyalias") or alias, "%": "%"}

    def paths(key: str) -> tuple[Path, ...]:
        listed = [p for line in values.get(key, []) for p in _NEXT_PATH.split(line) if p]
        full = [expand(p, tokens, env, home_dir) for p in listed if p.lower() != "none"]
        return tuple(Path(p) for p in dict.fromkeys(full))

    if one("proxyusefdpass") == "yes":
        raise UsageError(
            f"{alias}: ProxyUseFdpass is not supported", next="use ProxyJump or a plain command"
        )
    command, revoked, timeout = one("proxycommand"), paths("revokedhostkeys"), one("connecttimeout")
    return SshSettings(
        alias=alias,
        hostname=hostname,
        port=int(tokens["p"]),
        user=user,
        identity_files=paths("identityfile"),
        certificate_files=paths("certificatefile"),
        identities_only=one("identitiesonly") == "yes",
        agent=_agent(values.get("identityagent", [""])[-1], tokens, env, home_dir),
        known_hosts=(*paths("userknownhostsfile"), *paths("globalknownhostsfile")),
        revoked_keys=revoked[0] if revoked else None,
        key_alias=one("hostkeyalias"),
        connect_timeout_s=float(timeout) if timeout and float(timeout) > 0 else None,
        jumps=tuple(part.strip() for part in (one("proxyjump") or "").split(",") if part.strip()),
        proxy_command=_fill(command, tokens) if command else None,
    )


def expand(value: str, tokens: Mapping[str, str], env: Mapping[str, str], home_dir: str) -> str:
    """`~`, `%x` and `${VAR}` as OpenSSH does for file names."""
    if value == "~" or value.startswith("~/"):
        value = home_dir + value[1:]

    def variable(match: re.Match[str]) -> str:
        if match[1] not in env:
            raise UsageError(f"the SSH configuration needs the unset variable {match[1]}")
        return env[match[1]]

    return _VARIABLE.sub(variable, _fill(value, tokens))


def parse_jump(jump: str) -> tuple[str, str | None, int | None]:
    """Host, user and port of one ProxyJump hop: `[user@]host[:port]`, also as `ssh://` URI."""
    rest = jump.removeprefix("ssh://").rstrip("/")
    user, _, place = rest.rpartition("@")
    match = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?", place)
    host, port = (match[1] or match[3], match[2] or match[4]) if match else (place, None)
    if user.startswith("-"):
        raise UsageError(f"not an SSH destination: {jump!r}", why="its user starts with '-'")
    return check_alias(host), user or None, int(port) if port else None


def home() -> str:
    """OpenSSH takes the home directory from the account, not from $HOME."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.environ.get("HOME", "/")


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def _fill(value: str, tokens: Mapping[str, str]) -> str:
    def token(match: re.Match[str]) -> str:
        if match[1] not in tokens:
            raise UsageError(
                f"the SSH configuration uses the token {match[0]}",
                why=f"in {value!r}; known here: {' '.join('%' + t for t in sorted(tokens))}",
            )
        return tokens[match[1]]

    return _TOKEN.sub(token, value)


def _agent(
    value: str, tokens: Mapping[str, str], env: Mapping[str, str], home_dir: str
) -> Path | None:
    if value.lower() == "none":
        return None
    if value in ("", "SSH_AUTH_SOCK"):
        found = env.get("SSH_AUTH_SOCK", "")
    elif value.startswith("$") and not value.startswith("${"):
        found = env.get(value[1:], "")
    else:
        found = expand(value, tokens, env, home_dir)
    return Path(found) if found else None
