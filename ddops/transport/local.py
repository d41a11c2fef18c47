"""The transport to this machine: the same promises as SSH, over a child process."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ddops.command import Cmd
from ddops.errors import UnreachableError
from ddops.model import Result
from ddops.transport.base import DEFAULT_DEADLINE_S, DEFAULT_LIMIT
from ddops.transport.common import Bounded, late, wire

_CHUNK = 1 << 16
#: Seconds given to a killed process group before its remains are left to the kernel.
_REAP_S = 2.0


class LocalTransport:
    """Runs commands through `/bin/sh` in a process group of their own.

    Like SSH, a command starts in the home directory and the call ends when the command has ended
    and its output is closed. At the deadline the whole group is killed.
    """

    def __init__(self, name: str = "local") -> None:
        self._name = name

    @property
    def host(self) -> str:
        return self._name

    def run(
        self, command: Cmd, *, deadline_s: float = DEFAULT_DEADLINE_S, limit: int = DEFAULT_LIMIT
    ) -> Result:
        start = time.monotonic()
        process = self._start(command)
        out, err = Bounded(limit), Bounded(limit)
        try:
            with _pipes(process):
                _pump(process, command.stdin_bytes() or b"", out, err, start + deadline_s)
                rc = process.wait(max(0.0, start + deadline_s - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            _kill_group(process)
            raise late(self._name, command, deadline_s) from None
        except BaseException:
            _kill_group(process)
            raise
        return Result(
            rc=128 - rc if rc < 0 else rc,
            stdout=out.value(),
            stderr=err.value(),
            duration_s=time.monotonic() - start,
            truncated=out.truncated or err.truncated,
        )

    def close(self) -> None:
        return None

    def _start(self, command: Cmd) -> subprocess.Popen[bytes]:
        home = Path.home()
        try:
            return subprocess.Popen(
                [b"/bin/sh", b"-c", wire(command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=home if home.is_dir() else "/",
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise UnreachableError(
                f"{self._name}: no process could be started", why=str(error)
            ) from error


@contextlib.contextmanager
def _pipes(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Close our ends of the pipes on the way out, whoever still holds the others."""
    try:
        yield
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _pump(
    process: subprocess.Popen[bytes], stdin: bytes, out: Bounded, err: Bounded, until: float
) -> None:
    """Write standard input and read both outputs at once; `TimeoutError` at `until`."""
    pending = memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        for pipe, sink in ((process.stdin, None), (process.stdout, out), (process.stderr, err)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                events = selectors.EVENT_READ if sink else selectors.EVENT_WRITE
                selector.register(pipe, events, (pipe, sink))
        while selector.get_map():
            for key, _ in selector.select(max(0.0, until - time.monotonic())):
                pipe, sink = key.data
                if sink is None:
                    pending = _write_some(key.fd, pending)
                more = _read_some(key.fd, sink) if sink is not None else bool(pending)
                if not more:
                    selector.unregister(pipe)
                    pipe.close()
            if selector.get_map() and time.monotonic() >= until:
                raise TimeoutError


def _write_some(fd: int, pending: memoryview) -> memoryview:
    """What is still to be written; nothing once the reader has gone."""
    try:
        return pending[os.write(fd, pending[:_CHUNK]) :]
    except BlockingIOError:
        return pending
    except BrokenPipeError:
        return pending[:0]


def _read_some(fd: int, sink: Bounded) -> bool:
    """False at the end of the stream."""
    try:
        chunk = os.read(fd, _CHUNK)
    except BlockingIOError:
        return True
    sink.feed(chunk)
    return bool(chunk)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the command and all it started, and take its status off the process table."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
