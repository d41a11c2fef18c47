"""HTTP/1.1 as far as the client needs it: a request's bytes, and where an answer ends."""

from __future__ import annotations

MAX_HEAD = 1 << 16
#: How an engine's stream ends: its last event, and the last chunk. Nothing follows the event.
DONE = b"data: [DONE]\n\n\r\n0\r\n\r\n"


class Malformed(ValueError):
    """The answer is no HTTP/1.1."""


def request_bytes(path, body, host, port, key, close=False):
    """One POST with a JSON body, ready to be sent."""
    lines = [
        "POST %s HTTP/1.1" % path,
        "Host: %s:%d" % (host, port),
        "Content-Type: application/json",
        "Accept: text/event-stream",
        "Content-Length: %d" % len(body),
    ]
    if key:
        lines.append("Authorization: Bearer " + key)
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Framing:
    """Finds the end of one answer in bytes that come in pieces.

    Looked at after every read, so it does no work that grows with what was read before:
    `scan` stands at the first chunk that is not whole yet.
    """

    __slots__ = ("chunked", "head_end", "keep", "length", "scan", "status")

    def __init__(self):
        self.status = 0
        self.head_end = 0
        self.chunked = False
        self.length = None
        self.keep = True
        self.scan = 0

    def done(self, raw):
        """Whether the whole answer is in `raw`. Malformed for what is no HTTP."""
        if not self.head_end and not self._head(raw):
            return False
        if self.chunked:
            if raw.endswith(DONE):
                # To walk over all chunks here takes 1 us each. When hundreds of answers end
                # together, the next ones' first events would wait for that, and lose their stamps.
                return True
            # A chunk of an SSE stream ends "\n\n\r\n"; only the last one ends like this.
            return raw.endswith(b"\r\n\r\n") and self._last_chunk(raw)
        if self.length is None:
            return False  # ends when the connection does
        return len(raw) >= self.head_end + self.length

    def ends_at_close(self):
        return self.head_end > 0 and not self.chunked and self.length is None

    def _head(self, raw):
        end = raw.find(b"\r\n\r\n")
        if end < 0:
            if len(raw) > MAX_HEAD:
                raise Malformed("no end of the head within %d bytes" % MAX_HEAD)
            return False
        first, *lines = bytes(raw[:end]).decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise Malformed("not an HTTP/1.1 answer: %r" % first[:80])
        self.status = int(words[1])
        self.keep = words[0] != "HTTP/1.0"
        for line in lines:
            name, _, value = line.partition(":")
            self._field(name.strip().lower(), value.strip())
        if self.status in (204, 304):
            self.length, self.chunked = 0, False
        self.head_end = self.scan = end + 4
        return True

    def _field(self, name, value):
        if name == "transfer-encoding" and "chunked" in value.lower():
            self.chunked = True
        elif name == "content-length":
            if not value.isdigit():
                raise Malformed("content-length: %r" % value[:40])
            self.length = int(value)
        elif name == "connection":
            self.keep = value.lower() != "close"

    def _last_chunk(self, raw):
        while True:
            eol = raw.find(b"\r\n", self.scan)
            if eol < 0:
                return False
            size = chunk_size(raw, self.scan, eol)
            if size == 0:
                return True  # `raw` ends with an empty line: trailers, if any, are over
            after = eol + 2 + size + 2
            if after > len(raw):
                return False
            self.scan = after


def chunk_size(raw, start, eol):
    """The size in a chunk's first line. Malformed for what is none."""
    try:
        return int(bytes(raw[start:eol]).split(b";", 1)[0], 16)
    except ValueError:
        raise Malformed("not a chunk size: %r" % bytes(raw[start : start + 20])) from None


def body_pieces(raw, framing):
    """`(start, end)` of each stretch of body in `raw`; of a cut answer, what is there."""
    pos, total = framing.head_end, len(raw)
    if not framing.chunked:
        stop = total if framing.length is None else min(total, pos + framing.length)
        return [(pos, stop)] if stop > pos else []
    out: list[tuple[int, int]] = []
    while True:
        eol = raw.find(b"\r\n", pos)
        if eol < 0:
            return out
        size = chunk_size(raw, pos, eol)
        if size == 0:
            return out
        out.append((eol + 2, min(eol + 2 + size, total)))
        pos = eol + 2 + size + 2
        if pos > total:
            return out
