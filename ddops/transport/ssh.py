"""The SSH transport: Fabric underneath; strict keys, deadlines and reconnecting on top.

with SshTransport(SshTarget("b300", "b300.example"), ConnectPolicy()) as transport:
    transport.run(cmd("true"))

Fabric and paramiko take 0.3 s to load. That is done at the first connection, beside `ssh -G` of the
other hosts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ddops.command import Cmd
from ddops.errors import DeadlineExceeded, UnreachableError
from ddops.model import Result
from ddops.transport.base import DEFAULT_DEADLINE_S, DEFAULT_LIMIT
from ddops.transport.common import (
    MAX_SESSIONS,
    BrokenError,
    Job,
    NotStartedError,
    OverdueError,
    brief,
    late,
    lost,
    wire,
)
from ddops.transport.endpoints import Endpoint, resolve_endpoints
from ddops.transport.hostkeys import append_known_host, fingerprint, known_hosts_line
from ddops.transport.policy import ConnectPolicy, TransientConnectError
from ddops.transport.target import SshTarget

if TYPE_CHECKING:
    from ddops.transport.ssh_channel import Exec
    from ddops.transport.ssh_link import Link

__all__ = [
    "SshTarget",
    "SshTransport",
    "append_known_host",
    "known_hosts_line",
    "scan_host_key",
]

T = TypeVar("T")
#: paramiko's own time limit on opening a session lies this far behind the deadline, so that it is
#: the deadline that speaks.
_SLACK_S = 10.0


class SshTransport:
    """One host over SSH. Connects at the first `run`, and again after a loss.

    Calls from several threads share the connection, ten at a time. A call past its deadline
    retires the connection: other calls on it may end, the next call connects anew.
    """

    def __init__(self, target: SshTarget, policy: ConnectPolicy) -> None:
        self._target = target
        self._policy = policy
        self._link: Link | None = None
        self._connecting = threading.Lock()
        self._early: Job[Link] | None = None

    @property
    def host(self) -> str:
        return self._target.name

    def __enter__(self) -> SshTransport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Connect now. `HostKeyError`, `UnreachableError`, or `UsageError` for a bad config."""
        self._ready()

    def connect_soon(self) -> None:
        """Begin to connect beside what the caller does next.

        The first call waits for it, and raises what it raised: it is not tried twice.
        """
        # Here and not over there: two threads that load modules hinder each other.
        import ddops.transport.ssh_link  # noqa: F401

        self._early = Job(self._connected, f"ssh-early-{self.host}")

    def run(
        self, command: Cmd, *, deadline_s: float = DEFAULT_DEADLINE_S, limit: int = DEFAULT_LIMIT
    ) -> Result:
        text, stdin = wire(command), command.stdin_bytes()
        for attempt in (1, 2):
            link, reused = self._enter()
            try:
                from ddops.transport.ssh_channel import Exec

                return self._run_on(link, Exec(text, stdin, limit), command, deadline_s)
            except NotStartedError as error:
                # A link kept from an earlier call may be found dead before anything was sent:
                # then, and only then, is a command tried again.
                link.retire()
                if not reused or attempt == 2:
                    raise UnreachableError(
                        f"{self.host}: the host opened no session",
                        why=f"{error}; nothing was run (MaxSessions of sshd below "
                        f"{MAX_SESSIONS}, or the host is going down)",
                        next=f"ssh {self._target.alias} true",
                    ) from error
            finally:
                link.leave()
        raise AssertionError("unreachable: the second attempt returns or raises")

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        early, self._early = self._early, None
        if early is not None:  # begun and never used: nobody waits for it
            Job(lambda: early.within(threading.TIMEOUT_MAX).retire(), f"ssh-close-{self.host}")
            return
        link, self._link = self._link, None
        if link is not None:
            link.retire()

    def _run_on(self, link: Link, work: Exec, command: Cmd, deadline_s: float) -> Result:
        """One try on one link, no longer than the deadline whatever paramiko does."""
        until = time.monotonic() + deadline_s
        if not link.sessions.acquire(timeout=deadline_s):
            raise DeadlineExceeded(
                f"{self.host}: no free session within {deadline_s:g} s: {brief(command)}",
                why=f"{MAX_SESSIONS} calls are running on the connection; this one was not sent",
            )

        def body() -> Result:
            try:
                return work.run(link.connection.transport, deadline_s + _SLACK_S)
            finally:
                link.sessions.release()

        job = Job(body, f"ssh-run-{self.host}")
        try:
            return job.within(until - time.monotonic())
        except BrokenError as error:
            link.retire()
            raise lost(self.host, command, str(error)) from error
        except OverdueError:
            _give_up(link, work)
            raise late(self.host, command, deadline_s) from None
        except KeyboardInterrupt:
            _give_up(link, work)
            raise

    def _enter(self) -> tuple[Link, bool]:
        """A link this call takes part in, and whether it was there before."""
        while True:
            before = self._link
            link = self._ready()
            if link.enter():
                return link, link is before

    def _ready(self) -> Link:
        early, self._early = self._early, None
        # The policy bounds it; whoever comes meanwhile waits for the same connection.
        return early.within(threading.TIMEOUT_MAX) if early is not None else self._connected()

    def _connected(self) -> Link:
        link = self._link
        if link is not None and link.usable:
            return link
        with self._connecting:
            link = self._link
            if link is not None and link.usable:
                return link
            if link is not None:
                link.retire()
            # Asked anew for each connection: known_hosts may have been mended meanwhile.
            endpoints = resolve_endpoints(self._target)
            self._link = link = self._policy.connect(lambda: self._open(endpoints))
            return link

    def _open(self, endpoints: list[Endpoint]) -> Link:
        """One attempt over all hops, within the policy's bound whatever paramiko does."""
        from ddops.transport.ssh_link import Link, chain, close_behind

        connection = chain(endpoints, self._policy.timeout_s)
        try:
            _opened(self.host, connection.open, self._policy)
        except BaseException:
            close_behind(connection)
            raise
        return Link(connection)


def _opened(host: str, work: Callable[[], T], policy: ConnectPolicy) -> T:
    try:
        return Job(work, f"ssh-connect-{host}").within(policy.attempt_s)
    except OverdueError:
        raise TransientConnectError(
            f"{host}: cannot connect", why=f"no login within {policy.attempt_s:g} s"
        ) from None


def _give_up(link: Link, work: Exec) -> None:
    """Leave a call to itself; its link takes no new ones."""
    link.retire()
    work.abandon()


def scan_host_key(target: SshTarget, policy: ConnectPolicy | None = None) -> tuple[str, str, str]:
    """Key type, key in base64 and fingerprint that the target shows now. Nobody logs in there.

    Jump hops are checked and logged in to as ever. The caller shows the fingerprint to a person.
    """
    policy = policy or ConnectPolicy()
    endpoints = resolve_endpoints(target)
    from ddops.transport.ssh_link import chain, close_behind, shown_key

    def look() -> tuple[str, str, str]:
        connection = chain(endpoints, policy.timeout_s)
        try:
            key = _opened(target.name, lambda: shown_key(connection), policy)
        finally:
            close_behind(connection)
        return key.get_name(), key.get_base64(), fingerprint(key.asbytes())

    return policy.connect(look)
