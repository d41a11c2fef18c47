"""One command on one session channel: both outputs bounded, input written beside the reading."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import paramiko  # type: ignore[import-untyped,unused-ignore]

from ddops.model import Result
from ddops.transport.common import Bounded, BrokenError, NotStartedError

_CHUNK = 1 << 15
_BUSY_S, _AGAIN_S = 1.0, 0.02


class Exec:
    """Runs in a worker thread; the thread that waits for it may `abandon` it."""

    def __init__(self, text: bytes, stdin: bytes | None, limit: int) -> None:
        self._text = text
        self._stdin = stdin
        self._out, self._err = Bounded(limit), Bounded(limit)
        self._channel: paramiko.Channel | None = None
        self._abandoned = False

    def abandon(self) -> None:
        """Start nothing any more, and close what was started. Never waits."""
        self._abandoned = True
        if self._channel is not None:
            # Closing sends, and sending to a frozen host blocks.
            threading.Thread(target=self._close, name="ssh-close", daemon=True).start()

    def run(self, transport: paramiko.Transport, timeout_s: float) -> Result:
        """The command's result. No PTY, no agent forwarding, no environment."""
        start = time.monotonic()
        self._channel = channel = self._session(transport, timeout_s)
        try:
            if self._abandoned:  # a frozen host has come back after the deadline
                raise BrokenError("given up before it was sent")
            channel.exec_command(self._text)
            helpers = [self._beside(self._read, channel.recv_stderr, self._err)]
            if self._stdin:
                helpers.append(self._beside(self._write, channel, self._stdin))
            else:
                _end_input(channel)
            self._read(channel.recv, self._out)
            helpers[0].join()
            rc = channel.recv_exit_status()
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise BrokenError(str(error) or type(error).__name__) from error
        finally:
            self._close()
        # A status with streams that were cut off is not an answer either.
        if rc < 0 or not (channel.eof_received or transport.is_active()):
            raise BrokenError("the session ended without a status")
        cut = self._out.truncated or self._err.truncated
        taken = time.monotonic() - start
        return Result(rc, self._out.value(), self._err.value(), taken, cut)

    def _close(self) -> None:
        with contextlib.suppress(Exception):  # the link may be going down under it
            if self._channel is not None:
                self._channel.close()

    def _session(self, transport: paramiko.Transport, timeout_s: float) -> paramiko.Channel:
        """A session; a refusal is waited out for a moment.

        sshd counts a session until it has reaped it, a little after the client closed it, so a
        busy connection may be refused although it stays within MaxSessions.
        """
        until = time.monotonic() + _BUSY_S
        while True:
            try:
                return transport.open_session(timeout=timeout_s)
            except Exception as error:  # paramiko raises whatever ended its thread
                over = time.monotonic() > until or self._abandoned
                if (
                    over
                    or not isinstance(error, paramiko.SSHException)
                    or not transport.is_active()
                ):
                    raise NotStartedError(str(error) or type(error).__name__) from error
            time.sleep(_AGAIN_S)

    @staticmethod
    def _beside(work: Callable[..., None], *args: object) -> threading.Thread:
        def body() -> None:
            # A stream fails when the link breaks or the command ends first: the status tells.
            with contextlib.suppress(Exception):
                work(*args)

        thread = threading.Thread(target=body, name="ssh-stream", daemon=True)
        thread.start()
        return thread

    @staticmethod
    def _read(receive: Callable[[int], bytes], sink: Bounded) -> None:
        """To the end, so that the other side is never blocked by what is not kept."""
        while chunk := receive(_CHUNK):
            sink.feed(chunk)

    @staticmethod
    def _write(channel: paramiko.Channel, data: bytes) -> None:
        """All of it, then the end. Not `sendall`, which copies the rest for every packet."""
        view = memoryview(data)
        while view:
            view = view[channel.send(bytes(view[:_CHUNK])) :]
        _end_input(channel)


def _end_input(channel: paramiko.Channel) -> None:
    """Say that no more input comes, and never behind the end of the session.

    paramiko's own `shutdown_write` notes it under the channel's lock and sends it without: a
    session that ends in that moment is closed first, and sshd hangs up on whoever names it then.
    """
    with channel.lock:
        message = None if channel.closed else channel._send_eof()
        if message is not None:
            channel.transport._send_user_message(message)
