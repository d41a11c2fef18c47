"""One connection to a host through its jump hops, every key checked before anything is sent.

Fabric's `Connection` accepts any host key, on each hop anew, and lets paramiko open the socket
without TCP_NODELAY, which costs 40 ms a command. `StrictConnection` replaces exactly these parts.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import paramiko  # type: ignore[import-untyped,unused-ignore]
from fabric import Config, Connection
from paramiko.common import MSG_CHANNEL_REQUEST  # type: ignore[import-untyped,unused-ignore]

from ddops.errors import DdopsError, HostKeyError, UnreachableError
from ddops.transport.common import MAX_SESSIONS
from ddops.transport.endpoints import Endpoint
from ddops.transport.hostkeys import Peer, check_key, key_types
from ddops.transport.policy import TransientConnectError
from ddops.transport.ssh_auth import Login

KEEPALIVE_S = 15
#: Linux has it; it holds until the next packet only.
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
_KEYTYPE_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


class StrictTransport(paramiko.Transport):  # type: ignore[misc]
    """paramiko's transport, which otherwise forgets that a command was ended by a signal."""

    def __init__(self, sock: object, peer: Peer, **options: object) -> None:
        super().__init__(sock, **options)
        security = self.get_security_options()
        preferred = [
            algorithm
            for keytype in key_types(peer)
            for algorithm in _KEYTYPE_ALGORITHMS.get(keytype, (keytype,))
            if algorithm in security.key_types
        ]
        # Asking for a type that is not known here would make a known host look unknown.
        rest = [a for a in security.key_types if a not in preferred]
        security.key_types = (*preferred, *rest)
        self._channel_handler_table = {
            **paramiko.Transport._channel_handler_table,
            MSG_CHANNEL_REQUEST: _channel_request,
        }


def _channel_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """Turn `exit-signal` into the status a shell would give; leave the rest to paramiko."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        name = f"SIG{message.get_text()}"
        known = getattr(signal, name, None)
        channel.exit_status = 128 + int(known) if isinstance(known, signal.Signals) else 255
        channel.status_event.set()
        return
    message.packet.seek(start)
    channel._handle_request(message)


class StrictPolicy(paramiko.RejectPolicy):  # type: ignore[misc]
    """Judges every key: the client's own tables stay empty, so that none is taken unseen."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        check_key(self._peer, key.get_name(), key.asbytes())


class StrictConnection(Connection):  # type: ignore[misc]
    """Fabric's connection with a checked key, a socket of ours and a login without prompts."""

    def __init__(
        self, endpoint: Endpoint, timeout_s: float, hop: StrictConnection | None = None
    ) -> None:
        settings, peer = endpoint.settings, endpoint.peer
        super().__init__(
            settings.hostname,
            user=settings.user,
            port=settings.port,
            gateway=False,
            # Neither Fabric's nor paramiko's reading of any file: `ssh -G` has said it all.
            config=Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            forward_agent=False,
            connect_timeout=max(1, round(timeout_s)),
            connect_kwargs={
                "transport_factory": lambda sock, **kw: StrictTransport(sock, peer, **kw),
                "auth_strategy": Login(peer.label, settings),
                "banner_timeout": timeout_s,
                "auth_timeout": timeout_s,
                "channel_timeout": timeout_s,
            },
        )
        self._set(endpoint=endpoint, timeout_s=timeout_s, hop=hop, raw=None)
        self.client.set_missing_host_key_policy(StrictPolicy(peer))

    def open(self) -> None:
        """Connect hop by hop. `HostKeyError`, `UnreachableError` or its transient kind."""
        try:
            self._set(raw=self._open_socket())
            self.connect_kwargs["sock"] = self.raw
            super().open()
            self.transport.set_keepalive(KEEPALIVE_S)
        except DdopsError:
            raise
        except Exception as error:
            raise _failure(self.endpoint, error) from error

    def _open_socket(self) -> object:
        """TCP to the host, the proxy command's end, or a channel through the hop before."""
        settings = self.endpoint.settings
        if self.hop is not None:
            self.hop.open()
            return self.hop.transport.open_channel(
                "direct-tcpip", (self.host, self.port), ("", 0), timeout=self.timeout_s
            )
        if settings.proxy_command:
            return proxy_socket(settings.proxy_command)
        return open_tcp(self.host, self.port, self.timeout_s)

    def break_off(self) -> None:
        """Close from the network upwards, so that nothing here waits for the other side."""
        if self.hop is not None:
            self.hop.break_off()
        if isinstance(self.raw, socket.socket):
            with contextlib.suppress(OSError):
                self.raw.shutdown(socket.SHUT_RDWR)
        for end in (self.raw, self.client):
            with contextlib.suppress(Exception):
                if end is not None:
                    end.close()


