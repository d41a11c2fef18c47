"""Standard streams that do not end the work: readers go away, terminals close, disks fill up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


class Outlet:
    """A text stream that drops what cannot be written any more, and remembers why.

    A deploy whose `| head` has ended must come to its own end, or go back: an exception out of a
    line of narration would leave the host between two releases. Everything else is the stream's.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        if self.error is None:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._lost(error)
        return len(text)

    def flush(self) -> None:
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._lost(error)

    def _lost(self, error: OSError) -> None:
        """From now on to nowhere: what the stream still holds is written at the latest at exit."""
        self.error = error
        try:
            number = self._stream.fileno()
        except (OSError, ValueError):  # a stream of memory, as tests have
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def outlets() -> Iterator[Outlet]:
    """stdout and stderr as outlets for a while; gives that of stdout."""
    before = sys.stdout, sys.stderr
    out, err = (Outlet(s) for s in before)
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def reader_gone() -> bool:
    """Whether nobody takes what goes to stdout any more: a loop that only shows may end."""
    return isinstance(sys.stdout, Outlet) and sys.stdout.error is not None


def open_all() -> None:
    """Give each standard stream that was closed (`>&-`) the null device.

    Before anything else is opened: a ledger or a connection must not get their numbers.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
