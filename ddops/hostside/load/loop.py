"""The loop that sends and receives. One thread, epoll, raw bytes; nothing is parsed here.

For every read it keeps how far the bytes reached and the kernel's stamp of the last segment. Which
events were in which read is worked out after the run, by `parse`.
"""

from __future__ import annotations

import errno
import gc
import select
import socket
import time
from array import array
from collections import deque

from .http1 import Framing, Malformed
from .stamps import ANCILLARY, ask_for_stamps, stamp_of

BUFFER = 1 << 18
#: epoll counts in whole milliseconds: what is due sooner is waited for without sleeping.
SPIN_NS = 1500000
LOOK_NS = 50000000
#: So many connections refused one after the other: nobody is there any more.
GONE = 5
_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN)


class Exchange:
    """One request and what came back. Times are CLOCK_REALTIME nanoseconds, 0 is "never".

    The first byte went out between `sent` and `sent_by`, looked at before and after the call: on a
    busy machine the call itself may have to wait for a core.
    """

    __slots__ = (
        "conn", "ended", "error", "framing", "free_at", "lows", "n", "raw", "reads", "scheduled",
        "sent", "sent_by", "slot", "stamps", "started",
    )  # fmt: skip

    def __init__(self, n, slot, scheduled, free_at=0):
        self.n = n
        self.slot = slot
        self.scheduled = scheduled
        #: When the client could have sent it: a slot or a connection was there. Later is our fault.
        self.free_at = free_at
        self.started = self.sent = self.sent_by = self.ended = 0
        self.conn = "warm"
        self.error = ""
        self.framing = Framing()
        self.raw = bytearray()
        self.reads = array("q")  # bytes of `raw` after each read
        self.stamps = array("q")
        self.lows = array("q")  # without kernel stamps: when the socket was last seen empty


class Conn:
    """A connection: `exchange` is the request on it; `out` is what is still to be sent."""

    __slots__ = ("connecting", "exchange", "fd", "out", "slot", "sock", "used")

    def __init__(self, sock, slot):
        self.sock = sock
        self.fd = sock.fileno()
        self.slot = slot
        self.exchange = None
        self.out = memoryview(b"")
        self.connecting = False
        self.used = False


