"""The few programs that the contract suite calls, for the host in memory."""

from __future__ import annotations

import posixpath

from ddops.command import Cmd
from ddops.model import Result
from ddops.transport.fake import Answer, FakeTransport, Hang

TALK = "echo out; echo err >&2; exit 7"
KILLED = "kill -TERM $$"


def fake_host() -> FakeTransport:
    host = FakeTransport("contract")
    host.on("printf", lambda c: "".join(f"{word}\0" for word in c.argv[2:]))
    host.on("cat", lambda c: c.stdin_bytes() or b"")
    host.on("true", b"")
    host.on("pwd", lambda c: f"{c.cwd or '/root'}\n")
    host.on("printenv", lambda c: f"{dict(c.env)[c.argv[1]]}\n")
    host.on("sleep", Hang())
    host.on("head", lambda c: b"\0" * int(c.argv[2]))
    host.on("stat", lambda c: f"{host.files.nodes[c.argv[-1]].mode & 0o7777:o}\n")
    host.on("ls", lambda c: _names(host, c.argv[-1]))
    host.on(lambda c: TALK in c.argv, Result(7, b"out\n", b"err\n", 0.0))
    host.on(lambda c: KILLED in c.argv, Result(143, b"", b"", 0.0))
    host.on("readlink", lambda c: host.files.nodes[c.argv[-1]].data)
    host.on("ln", lambda c: _symlink(host, c))
    return host


def _names(host: FakeTransport, directory: str) -> str:
    inside = [p for p in host.files.nodes if posixpath.dirname(p) == directory and p != directory]
    return "".join(f"{posixpath.basename(p)}\n" for p in sorted(inside))


def _symlink(host: FakeTransport, command: Cmd) -> Answer:
    from ddops.transport.files import link_atomically

    link_atomically(host, command.argv[-2], command.argv[-1])
    return b""