class PromptSocket(socket.socket):
    """Acknowledges at once what was read.

    sshd sends several small packets behind a login and no TCP_NODELAY is set there yet: each waits
    for the one before to be acknowledged, which a kernel puts off by 40 ms.
    """

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(size, flags)
        if _QUICKACK is not None:
            with contextlib.suppress(OSError):  # closed meanwhile; what was read counts
                self.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        return data


def open_tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket that sends and acknowledges at once and notices a dead peer."""
    made = socket.create_connection((host, port), timeout=timeout_s)
    connected = PromptSocket(fileno=made.detach())
    connected.settimeout(timeout_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connected


def proxy_socket(command: str) -> socket.socket:
    """Our end of a socket pair whose other end is the proxy command's input and output.

    Not paramiko's ProxyCommand: at the end of the command's output that one spins for ever.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],  # as ssh does with this text of the user's own
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    # It ends when our end is closed; somebody has to take its status.
    threading.Thread(target=process.wait, name="proxy-command", daemon=True).start()
    return ours


def _failure(endpoint: Endpoint, error: Exception) -> UnreachableError:
    """A failure to connect, in words. What another try cannot mend is not the transient kind."""
    settings = endpoint.settings
    kind: type[UnreachableError] = TransientConnectError
    why = str(error) or type(error).__name__
    if isinstance(error, socket.gaierror):
        why = f"the name {settings.hostname} does not resolve: {error.strerror}"
        kind = TransientConnectError if error.errno == socket.EAI_AGAIN else UnreachableError
    elif isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        kind = UnreachableError
    elif isinstance(error, TimeoutError) or why == "No existing session":
        why = "no answer in time"  # the second is what paramiko says of a handshake cut short
    return kind(
        f"{endpoint.peer.label}: cannot connect to {settings.hostname} port {settings.port}",
        why=why,
        next=f"ssh {settings.alias} true",
    )


@dataclass(slots=True, eq=False)
class Link:
    """An open connection and who is using it. Retired ones take no new calls."""

    connection: StrictConnection
    sessions: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(MAX_SESSIONS)
    )
    users: int = 0
    retired: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def usable(self) -> bool:
        return not self.retired and bool(self.connection.is_connected)

    def enter(self) -> bool:
        """Take part; False when the link was retired meanwhile."""
        with self.lock:
            self.users += 0 if self.retired else 1
            return not self.retired

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            last = self.retired and self.users == 0
        if last:
            close_behind(self.connection)

    def retire(self) -> None:
        """No new calls; closed when the last one is out. Never waits."""
        with self.lock:
            already, self.retired = self.retired, True
            idle = not already and self.users == 0
        if idle:
            close_behind(self.connection)


def close_behind(connection: StrictConnection) -> None:
    """Close in a thread of its own: closing sends, and sending to a frozen host blocks."""
    threading.Thread(target=connection.break_off, name="ssh-close", daemon=True).start()


def quiet_paramiko() -> None:
    """Keep paramiko's tracebacks off stderr; whoever configures logging still gets them."""
    logger = logging.getLogger("paramiko")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def chain(endpoints: list[Endpoint], timeout_s: float) -> StrictConnection:
    """The last endpoint's connection, each one before it the gateway of the next; not open yet."""
    quiet_paramiko()
    connection: StrictConnection | None = None
    for endpoint in endpoints:
        timeout = min(timeout_s, endpoint.settings.connect_timeout_s or timeout_s)
        connection = StrictConnection(endpoint, timeout, connection)
    if connection is None:
        raise ValueError("no endpoint to connect to")
    return connection


def shown_key(connection: StrictConnection) -> paramiko.PKey:
    """The key the last endpoint shows, after the handshake and before any login."""
    seen: list[paramiko.PKey] = []
    connection.client.set_missing_host_key_policy(_Look(seen.append))
    try:
        connection.open()
    except _SeenEnoughError:
        pass
    except DdopsError:
        raise
    finally:
        connection.break_off()
    return seen[0]


class _SeenEnoughError(HostKeyError):
    """Ends a connection that was opened for a look at its key."""


class _Look(paramiko.RejectPolicy):  # type: ignore[misc]
    def __init__(self, look: Callable[[paramiko.PKey], None]) -> None:
        self._look = look

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        self._look(key)
        raise _SeenEnoughError("only looking")
