"""What commands share: project, settings, inventory, transports, ledger; each made when asked."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ddops.command import Redactor, Secret
from ddops.config import Project, Settings, find_project, load_settings, lookup, resolve_secret
from ddops.errors import DdopsError, ExitCode, PartialError
from ddops.events import Event, Level, Reporter, TextReporter

if TYPE_CHECKING:
    from ddops.inventory import Host, Inventory, Selection
    from ddops.lab.control import Lab
    from ddops.ledger import Ledger
    from ddops.transport import ConnectPolicy, SshTarget, Transport

T = TypeVar("T")
R = TypeVar("R")
#: So many hosts with one error are told together.
_ALIKE = 4


class App:
    """One run of the program. Nothing is read before a command asks for it."""

    def __init__(
        self, start: str, *, verbose: int, quiet: bool, redactor: Redactor | None = None
    ) -> None:
        self._start = Path(start)
        self.redactor = redactor if redactor is not None else Redactor()
        self._verbose = self._quiet = False
        self.speak(verbose=verbose > 0, quiet=quiet)
        self._open: list[Transport] = []
        self._shared: dict[SshTarget, Transport] = {}
        self._ahead: dict[Host, Transport] = {}
        self._sharing = threading.Lock()

    @cached_property
    def project(self) -> Project:
        return find_project(self._start)

    @cached_property
    def settings(self) -> Settings:
        settings = load_settings(self.project)
        for warning in settings.warnings:
            self.warn(warning)
        return settings

    @cached_property
    def inventory(self) -> Inventory:
        from ddops.inventory import load

        return load(self.project)

    @cached_property
    def policy(self) -> ConnectPolicy:
        from ddops.transport import ConnectPolicy

        return ConnectPolicy(
            concurrent=self.settings.connects, timeout_s=self.settings.connect_timeout_s
        )

    def select(
        self, targets: Sequence[str], limit: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> Selection:
        from ddops.inventory import resolve

        return resolve(self.inventory, list(targets), limit=list(limit), exclude=list(exclude))

    def transport(self, host: Host) -> Transport:
        """A transport to the host; closed with the program."""
        return self.open_transport(self.ssh_target(host))

    def reach(self, host: Host, work: Callable[[Transport], R]) -> R:
        """What `work` makes of a connection to the host, which is closed behind it.

        For work on one host after the other of a fleet: connections kept to the end of the program
        would come to more than a process may have open files.
        """
        with self._sharing:
            begun = self._ahead.pop(host) if host in self._ahead else None
        with closing(begun or self.transport(host)) as transport:
            return work(transport)

    def begin(self, host: Host) -> Transport:
        """Begin to connect to a host that `reach` is going to be asked for, one of few."""
        self._ahead[host] = transport = self.transport(host)
        connect_soon(transport)
        return transport

    def shared_transport(self, target: SshTarget) -> Transport:
        """The one transport to a machine that the work on many hosts needs, such as a backup place.

        One for each host would be as many logins there, all open to the end of the program.
        """
        with self._sharing:
            if target not in self._shared:
                self._shared[target] = self.open_transport(target)
            return self._shared[target]

    def open_transport(self, target: SshTarget) -> Transport:
        """A transport to any machine; closed with the program."""
        from ddops.transport.ssh import SshTransport

        made = SshTransport(target, self.policy)
        self._open.append(made)
        return made

    def ssh_target(self, host: Host) -> SshTarget:
        from ddops.transport import SshTarget

        config = self.project.root / Path(host.ssh_config).expanduser() if host.ssh_config else None
        return SshTarget(host.name, host.ssh, config, host.pins.host_key)

    def lookup(self, name: str) -> Path:
        return lookup(self.project, name)

    def resolve(self, reference: str) -> Secret:
        """Fetch a secret; from now on every sink masks it."""
        return self.redactor.add(resolve_secret(reference, base=self.project.root))

    def ledger(self, *, readonly: bool = False) -> Ledger:
        from ddops.ledger import Ledger

        return Ledger.open(self.settings.ledger_path, redactor=self.redactor, readonly=readonly)

    def lab(self) -> Lab:
        from ddops.config import paths
        from ddops.lab import LabPaths
        from ddops.lab.control import Lab

        return Lab(LabPaths(self.project.lab), self.lookup, paths().cache, self.report)

    def fan_out(
        self, items: Sequence[T], work: Callable[[T], R], *, least: int = 1
    ) -> list[tuple[T, R | Exception]]:
        """Side by side, as the settings say, and never fewer than `least` at once."""
        from ddops.transport import fan_out

        tell = self.report.progress if isinstance(self.report, TextReporter) else _silent
        parallel = max(self.settings.parallel, least)
        return fan_out(items, work, parallel=parallel, progress=tell)

    def speak(self, *, verbose: bool = False, quiet: bool = False) -> None:
        """`-v` and `-q`, before the command or behind it, from here on."""
        self._verbose |= verbose
        self._quiet |= quiet
        self.report: Reporter = TextReporter(
            sys.stderr, self.redactor, verbose=self._verbose, quiet=self._quiet
        )

    @property
    def quiet(self) -> bool:
        """Whether only warnings are wanted."""
        return self._quiet

    def say(self, message: str, host: str = "") -> None:
        self.report.emit(Event("cli", message, host))

    def warn(self, message: str, host: str = "") -> None:
        self.report.emit(Event("cli", message, host, Level.WARN))

    def close(self) -> None:
        for transport in self._open:
            transport.close()


def connect_soon(transport: Transport) -> None:
    """Begin to connect, where there is something to connect to."""
    from ddops.transport.ssh import SshTransport

    if isinstance(transport, SshTransport):
        transport.connect_soon()


def _silent(_done: int, _total: int) -> None:
    return None


def end_together(outcomes: Sequence[tuple[str, object]], report: Reporter) -> None:
    """Raise what several hosts' outcomes come to: the one error, or `PartialError`.

    All hosts failing alike keeps their common exit code; any mixture is 9. The errors are told
    here, host by host.
    """
    errors = [(name, e) for name, e in outcomes if isinstance(e, Exception)]
    if not errors:
        return
    for _, error in errors:
        if not isinstance(error, DdopsError):
            raise error
    if len(outcomes) == 1:
        raise errors[0][1]
    told = [(name, e) for name, e in errors if isinstance(e, DdopsError)]
    tell_errors(told, report)
    codes = {e.exit_code for _, e in told}
    done = len(outcomes) - len(errors)
    summary = PartialError(
        f"{len(errors)} of {len(outcomes)} hosts failed: {some([n for n, _ in errors])}",
        why=f"{done} went through" if done else "",
    )
    if done == 0 and len(codes) == 1:
        summary.exit_code = ExitCode(codes.pop())
    raise summary


def tell_errors(errors: Sequence[tuple[str, DdopsError]], report: Reporter) -> None:
    """Each host's error, line by line. Many that failed alike are told once, before the others."""
    alike: dict[tuple[str, ...], list[tuple[str, DdopsError]]] = {}
    for name, error in errors:
        own = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
        said = (own.sub("HOST", line.removeprefix(f"{name}: ")) for line in error.lines())
        alike.setdefault(tuple(said), []).append((name, error))
    for lines, found in sorted(alike.items(), key=lambda kv: -len(kv[1])):
        if len(found) >= _ALIKE:
            hosts = f"{len(found)} hosts ({some([n for n, _ in found])})"
            for line in lines:
                report.emit(Event("outcome", line, hosts, Level.ERROR))
            continue
        for name, error in found:
            for line in error.lines():
                host = "" if line.startswith(name) else name
                report.emit(Event("outcome", line, host, Level.ERROR))


def some(names: Sequence[str], most: int = 8) -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
