"""The in-memory file system behind `FakeTransport`: what `files` asks of a host, no more."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Callable
from dataclasses import dataclass

from ddops.command import ALONE, Cmd
from ddops.transport import scripts, treehash
from ddops.transport.files import END_MEMBER, digest_command

_MAX_LINKS = 16


@dataclass(frozen=True, slots=True)
class Node:
    """A file (`data`), a directory, or a link (`data` is its target); `mode` as in stat."""

    mode: int
    data: bytes = b""


class FakeError(Exception):
    """What the host's tool would have printed and its status."""

    def __init__(self, rc: int, stderr: str) -> None:
        super().__init__(stderr)
        self.rc = rc
        self.stderr = stderr


class FakeFiles:
    """Absolute paths to nodes. `free` is how many more bytes fit; `None` is no bound."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(stat.S_IFDIR | 0o755)}
        self.free: int | None = None
        self._scripts: dict[str, Callable[[Cmd, list[str]], bytes]] = {
            scripts.WRITE: self._write,
            scripts.READ: self._read,
            scripts.READ_MANY: self._read_many,
            scripts.MAKE_DIRS: self._make_dirs,
            scripts.LINK: self._link,
            scripts.SEND_TREE: self._send_tree,
            scripts.REMOVE_TREE: self._remove_tree,
        }
        self._digest = digest_command("/").stdin

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Set up a file and its directories."""
        self.make_dirs(posixpath.dirname(path))
        self.nodes[self.resolve(path)] = Node(stat.S_IFREG | mode, data)

    def get(self, path: str) -> Node | None:
        """The node at `path`, links followed."""
        return self.nodes.get(self.resolve(path))

    def make_dirs(self, path: str, mode: int = 0o755) -> None:
        made = self.resolve(path)
        missing = []
        while made not in self.nodes:
            missing.append(made)
            made = posixpath.dirname(made)
        if not stat.S_ISDIR(self.nodes[made].mode):
            raise FakeError(1, f"mkdir: cannot create directory '{path}': Not a directory")
        for number, directory in enumerate(missing):
            self.nodes[directory] = Node(stat.S_IFDIR | (0o755 if number else mode))

    def resolve(self, path: str) -> str:
        """`path` with every link followed, as the kernel would."""
        for _ in range(_MAX_LINKS):
            walked = ""
            parts = [part for part in posixpath.normpath(path).split("/") if part]
            for number, part in enumerate(parts):
                node = self.nodes.get(f"{walked}/{part}")
                if node is not None and stat.S_ISLNK(node.mode):
                    rest = "/".join(parts[number + 1 :])
                    path = posixpath.join(walked or "/", os.fsdecode(node.data), rest)
                    break
                walked = f"{walked}/{part}"
            else:
                return walked or "/"
        raise FakeError(1, f"{path}: Too many levels of symbolic links")

    def answer(self, command: Cmd) -> bytes | None:
        """Standard output of a command of `files`; `None` for any other command."""
        argv = command.argv
        if argv[:2] == ("sh", "-c") and argv[2] in self._scripts:
            return self._scripts[argv[2]](command, list(argv[4:]))
        if argv[1:-1] == (*ALONE, "-") and command.stdin == self._digest:
            return self._tree_digest(argv[-1])
        return None

    def _place(self, path: str) -> str:
        """Where an entry named `path` itself lives: links followed in its directory only."""
        directory = self.resolve(posixpath.dirname(path))
        node = self.nodes.get(directory)
        if node is None or not stat.S_ISDIR(node.mode):
            raise FakeError(1, f"{path}: No such file or directory")
        return posixpath.join(directory, posixpath.basename(path))

    def _take(self, size: int, path: str) -> None:
        if self.free is not None:
            if size > self.free:
                raise FakeError(1, f"{path}: No space left on device")
            self.free -= size

    def _write(self, command: Cmd, args: list[str]) -> bytes:
        path, mode, _, size, _, *instead_of = args
        data = command.stdin_bytes() or b""
        place = self._place(path)
        self._take(len(data), path)
        if len(data) != int(size):
            raise FakeError(1, f"input ended after {len(data)} of {size} bytes")
        if place in self.nodes and stat.S_ISDIR(self.nodes[place].mode):
            raise FakeError(1, f"mv: cannot overwrite directory '{path}' with non-directory")
        self.nodes[place] = Node(stat.S_IFREG | int(mode, 8), data)
        for other in instead_of:
            self.nodes.pop(self._place(other), None)
        return b""

    def _read_many(self, command: Cmd, args: list[str]) -> bytes:
        out = b""
        for path in args:
            if self.get(path) is None:
                out += b"-\n"
                continue
            data = self._read(command, [path])
            out += b"%d\n" % len(data) + data
        return out

    def _read(self, command: Cmd, args: list[str]) -> bytes:
        node = self.get(args[0])
        if node is None:
            raise FakeError(1, f"cat: {args[0]}: No such file or directory")
        if stat.S_ISDIR(node.mode):
            raise FakeError(1, f"cat: {args[0]}: Is a directory")
        return node.data

    def _make_dirs(self, command: Cmd, args: list[str]) -> bytes:
        for path in args[1:]:
            self.make_dirs(path, int(args[0], 8))
        return b""

    def _link(self, command: Cmd, args: list[str]) -> bytes:
        target, link, _ = args
        place = self._place(link)
        if place in self.nodes and stat.S_ISDIR(self.nodes[place].mode):
            raise FakeError(1, f"mv: cannot overwrite directory '{link}' with non-directory")
        self.nodes[place] = Node(stat.S_IFLNK | 0o777, os.fsencode(target))
        return b""

    def _send_tree(self, command: Cmd, args: list[str]) -> bytes:
        _, remote, parent, end = args
        if self.resolve(remote) in self.nodes:
            raise FakeError(17, f"exists already: {remote}")
        data = command.stdin_bytes() or b""
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [(m, archive.extractfile(m)) for m in archive if m.name != end]
            whole = END_MEMBER in archive.getnames()
            content = {m.name: (m, f.read() if f else b"") for m, f in members}
        if not whole:
            raise FakeError(1, "input ended before the archive did")
        self._take(len(data), remote)
        self.make_dirs(parent)
        self.make_dirs(remote)
        for name, (member, inner) in content.items():
            path = posixpath.join(self.resolve(remote), name)
            self.make_dirs(posixpath.dirname(path))
            kind = stat.S_IFLNK if member.issym() else stat.S_IFREG
            body = os.fsencode(member.linkname) if member.issym() else inner
            self.nodes[path] = Node(kind | member.mode, body)
        return b""

    def _remove_tree(self, command: Cmd, args: list[str]) -> bytes:
        parent, name, below = (args[0], args[1], args[2])
        here, root = self.resolve(parent), self.resolve(below)
        if here not in self.nodes or root not in self.nodes:
            return b""
        if not f"{here}/".startswith(f"{root}/"):
            raise FakeError(18, f"leads outside of {below}")
        gone = posixpath.join(here, name)
        for path in [p for p in self.nodes if p == gone or p.startswith(f"{gone}/")]:
            del self.nodes[path]
        return b""

    def _tree_digest(self, remote: str) -> bytes:
        root = self.resolve(remote)
        if root not in self.nodes:
            raise FakeError(1, f"FileNotFoundError: {remote}")
        total = hashlib.sha256()
        inside = {p[len(root) + 1 :]: n for p, n in self.nodes.items() if p.startswith(f"{root}/")}
        for path in sorted(inside, key=os.fsencode):
            node = inside[path]
            if not stat.S_ISDIR(node.mode) and treehash.SKIPPED not in path.split("/")[:-1]:
                inner = hashlib.sha256(node.data).hexdigest()
                total.update(treehash.line(path, node.mode, inner))
        return f"{total.hexdigest()}\n".encode()
