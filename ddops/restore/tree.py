"""The tree of a snapshot on a host: sent as one pack, laid down by a rename, read back."""

from __future__ import annotations

import json
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddops.command import python, sh
from ddops.errors import CommandFailed, DdopsError, RefusedError
from ddops.hostside import joined
from ddops.inventory.model import Host
from ddops.layout import HostLayout
from ddops.snapshot.host import PIECE, refusal
from ddops.snapshot.model import Manifest, name_of
from ddops.snapshot.record import PACK, REPOSITORY, expanded
from ddops.snapshot.store import Store
from ddops.transport import Transport
from ddops.transport.files import make_dirs

LAY_DEADLINE_S = 1800.0
# $1 file, $2 its size before this piece, $3 its size after it.
_APPEND = """
export LC_ALL=C; umask 077
[ "$2" -eq 0 ] && : > "$1"
have=$(wc -c < "$1") || exit 1
[ "$have" -eq "$2" ] || { echo "it holds $have bytes, $2 were sent" >&2; exit 1; }
cat >> "$1" || exit 1
have=$(wc -c < "$1")
[ "$have" -eq "$3" ] || { echo "input ended at $have of $3 bytes" >&2; exit 1; }
"""


@dataclass(frozen=True, slots=True)
class TreeOnHost:
    """A snapshot's tree and its place on one host."""

    transport: Transport
    host: Host
    manifest: Manifest
    store: Store

    @property
    def layout(self) -> HostLayout:
        return HostLayout(self.host.engine_dir)

    @property
    def path(self) -> str:
        return expanded(name_of(str(self.manifest.tree["path"])), self.host.engine_dir)

    def look(self) -> dict[str, object]:
        """What is there now; see hostside/snap_lay.py."""
        return self._ask({"verb": "look", "engine_dir": self.host.engine_dir,
                          "service": self.manifest.service})  # fmt: skip

    def lay(self, *, replace: bool) -> dict[str, object]:
        """The whole tree at its place. `replace` when what is there is our own doing."""
        seen = self.look()
        pack = None if seen["have"] else self._send_objects()
        files = self.store.read(self.manifest.id).files
        repo = None
        if REPOSITORY in files:
            repo = {**json.loads(files[REPOSITORY]), "pack": self._send(files[PACK], "repo.pack")}
        large = [{"path": name_of(r.path), "from": self._send_large(r.sha256), "mode": r.mode}
                 for r in self.manifest.large]  # fmt: skip
        return self._ask({"verb": "lay", "replace": replace, "pack": pack, "large": large,
                          "repo": repo})  # fmt: skip

    def put(self, paths: Sequence[str], suffix: str | None) -> list[Mapping[str, object]]:
        """Single files; with a suffix the old ones are kept under it, without one refused."""
        pack = None if self.look()["have"] else self._send_objects()
        answer = self._ask({"verb": "files", "paths": list(paths), "suffix": suffix, "pack": pack})
        rows = answer["files"]
        return rows if isinstance(rows, list) else []

    def _send_objects(self) -> str:
        repo = self.store.repo
        pack = repo.make_pack(repo.new_objects(self.manifest.commit, None))
        return self._send(pack, "pack")

    def _send_large(self, sha256: str) -> str:
        return self._send(self.store.large(sha256).read_bytes(), f"{sha256[:16]}.large")

    def _send(self, data: bytes, name: str) -> str:
        """Put bytes beside our git folder, in pieces, so that memory and time stay bounded."""
        folder = f"{self.layout.state}/incoming"
        make_dirs(self.transport, self.layout.state, folder, mode=0o700)
        target = posixpath.join(folder, f"{secrets.token_hex(6)}.{name}")
        for start in range(0, max(1, len(data)), PIECE):
            piece = data[start : start + PIECE]
            command = sh(_APPEND, target, str(start), str(start + len(piece))).with_stdin(piece)
            done = self.transport.run(command, deadline_s=600.0)
            if not done.ok:
                raise CommandFailed(
                    f"{self.host.name}: {name} did not arrive", rc=done.rc, stderr=done.err,
                    next="run the restore again: it goes on from there",
                )  # fmt: skip
        return target

    def _ask(self, spec: dict[str, object]) -> dict[str, object]:
        spec |= {"tree": self.path, "git_dir": self.layout.tree_git(self.path),
                 "commit": self.manifest.commit, "hash": self.manifest.tree_hash,
                 "large_paths": [name_of(r.path) for r in self.manifest.large]}  # fmt: skip
        script = python(joined("snap_git", "snap_lay"), json.dumps(spec),
                        interpreter=self.host.python)  # fmt: skip
        done = self.transport.run(script, deadline_s=LAY_DEADLINE_S, limit=16 << 20)
        if not done.ok:
            raise CommandFailed(f"{self.host.name}: the tree's script failed", rc=done.rc,
                                why=done.err.strip()[-600:],
                                next=f"ddops check {self.host.name}")  # fmt: skip
        answer: dict[str, object] = json.loads(done.out)
        if answer["state"] != "ok":
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: Mapping[str, object]) -> DdopsError:
        name, short = self.host.name, self.manifest.id[:12]
        match answer["state"]:
            case "there":
                return RefusedError(
                    f"{name}: something else is there: {answer['why']}",
                    why="a restore replaces nothing unasked",
                    next=f"ddops restore {short} --to {name} --force, which keeps the old one"
                    " beside it",
                )
            case "no-path":
                return RefusedError(f"snapshot {short} has no {answer['why']}",
                                    next=f"ddops snapshot show {short}")  # fmt: skip
            case "differs":
                return DdopsError(
                    f"{name}: what was written is not what is read back: {answer['paths']}",
                    why="a failing disk, or somebody edits it", next="run the restore again",
                )  # fmt: skip
        return refusal(name, self.path, answer)


def restore_paths(
    transport: Transport, host: Host, manifest: Manifest, store: Store, paths: Sequence[str],
    *, suffix: str | None,
) -> list[Mapping[str, object]]:  # fmt: skip
    """Single files of a snapshot onto a host; each read back."""
    return TreeOnHost(transport, host, manifest, store).put(paths, suffix)