class Loop:
    """Runs one plan. `payloads` are whole requests, sent in order."""

    def __init__(self, address, payloads, mode, options, kernel_stamps):
        self.address = address
        self.payloads = payloads
        self.concurrency = mode.get("concurrency", 0)
        self.at = mode.get("at_ns")  # open loop: when each is due, after t0
        self.most = mode.get("max_connections", 1024)
        self.cold = options["connections"] == "cold"
        self.timeout_ns = int(options["timeout_s"] * 1e9)
        self.deadline_ns = int(options["deadline_s"] * 1e9)
        self.max_raw = int(options["max_raw_bytes"])
        self.kernel = kernel_stamps
        self.exchanges = []
        self.late_reads = array("q")  # from the kernel's stamp to our read
        self.stopped = ""
        self.t0 = self.end = 0
        self.cpu_s = self.unlooked_s = 0.0
        self.look_every_s = None
        self.wall_before = self.step_ns = 0
        self.raw_bytes = 0
        self._next = 0
        self._conns = {}
        self._idle: deque[Conn] = deque()
        self._waiting: deque[Exchange] = deque()  # open loop: due, and no connection is free
        self._active = 0
        self._refused = 0
        self._epoll = select.epoll()
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)

    def run(self):
        """To the end of the plan, or to its deadline."""
        try:
            if not self.cold:
                self._open_warm(min(self.concurrency or self.most, self.most, len(self.payloads)))
            gc.collect()
            gc.disable()
            self.t0 = time.time_ns()
            self._begin()
            self._turn()
        finally:
            self.end = time.time_ns()
            gc.enable()
            for conn in list(self._conns.values()):
                self._drop(conn)
            self._epoll.close()

    def stop(self, why):
        """No new request; what is under way is given its time."""
        self.stopped = self.stopped or why

    # ---- connections

    def _open_warm(self, count):
        for slot in range(count):
            try:
                sock = socket.create_connection(self.address, 30)
            except OSError:
                return  # each request finds out for itself, and is told apart by it
            self._prepare(sock)
            conn = Conn(sock, slot)
            self._conns[conn.fd] = conn
            self._epoll.register(conn.fd, select.EPOLLIN)
            self._idle.append(conn)

    def _prepare(self, sock):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.kernel:
            ask_for_stamps(sock)

    def _connect(self, exchange, slot):
        """Begin a connection for one request."""
        exchange.started = exchange.started or time.time_ns()
        sock = socket.socket(socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET)
        self._prepare(sock)
        code = sock.connect_ex(self.address)
        conn = Conn(sock, slot)
        conn.exchange = exchange
        if code and code not in _IN_PROGRESS:
            sock.close()
            self._finish(conn, "connect: " + errno.errorcode.get(code, str(code)), registered=False)
            return
        conn.connecting = True
        self._conns[conn.fd] = conn
        self._epoll.register(conn.fd, select.EPOLLOUT)

    def _drop(self, conn):
        if self._conns.pop(conn.fd, None) is not None:
            self._epoll.unregister(conn.fd)
            conn.sock.close()

    # ---- sending

    def _begin(self):
        if self.at is None:
            for slot in range(min(self.concurrency, len(self.payloads))):
                self._issue(slot, self.t0, self.t0)

    def _issue(self, slot, scheduled, free_at):
        """Send the next request of the plan, on a connection that is free or on a new one."""
        n = self._next
        self._next += 1
        exchange = Exchange(n, slot, scheduled, free_at)
        self.exchanges.append(exchange)
        self._active += 1
        if self.cold:
            exchange.conn = "cold"
            self._connect(exchange, slot)
        elif self._idle:
            self._send_on(self._idle.popleft(), exchange)
        elif self.at is not None and len(self._conns) >= self.most:
            self._waiting.append(exchange)
        else:
            exchange.conn = "reopened"
            self._connect(exchange, slot)

    def _send_on(self, conn, exchange):
        conn.exchange = exchange
        conn.slot = exchange.slot
        conn.out = memoryview(self.payloads[exchange.n])
        exchange.started = exchange.started or time.time_ns()
        self._send(conn)

    def _send(self, conn):
        exchange = conn.exchange
        if not exchange.sent:
            exchange.sent = time.time_ns()
        try:
            while conn.out:
                conn.out = conn.out[conn.sock.send(conn.out) :]
                exchange.sent_by = exchange.sent_by or time.time_ns()
        except BlockingIOError:
            self._epoll.modify(conn.fd, select.EPOLLIN | select.EPOLLOUT)
            return
        except OSError as error:
            self._broken(conn, "send: %s" % type(error).__name__)
            return
        conn.used = True

    def _writable(self, conn):
        if conn.connecting:
            conn.connecting = False
            code = conn.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._finish(conn, "connect: " + errno.errorcode.get(code, str(code)))
                return
            conn.out = memoryview(self.payloads[conn.exchange.n])
        self._epoll.modify(conn.fd, select.EPOLLIN)
        self._send(conn)

    # ---- receiving

    def _turn(self):
        poll, view, clock = self._epoll.poll, [self._view], time.time_ns
        conns = self._conns
        next_look = self.t0
        now = self.t0
        while self._active or self._more():
            empty_at = now
            ready = poll(self._patience(clock()))
            now = clock()
            for fd, mask in ready:
                conn = conns.get(fd)
                if conn is None:
                    continue
                if mask & select.EPOLLOUT:
                    self._writable(conn)
                if (
                    mask & ~select.EPOLLOUT and conns.get(fd) is conn
                ):  # a new one may have its number
                    self._readable(conn, view, clock, empty_at)
            if self.at is not None:
                self._issue_due(clock())
            if now >= next_look:
                next_look = now + LOOK_NS
                self._look(now)

    def _readable(self, conn, view, clock, empty_at):
        try:
            count, ancillary, _, _ = conn.sock.recvmsg_into(view, ANCILLARY)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(conn, "read: %s" % type(error).__name__)
            return
        now = clock()
        exchange = conn.exchange
        if exchange is None:
            self._drop_idle(conn)  # closed between two requests, or speaking unasked
            return
        if count == 0:
            self._closed(conn, now)
            return
        stamp = stamp_of(ancillary) if self.kernel else 0
        if stamp:
            self.late_reads.append(now - stamp)
            exchange.lows.append(0)
        else:
            stamp = now
            exchange.lows.append(empty_at)
        raw = exchange.raw
        raw += self._view[:count]
        self.raw_bytes += count
        exchange.reads.append(len(raw))
        exchange.stamps.append(stamp)
        try:
            if exchange.framing.done(raw):
                self._finish(conn, "")
        except Malformed as error:
            self._finish(conn, "malformed: %s" % error)

    def _closed(self, conn, now):
        exchange = conn.exchange
        if exchange.framing.ends_at_close():
            exchange.framing.keep = False
            self._finish(conn, "")
        else:
            self._broken(conn, "closed by the server")

    def _broken(self, conn, why):
        """A kept connection that the server closed just then is opened anew, once."""
        exchange = conn.exchange
        if conn.used and not exchange.raw and exchange.conn == "warm":
            exchange.conn, exchange.sent, exchange.sent_by = "reopened", 0, 0
            self._drop(conn)
            self._connect(exchange, conn.slot)
            return
        self._finish(conn, why)

    def _finish(self, conn, error, registered=True):
        exchange = conn.exchange
        exchange.error = error
        exchange.ended = exchange.stamps[-1] if exchange.stamps and not error else time.time_ns()
        conn.exchange = None
        self._active -= 1
        self._refused = self._refused + 1 if error.startswith("connect") else 0
        if self._refused >= GONE:
            self.stop("the server takes no connection: " + error)
        if registered:
            if error or self.cold or not exchange.framing.keep:
                self._drop(conn)
            else:
                self._idle.append(conn)
        if self.at is None:
            if self._more():
                self._issue(exchange.slot, exchange.ended, exchange.ended)
        elif self._waiting:
            self._from_queue(exchange.ended)

    def _from_queue(self, free_at):
        exchange = self._waiting.popleft()
        exchange.free_at = free_at
        if self._idle:
            self._send_on(self._idle.popleft(), exchange)
        else:
            exchange.conn = "reopened"
            self._connect(exchange, exchange.slot)

    def _drop_idle(self, conn):
        self._drop(conn)
        if conn in self._idle:
            self._idle.remove(conn)

    # ---- time

    def _more(self):
        return not self.stopped and self._next < len(self.payloads)

    def _issue_due(self, now):
        at = self.at
        while self._more() and self.t0 + at[self._next] <= now:
            due = self.t0 + at[self._next]
            self._issue(self._next, due, due)
            now = time.time_ns()

    def _patience(self, now):
        """Seconds that poll may sleep."""
        if self.at is None or not self._more():
            return 0.05
        left = self.t0 + self.at[self._next] - now
        return max(0, (left - SPIN_NS) // 1000000) / 1000 if left > SPIN_NS else 0

    def _look(self, now):
        """Deadlines and limits, twenty times a second."""
        if self.raw_bytes > self.max_raw:
            self.stop("more than %d bytes were received" % self.max_raw)
        if now - self.t0 > self.deadline_ns:
            self.stop("deadline")
            for exchange in self._waiting:
                exchange.error, exchange.ended = "deadline", now
                self._active -= 1
            self._waiting.clear()
        late = now - self.t0 > self.deadline_ns
        for conn in [c for c in self._conns.values() if c.exchange is not None]:
            began = conn.exchange.started
            if late or now - began > self.timeout_ns:
                self._finish(conn, "deadline" if late else "timeout")
