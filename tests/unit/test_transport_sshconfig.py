"""Reading `ssh -G`, without an ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddops.errors import UnreachableError, UsageError
from ddops.transport import SshTarget, sshconfig
from ddops.transport.sshconfig import SshSettings, parse_jump, parse_ssh_g, resolve

DUMP = """\
host b300
user ops
hostname b300.example
port 2222
identitiesonly yes
identityfile ~/.ssh/id_%r
identityfile /keys/${TEAM}/id
certificatefile ~/cert.pub
userknownhostsfile /home/me/.ssh/known_hosts /home/me/with a blank ~/more_%h
globalknownhostsfile /etc/ssh/ssh_known_hosts
connecttimeout 7
proxyjump a,ops@b:23
"""


def parse(text: str = DUMP, **env: str) -> SshSettings:
    return parse_ssh_g(text, "b300", {"TEAM": "gpu", **env}, "/home/me")


def test_settings() -> None:
    found = parse()
    assert (found.hostname, found.port, found.user) == ("b300.example", 2222, "ops")
    assert found.identity_files == (Path("/home/me/.ssh/id_ops"), Path("/keys/gpu/id"))
    assert found.certificate_files == (Path("/home/me/cert.pub"),)
    assert found.known_hosts == (
        Path("/home/me/.ssh/known_hosts"),
        Path("/home/me/with a blank"),
        Path("/home/me/more_b300.example"),
        Path("/etc/ssh/ssh_known_hosts"),
    )
    assert (found.identities_only, found.connect_timeout_s) == (True, 7.0)
    assert found.jumps == ("a", "ops@b:23")
    assert (found.proxy_command, found.agent, found.revoked_keys) == (None, None, None)
    assert found.key_names == ("[b300.example]:2222", "b300.example")


def test_defaults() -> None:
    found = parse("hostname Box\nport 22\nuser me\nproxyjump none\nconnecttimeout none\n")
    assert (found.jumps, found.connect_timeout_s) == ((), None)
    assert found.key_names == ("box",)


@pytest.mark.parametrize(
    ("line", "agent"),
    [
        ("", "/env"),
        ("identityagent SSH_AUTH_SOCK", "/env"),
        ("identityagent $OTHER", "/other"),
        ("identityagent ${OTHER}/x", "/other/x"),
        ("identityagent ~/sock", "/home/me/sock"),
        ("identityagent none", None),
    ],
)
def test_agent(line: str, agent: str | None) -> None:
    found = parse(f"hostname h\n{line}\n", SSH_AUTH_SOCK="/env", OTHER="/other")
    assert found.agent == (Path(agent) if agent else None)


def test_proxy_command_tokens() -> None:
    found = parse("hostname h.x\nport 5\nuser u\nproxycommand nc -X %h %p %r %n 100%%\n")
    assert found.proxy_command == "nc -X h.x 5 u b300 100%"


@pytest.mark.parametrize(
    "text",
    [
        "hostname h\nproxyusefdpass yes\n",
        "hostname h\nidentityfile ~/%Z\n",
        "hostname h\nidentityfile ${UNSET_HERE}/x\n",
    ],
)
def test_what_is_not_understood_is_said(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@pytest.mark.parametrize(
    ("jump", "parts"),
    [
        ("a", ("a", None, None)),
        ("u@a:23", ("a", "u", 23)),
        ("ssh://u@a:23/", ("a", "u", 23)),
        ("[::1]:23", ("::1", None, 23)),
        ("::1", ("::1", None, None)),
        ("me@corp@a", ("a", "me@corp", None)),
    ],
)
def test_jumps(jump: str, parts: tuple[str, str | None, int | None]) -> None:
    assert parse_jump(jump) == parts


@pytest.mark.parametrize("jump", ["-oProxyCommand=x", "-u@a", "", "a b"])
def test_jumps_that_ssh_could_misread(jump: str) -> None:
    with pytest.raises(UsageError):
        parse_jump(jump)


@pytest.mark.parametrize("alias", ["-oProxyCommand=x", "", "a b", "a\nb", "a\0"])
def test_aliases_that_ssh_could_misread(alias: str) -> None:
    with pytest.raises(UsageError):
        SshTarget("n", alias)
    with pytest.raises(UsageError):
        resolve(alias)


@pytest.mark.parametrize("pin", ["", "SHA256:short", "MD5:aa", "SHA256:" + "A" * 44])
def test_pins_that_are_none(pin: str) -> None:
    with pytest.raises(UsageError, match="fingerprint"):
        SshTarget("n", "a", pin=pin)


def test_no_ssh_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="missing here"):
        resolve("host")


def test_an_ssh_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "ssh"
    script.write_text("#!/bin/sh\nexec sleep 20\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sshconfig, "_TIMEOUT_S", 0.2)
    with pytest.raises(UnreachableError, match="did not answer"):
        resolve("host")


@pytest.mark.parametrize(
    ("alias", "why"),
    [
        ("", "empty"), ("-oProxyCommand=x", "starts with '-'"), ("box one", "blanks"),
        ("me@", "one side"), ("@box", "one side"),
        ("box:2222", "a port is no part"), ("me@box:2222", "a port is no part"),
        ("me@box:abc", "a port is no part"), ("[::1]:22", "a port is no part"),
        ("[::1]", "a port is no part"),
        ("ssh://me@box:99999", "out of range"), ("ssh://", "names a host"),
        ("ssh://box/tmp", "no path"), ("ssh://[::1", "IPv6"),
    ],
)  # fmt: skip
def test_what_ssh_would_take_for_something_else_is_refused(alias: str, why: str) -> None:
    with pytest.raises(UsageError, match="not an SSH destination") as refused:
        SshTarget("box", alias)
    assert why in str(refused.value.why)


@pytest.mark.parametrize(
    "alias",
    ["box", "me@box", "box.example", "::1", "me@fe80::1%eth0", "ssh://me@box:2222", "ssh://box/",
     "me@corp@box", "b\u00fccher.example"],
)  # fmt: skip
def test_what_ssh_takes_is_taken(alias: str) -> None:
    assert SshTarget("box", alias).alias == alias
