"""What only a real sshd can show: keys, hops, logins, frozen and broken connections."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddops.command import Secret, cmd, sh
from ddops.errors import (
    DdopsError,
    DeadlineExceeded,
    ExitCode,
    HostKeyError,
    TransportLost,
    UnreachableError,
    UsageError,
)
from ddops.transport import ConnectPolicy, SshTarget, fan_out
from ddops.transport.hostkeys import append_known_host, fingerprint, known_hosts_line
from ddops.transport.ssh import SshTransport, scan_host_key
from tests.contract.sshd import (
    Sshd,
    free_port,
    host_block,
    keygen,
    missing_tools,
    public,
    write_config,
)

if why := missing_tools():
    pytest.skip(why, allow_module_level=True)


class Lab:
    """Servers, one client configuration and one known_hosts, all below one directory."""

    def __init__(self, directory: Path, client_key: Path) -> None:
        self.directory = directory
        self.key = client_key
        self.known = directory / "known_hosts"
        self.known.touch()
        self.servers: list[Sshd] = []
        self.transports: list[SshTransport] = []
        self.slept: list[float] = []
        self.policy = ConnectPolicy(timeout_s=5.0, sleep=self.slept.append)

    def server(
        self, name: str = "b300", *, known: bool = True, extra: str = "", key_kind: str = "ed25519"
    ) -> Sshd:
        server = Sshd(self.directory / name, self.key, name, extra, key_kind).start()
        self.servers.append(server)
        if known:
            self.trust(server.known_hosts_line())
        return server

    def trust(self, *lines: str) -> None:
        self.known.write_text("".join(f"{line}\n" for line in lines))

    def config(self, *blocks: str, key: Path | None = None) -> Path:
        return write_config(self.directory / "config", self.known, key or self.key, *blocks)

    def to(self, server: Sshd, *lines: str, pin: str | None = None) -> SshTransport:
        return self.open(
            self.config(host_block(server.name, server.port, *lines)), server.name, pin
        )

    def open(self, config: Path, alias: str, pin: str | None = None) -> SshTransport:
        transport = SshTransport(SshTarget(alias, alias, config, pin), self.policy)
        self.transports.append(transport)
        return transport

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        for server in self.servers:
            server.stop()


@pytest.fixture
def lab(tmp_path: Path, client_key: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, client_key)
    yield made
    made.close()


def print_of(server: Sshd) -> str:
    import base64

    return fingerprint(base64.b64decode(public(server.host_key)[1]))


# Host keys.


def test_unknown_key_is_refused_and_pinning_is_named(lab: Lab) -> None:
    server = lab.server(known=False)
    with pytest.raises(HostKeyError) as caught:
        lab.to(server).run(cmd("true"))
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert print_of(server) in caught.value.why
    assert "ddops host trust b300" in caught.value.next
    assert lab.slept == []


def test_changed_key_names_both_prints_and_the_line(lab: Lab) -> None:
    server = lab.server(known=False)
    other = keygen(lab.directory / "other")
    kind, base64 = public(other)
    lab.trust("# a comment", f"[127.0.0.1]:{server.port} {kind} {base64}")
    with pytest.raises(HostKeyError) as caught:
        lab.to(server).run(cmd("true"))
    listing = subprocess.run(
        ["ssh-keygen", "-lf", f"{other}.pub"], capture_output=True, text=True, check=True
    )
    assert print_of(server) in caught.value.why
    assert listing.stdout.split()[1] in caught.value.why
    assert f"{lab.known}:2" in caught.value.why


@pytest.mark.parametrize("form", ["hashed", "wildcard", "bare", "list", "ecdsa-first"])
def test_forms_of_known_hosts(lab: Lab, form: str) -> None:
    server = lab.server(known=False)
    key = " ".join(public(server.host_key))
    if form == "hashed":
        lab.trust(server.known_hosts_line())
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(lab.known)], check=True, stderr=-3)
        assert lab.known.read_text().startswith("|1|")
    elif form == "ecdsa-first":
        # The server's only other key; asking for it first would make the host look changed.
        other = keygen(server.directory / "second", kind="ecdsa")
        server.extra = f"HostKey {other}"
        server.stop()
        server.start()
        lab.trust(f"[127.0.0.1]:{server.port} {' '.join(public(other))}")
    else:
        name = {"wildcard": f"[127.0.0.?]:*,!x {key}", "bare": f"127.0.0.1 {key}"}
        lab.trust(name.get(form, f"other,[127.0.0.1]:{server.port} {key}"))
    assert lab.to(server).run(cmd("true")).ok


def test_rsa_host_key(lab: Lab) -> None:
    assert lab.to(lab.server(key_kind="rsa")).run(cmd("true")).ok


def test_revoked_key_is_refused_even_when_known_and_pinned(lab: Lab) -> None:
    server = lab.server()
    lab.trust(server.known_hosts_line(), f"@revoked * {' '.join(public(server.host_key))}")
    with pytest.raises(HostKeyError, match="revoked"):
        lab.to(server, pin=print_of(server)).run(cmd("true"))
    lab.trust(server.known_hosts_line())
    listed = lab.directory / "revoked"
    listed.write_text(" ".join(public(server.host_key)) + "\n")
    with pytest.raises(HostKeyError, match="revoked"):
        lab.to(server, f"RevokedHostKeys {listed}").run(cmd("true"))


def test_authority_line_is_not_taken_for_a_key(lab: Lab) -> None:
    server = lab.server(known=False)
    lab.trust(f"@cert-authority * {' '.join(public(server.host_key))}")
    with pytest.raises(HostKeyError, match="host certificates cannot be verified here"):
        lab.to(server).run(cmd("true"))


def test_pin_is_enough_and_goes_before_known_hosts(lab: Lab) -> None:
    server = lab.server(known=False)
    assert lab.to(server, pin=print_of(server)).run(cmd("true")).ok
    wrong = "SHA256:" + "A" * 43
    lab.trust(server.known_hosts_line())
    with pytest.raises(HostKeyError, match="pinned in the inventory") as caught:
        lab.to(server, pin=wrong).run(cmd("true"))
    assert wrong in caught.value.why
    assert print_of(server) in caught.value.why


def test_host_key_alias(lab: Lab) -> None:
    server = lab.server(known=False)
    lab.trust(f"the-box {' '.join(public(server.host_key))}")
    assert lab.to(server, "HostKeyAlias the-box").run(cmd("true")).ok


def test_strict_checking_no_changes_nothing(lab: Lab) -> None:
    server = lab.server(known=False)
    with pytest.raises(HostKeyError):
        lab.to(server, "StrictHostKeyChecking no").run(cmd("true"))


def test_scan_then_trust(lab: Lab) -> None:
    server = lab.server(known=False)
    config = lab.config(host_block("b300", server.port), key=lab.directory / "no-key")
    kind, base64, shown = scan_host_key(SshTarget("b300", "b300", config), lab.policy)
    assert (kind, base64) == public(server.host_key)
    assert shown == print_of(server)
    append_known_host(lab.known, known_hosts_line("127.0.0.1", server.port, kind, base64))
    assert lab.to(server).run(cmd("true")).ok


def test_a_mended_known_hosts_is_read_again(lab: Lab) -> None:
    server = lab.server(known=False)
    transport = lab.to(server)
    with pytest.raises(HostKeyError):
        transport.connect()
    lab.trust(server.known_hosts_line())
    assert transport.run(cmd("true")).ok


def test_connecting_writes_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def listing(*directories: Path) -> dict[str, tuple[int, int]]:
        files = [f for d in directories if d.is_dir() for f in d.rglob("*")]
        return {str(f): (f.lstat().st_mtime_ns, f.lstat().st_size) for f in files}

    home = lab.directory / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    server = lab.server()
    config = lab.config(host_block("b300", server.port))
    watched = [Path("~root/.ssh").expanduser() if os.geteuid() == 0 else home, home]
    before = listing(*watched), lab.known.stat().st_mtime_ns
    transport = lab.open(config, "b300")
    assert transport.run(cmd("true")).ok
    assert (listing(*watched), lab.known.stat().st_mtime_ns) == before


# Jump hosts.


def jump_config(lab: Lab, hop: Sshd, target: Sshd, how: str = "ProxyJump hop") -> Path:
    return lab.config(host_block("hop", hop.port), host_block("target", target.port, how))


def test_jump_through_a_known_hop(lab: Lab) -> None:
    hop, target = lab.server("hop"), lab.server("target")
    lab.trust(hop.known_hosts_line(), target.known_hosts_line())
    transport = lab.open(jump_config(lab, hop, target), "target")
    data = os.urandom(500_000)
    assert transport.run(cmd("cat", stdin=data)).stdout == data
    assert len(hop.sessions()) >= 1


@pytest.mark.parametrize("unknown", ["hop", "target"])
def test_jump_refuses_an_unknown_key_anywhere(lab: Lab, unknown: str) -> None:
    servers = {name: lab.server(name, known=False) for name in ("hop", "target")}
    lab.trust(*(s.known_hosts_line() for name, s in servers.items() if name != unknown))
    transport = lab.open(jump_config(lab, servers["hop"], servers["target"]), "target")
    with pytest.raises(HostKeyError) as caught:
        transport.run(cmd("true"))
    assert ("jump host hop" in caught.value.what) == (unknown == "hop")
    assert "Accepted publickey" not in (lab.directory / unknown / "sshd.log").read_text()


def test_a_pin_on_the_target_does_not_vouch_for_the_hop(lab: Lab) -> None:
    hop, target = lab.server("hop", known=False), lab.server("target", known=False)
    lab.trust()
    transport = lab.open(jump_config(lab, hop, target), "target", print_of(target))
    with pytest.raises(HostKeyError, match="jump host hop"):
        transport.run(cmd("true"))
    lab.trust(hop.known_hosts_line())
    assert transport.run(cmd("true")).ok


def test_two_hops_by_port_and_user(lab: Lab) -> None:
    servers = [lab.server(name, known=False) for name in ("one", "two", "target")]
    lab.trust(*(s.known_hosts_line() for s in servers))
    user = getpass.getuser()
    jumps = f"ProxyJump {user}@127.0.0.1:{servers[0].port},ssh://127.0.0.1:{servers[1].port}"
    config = lab.config(host_block("target", servers[2].port, jumps))
    assert lab.open(config, "target").run(cmd("true")).ok
    assert servers[1].sessions()


def test_circular_jumps_end_in_words(lab: Lab) -> None:
    server = lab.server()
    config = lab.config(
        host_block("a", server.port, "ProxyJump b"), host_block("b", server.port, "ProxyJump a")
    )
    with pytest.raises(UsageError, match="jump hops"):
        lab.open(config, "a").connect()


def test_proxy_command(lab: Lab) -> None:
    hop, target = lab.server("hop"), lab.server("target")
    lab.trust(hop.known_hosts_line(), target.known_hosts_line())
    through = f"ProxyCommand ssh -F {lab.directory}/config -W [%h]:%p hop"
    transport = lab.open(jump_config(lab, hop, target, through), "target")
    assert transport.run(cmd("cat", stdin=b"x" * 300_000)).stdout == b"x" * 300_000


def test_proxy_command_that_ends_at_once(lab: Lab) -> None:
    with pytest.raises(UnreachableError):
        lab.to(lab.server(), "ProxyCommand false").connect()


# Connecting.


def test_socket_options(lab: Lab) -> None:
    transport = lab.to(lab.server())
    transport.connect()
    assert transport._link is not None
    raw = transport._link.connection.raw
    assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_dead_port_is_tried_again_and_fast(lab: Lab) -> None:
    config = lab.config(host_block("gone", free_port()))
    start = time.monotonic()
    with pytest.raises(UnreachableError, match="cannot connect") as caught:
        lab.open(config, "gone").run(cmd("true"))
    assert time.monotonic() - start < 2
    assert len(lab.slept) == 2
    assert "3 tries" in caught.value.why
    assert not isinstance(caught.value, HostKeyError | DeadlineExceeded)


def test_unknown_name_is_not_tried_again(lab: Lab) -> None:
    config = lab.config("Host nowhere\n  HostName no-such-host.invalid\n")
    with pytest.raises(UnreachableError) as caught:
        lab.open(config, "nowhere").connect()
    # Without any resolver the name may be "temporarily" unknown, which is tried again.
    assert "does not resolve" in caught.value.why


def test_a_port_that_never_speaks(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = lab.config(host_block("mute", silent.getsockname()[1]))
        policy = ConnectPolicy(attempts=1, timeout_s=0.3, attempt_s=0.6)
        transport = SshTransport(SshTarget("mute", "mute", config), policy)
        start = time.monotonic()
        with pytest.raises(UnreachableError):
            transport.connect()
        assert time.monotonic() - start < 3


def test_login_refused_says_what_was_tried(lab: Lab) -> None:
    server = lab.server()
    stranger = keygen(lab.directory / "stranger")
    config = lab.config(host_block("b300", server.port), key=stranger)
    with pytest.raises(UnreachableError, match="was refused") as caught:
        lab.open(config, "b300").connect()
    assert f"tried: {stranger}" in caught.value.why
    assert lab.slept == []


def test_locked_key_is_an_error_and_no_prompt(lab: Lab) -> None:
    server = lab.server()
    locked = keygen(lab.directory / "locked")
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "geheim", "-f", str(locked)], check=True)
    config = lab.config(host_block("b300", server.port), key=locked)
    with pytest.raises(UnreachableError) as caught:
        lab.open(config, "b300").connect()
    assert f"{locked}: needs a passphrase" in caught.value.why
    assert caught.value.next == f"ssh-add {locked}"


def test_login_with_a_certificate(lab: Lab) -> None:
    authority, user = keygen(lab.directory / "ca"), keygen(lab.directory / "user_key")
    login = getpass.getuser()
    words = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", login]
    subprocess.run([*words, f"{user}.pub"], check=True)
    server = lab.server(extra=f"TrustedUserCAKeys {authority}.pub")
    config = lab.config(host_block("b300", server.port), key=user)
    assert lab.open(config, "b300").run(cmd("true")).ok
    moved = lab.directory / "elsewhere.pub"
    Path(f"{user}-cert.pub").rename(moved)
    with pytest.raises(UnreachableError):
        lab.open(config, "b300").connect()
    config = lab.config(host_block("b300", server.port, f"CertificateFile {moved}"), key=user)
    assert lab.open(config, "b300").run(cmd("true")).ok


@pytest.fixture
def agent(tmp_path: Path, client_key: Path) -> Iterator[Path]:
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            if path.exists():
                break
            time.sleep(0.01)
        yield path
    finally:
        process.terminate()
        process.wait(5)


def ssh_add(agent: Path, *keys: Path) -> None:
    words = ["ssh-add", "-q", *map(str, keys)]
    subprocess.run(words, env={**os.environ, "SSH_AUTH_SOCK": str(agent)}, check=True)


def agent_config(lab: Lab, port: int, key: Path, agent: str, only: str) -> Path:
    path = lab.directory / "agent_config"
    path.write_text(
        host_block("b300", port)
        + f"  IdentityFile {key}\n  IdentityAgent {agent}\n  IdentitiesOnly {only}\n"
        f"  UserKnownHostsFile {lab.known}\n"
    )
    return path


def test_agent_holds_the_key_of_a_locked_file(lab: Lab, agent: Path, client_key: Path) -> None:
    server = lab.server()
    ssh_add(agent, client_key)
    locked = lab.directory / "locked"
    locked.write_bytes(client_key.read_bytes())
    locked.chmod(0o600)
    Path(f"{locked}.pub").write_bytes(Path(f"{client_key}.pub").read_bytes())
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "geheim", "-f", str(locked)], check=True)
    config = agent_config(lab, server.port, locked, str(agent), "yes")
    assert lab.open(config, "b300").run(cmd("true")).ok


def test_identities_only_and_no_agent_are_kept(
    lab: Lab, agent: Path, client_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = lab.server()
    ssh_add(agent, client_key)
    stranger = keygen(lab.directory / "stranger")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    config = agent_config(lab, server.port, stranger, "SSH_AUTH_SOCK", "no")
    assert lab.open(config, "b300").run(cmd("true")).ok
    for setting, only in (("SSH_AUTH_SOCK", "yes"), ("none", "no")):
        config = agent_config(lab, server.port, stranger, setting, only)
        with pytest.raises(UnreachableError) as caught:
            lab.open(config, "b300").connect()
        assert "agent key" not in caught.value.why


def test_bad_configuration_is_exit_2(lab: Lab) -> None:
    config = lab.directory / "bad"
    config.write_text("Nonsense yes\n")
    with pytest.raises(UsageError, match="SSH configuration is wrong") as caught:
        lab.open(config, "b300").connect()
    assert "line 1" in caught.value.why


def test_connects_are_bounded(lab: Lab) -> None:
    server = lab.server()
    config = lab.config(host_block("b300", server.port))
    policy = ConnectPolicy(concurrent=2)
    at_once, most, lock = 0, 0, threading.Lock()

    class Counting(SshTransport):
        def _open(self, endpoints):  # type: ignore[no-untyped-def]
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
            try:
                return super()._open(endpoints)
            finally:
                with lock:
                    at_once -= 1

    hosts = [Counting(SshTarget(f"h{n}", "b300", config), policy) for n in range(8)]
    lab.transports.extend(hosts)
    outcomes = fan_out(hosts, lambda h: h.run(cmd("true")).ok)
    assert [outcome for _, outcome in outcomes] == [True] * 8
    assert most == 2


# Calls that hang or break.


@pytest.mark.parametrize("busy", [False, True])
def test_frozen_host_and_the_call_after_it(lab: Lab, busy: bool) -> None:
    server = lab.server()
    transport = lab.to(server)
    transport.connect()
    other = threading.Thread(target=transport.run, args=(cmd("sleep", "1.2"),))
    if busy:  # a call that keeps the connection open beyond the other's deadline
        other.start()
        time.sleep(0.2)
    frozen = server.signal_sessions(signal.SIGSTOP)
    marker = lab.directory / "marker"
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"b300: no end within 0\.5 s"):
        transport.run(cmd("touch", str(marker)), deadline_s=0.5)
    assert time.monotonic() - start < 2
    assert transport.run(cmd("true")).ok
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    other.join() if busy else time.sleep(0.3)
    assert not marker.exists(), "a call given up before it was sent must not run later"


def test_big_input_to_a_frozen_host(lab: Lab) -> None:
    server = lab.server()
    transport = lab.to(server)
    transport.connect()
    server.signal_sessions(signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        transport.run(cmd("cat", stdin=b"x" * 30_000_000), deadline_s=0.5)
    assert time.monotonic() - start < 2
    assert transport.run(cmd("true")).ok


def test_broken_connection_is_lost_and_reconnects(lab: Lab) -> None:
    server = lab.server()
    transport = lab.to(server)
    transport.connect()
    killer = threading.Timer(0.3, server.signal_sessions, [signal.SIGKILL])
    killer.start()
    with pytest.raises(TransportLost, match="the connection broke during: sleep 30"):
        transport.run(cmd("sleep", "30"), deadline_s=20)
    killer.join()
    assert transport.run(cmd("true")).ok
    assert lab.slept == [], "a command is never tried again"


def test_a_lost_call_ran_once(lab: Lab) -> None:
    server = lab.server()
    transport = lab.to(server)
    count = lab.directory / "count"
    killer = threading.Timer(0.3, server.signal_sessions, [signal.SIGKILL])
    killer.start()
    with pytest.raises(TransportLost):
        transport.run(sh('echo x >>"$1"; sleep 30', str(count)), deadline_s=20)
    killer.join()
    assert count.read_text() == "x\n"


def test_connection_that_died_idle_is_replaced_unseen(lab: Lab) -> None:
    server = lab.server()
    transport = lab.to(server)
    transport.connect()
    server.signal_sessions(signal.SIGKILL)
    assert transport.run(cmd("true")).ok


def test_server_gone_for_good(lab: Lab) -> None:
    server = lab.server()
    transport = lab.to(server)
    transport.connect()
    server.stop()
    with pytest.raises(UnreachableError):
        transport.run(cmd("true"))


def test_a_late_call_leaves_the_others_alone(lab: Lab) -> None:
    transport = lab.to(lab.server())
    transport.connect()

    def slow(seconds: float) -> int:
        return transport.run(cmd("sleep", str(seconds)), deadline_s=1.0 if seconds > 5 else 10).rc

    outcomes = [outcome for _, outcome in fan_out([1.5, 30.0], slow)]
    assert outcomes[0] == 0
    assert isinstance(outcomes[1], DeadlineExceeded)


def test_more_calls_than_sessions(lab: Lab) -> None:
    transport = lab.to(lab.server())
    outcomes = fan_out(range(25), lambda n: transport.run(cmd("sleep", "0.05")).rc, parallel=25)
    assert [outcome for _, outcome in outcomes] == [0] * 25


def test_server_that_allows_no_session(lab: Lab) -> None:
    transport = lab.to(lab.server(extra="MaxSessions 0"))
    with pytest.raises(UnreachableError, match="opened no session") as caught:
        transport.run(cmd("true"))
    assert "nothing was run" in caught.value.why


def test_close_twice_and_use_again(lab: Lab) -> None:
    transport = lab.to(lab.server())
    assert transport.run(cmd("true")).ok
    transport.close()
    transport.close()
    assert transport.run(cmd("true")).ok


# Secrets.


def test_secret_is_in_no_process_list_and_no_error(lab: Lab) -> None:
    canary = "canary-" + os.urandom(8).hex()
    transport = lab.to(lab.server())
    look = 'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; cat >"$1"'
    stolen = lab.directory / "stdin"
    command = sh(look, str(stolen)).with_stdin(Secret(canary, "env:CANARY"))
    result = transport.run(command, limit=50_000_000)
    assert stolen.read_text() == canary
    assert len(result.stdout) > 100
    assert canary.encode() not in result.stdout + result.stderr
    actions: list[Callable[[], object]] = [
        lambda: transport.run(sh("cat; sleep 30").with_stdin(command.stdin or b""), deadline_s=0.3),
        lambda: lab.to(lab.server("gone", known=False)).run(command),
    ]
    for action in actions:
        with pytest.raises(DdopsError) as caught:
            action()
        text = "".join(traceback.format_exception(caught.value))
        assert canary not in f"{text} {caught.value!r} {caught.value} {caught.value.lines()}"
    assert canary not in f"{command} {command!r} {transport!r}"


# Connecting ahead.


def test_a_connection_begun_ahead_is_the_one_that_is_used(lab: Lab) -> None:
    transport = lab.to(lab.server())
    transport.connect_soon()
    assert transport.run(cmd("echo", "here")).out == "here\n"
    first = transport._link
    transport.connect_soon()
    assert transport.run(cmd("echo", "again")).out == "again\n"
    assert transport._link is first


def test_a_wrong_key_met_ahead_is_told_by_the_first_call_alone(lab: Lab) -> None:
    server = lab.server(known=False)
    transport = lab.to(server)
    transport.connect_soon()
    with pytest.raises(HostKeyError):
        transport.run(cmd("true"))
    lab.trust(server.known_hosts_line())
    assert transport.run(cmd("true")).ok


def test_a_connection_begun_ahead_and_never_used_is_closed(lab: Lab) -> None:
    transport = lab.to(lab.server())
    transport.connect_soon()
    transport.close()
    end = time.monotonic() + 10
    while (transport._link is None or transport._link.usable) and time.monotonic() < end:
        time.sleep(0.01)
    assert transport._link is not None
    assert not transport._link.usable
    assert transport.run(cmd("true")).ok  # a later call opens another


def test_what_was_read_is_acknowledged_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without the option does without it; with it, a login's packets do not wait."""
    from ddops.transport import ssh_link

    transport = lab.to(lab.server())
    transport.connect()
    assert isinstance(transport._link, ssh_link.Link)
    assert isinstance(transport._link.connection.raw, ssh_link.PromptSocket)
    transport.close()
    monkeypatch.setattr(ssh_link, "_QUICKACK", None)
    assert transport.run(cmd("true")).ok


def test_the_end_of_input_is_never_sent_behind_the_end_of_the_session(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sshd hangs up on that, and with it on every other call of the connection."""
    from ddops.transport import ssh_link

    real, eof, ends = ssh_link.StrictTransport._send_user_message, 96, list[float]()

    def late(self: ssh_link.StrictTransport, message: Any) -> None:
        if message.asbytes()[0] == eof:
            ends.append(time.monotonic())
            time.sleep(0.1)  # the command has ended meanwhile, and its session closes
        real(self, message)

    monkeypatch.setattr(ssh_link.StrictTransport, "_send_user_message", late)
    transport = lab.to(lab.server())
    assert transport.run(cmd("true")).ok
    first = transport._link
    for _ in range(3):
        assert transport.run(cmd("true")).ok
        assert transport.run(cmd("true", stdin=b"nobody reads it")).ok
    assert len(ends) == 7
    time.sleep(0.1)
    assert transport.run(cmd("true")).ok
    assert transport._link is first
