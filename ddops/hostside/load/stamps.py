"""Receive timestamps from the kernel, where it gives them."""

from __future__ import annotations

import socket
import struct
import time

#: SO_TIMESTAMPNS of asm-generic/socket.h (x86, Arm, RISC-V); Python has no name for it.
SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
_TRIES, _PAUSE_S = 40, 0.005


def stamp_of(ancillary):
    """Nanoseconds of CLOCK_REALTIME, or 0. With several segments read at once: the last one's."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanos = _TIMESPEC.unpack(data)
            return int(seconds) * 1000000000 + int(nanos)
    return 0


def ask_for_stamps(sock):
    """Whether the socket took the option. It means nothing before `Warm` has seen a stamp."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class Warm:
    """Keeps the kernel stamping.

    Linux switches stamping on for the whole machine when the first socket asks, a moment later;
    segments that come before go unstamped. So one socket asks early and stays open.
    """

    def __init__(self):
        self.works, self.why = False, ""
        self._pair = []
        try:
            self._open()
        except (OSError, AttributeError) as error:
            self.why = "%s: %s" % (type(error).__name__, error)

    def _open(self):
        listener = socket.socket()
        self._pair.append(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        client = socket.create_connection(listener.getsockname(), 5)
        self._pair.append(client)
        peer, _ = listener.accept()
        self._pair.append(peer)
        if not ask_for_stamps(client):
            self.why = "the kernel knows no SO_TIMESTAMPNS"
            return
        client.settimeout(5)
        for _ in range(_TRIES):
            peer.send(b"x")
            _, ancillary, _, _ = client.recvmsg(16, ANCILLARY)
            stamp = stamp_of(ancillary)
            if stamp and abs(time.time_ns() - stamp) < 1000000000:
                self.works = True
                return
            time.sleep(_PAUSE_S)
        self.why = "no segment came with a timestamp"

    def close(self):
        for sock in self._pair:
            sock.close()
