"""The project's own store: a bare repository, large files by their hash, and what is half done.

<project>/.ddops/snapshots/
  store.git            refs/ddops/snapshots/<id>: manifest, record, and the tree as its parent
  large/<sha256>       files that git should not hold
  incoming/            packs on their way here
"""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddops.config.files import writing
from ddops.errors import DdopsError, UsageError
from ddops.gitio import Repo
from ddops.snapshot.model import Manifest, Snapshot, parse_manifest

REFS = "refs/ddops/snapshots"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Store:
    """Snapshots here. `dir` is made when something is put into it."""

    dir: Path

    @property
    def repo(self) -> Repo:
        return Repo(self.dir / "store.git")

    @property
    def incoming(self) -> Path:
        return self.dir / "incoming"

    def ensure(self) -> None:
        with writing(self.dir):
            for folder in (self.dir, self.dir / "large", self.incoming):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.repo.ensure()

    @contextmanager
    def locked(self, what: str = "store") -> Iterator[None]:
        """One writer of the store, or one user of a place, at a time in this project."""
        self.ensure()
        with writing(self.dir):
            f = (self.dir / f"{what}.lock").open("w")
        with f:
            fcntl.flock(f, fcntl.LOCK_EX)
            yield

    def ids(self) -> dict[str, str]:
        """Whole snapshots by id, with their commit."""
        return self.repo.refs(REFS)

    def find(self, prefix: str) -> str | None:
        """The id that begins so; None for none. Raises UsageError for several."""
        found = [i for i in self.ids() if i.startswith(prefix)]
        if len(found) > 1:
            raise UsageError(
                f"{prefix} is not one snapshot",
                next="give more digits",
                why=f"it begins {', '.join(i[:12] for i in sorted(found)[:8])}",
            )
        return found[0] if found else None

    def read(self, snapshot_id: str) -> Snapshot:
        """A snapshot with its record, every file against the manifest's sha256."""
        commit = f"{REFS}/{snapshot_id}"
        manifest = parse_manifest(self.repo.blob(f"{commit}:{MANIFEST}"), snapshot_id)
        files = {name: self.repo.blob(f"{commit}:{name}") for name in manifest.record}
        wrong = [n for n, want in manifest.record.items()
                 if hashlib.sha256(files[n]).hexdigest() != want]  # fmt: skip
        if wrong:
            raise DdopsError(
                f"snapshot {snapshot_id[:12]}: {', '.join(wrong)} is not what was written",
                next=f"ddops snapshot verify {snapshot_id[:12]}",
            )
        return Snapshot(manifest, files, self.ids()[snapshot_id])

    def manifest(self, snapshot_id: str) -> Manifest:
        return parse_manifest(self.repo.blob(f"{REFS}/{snapshot_id}:{MANIFEST}"), snapshot_id)

    def manifests(self, host: str | None = None) -> list[Manifest]:
        """All that are here, newest first: each one before those it came after."""
        ids = list(self.ids())
        raw = self.repo.blobs([f"{REFS}/{i}:{MANIFEST}" for i in ids])
        found = [parse_manifest(r, i) for i, r in zip(ids, raw, strict=True)]
        return in_order([m for m in found if host is None or m.host == host])

    def latest(self, host: str, tree: str) -> Manifest | None:
        """The newest of a host's tree, by what came after what and not by any clock."""
        mine = [m for m in self.manifests(host) if m.tree["path"] == tree]
        return mine[0] if mine else None

    def put(self, manifest: Manifest, files: Mapping[str, bytes]) -> str:
        """Keep a manifest with its record. Its reference, which makes it count, comes last."""
        with tempfile.TemporaryDirectory(dir=self.incoming) as folder:
            tree = self.repo.add_files({MANIFEST: manifest.text, **files}, Path(folder))
        at = int(manifest.at.timestamp())
        made = self.repo.commit(tree, f"snapshot {manifest.id}", at, [manifest.commit])
        self.repo.set_ref(f"{REFS}/{manifest.id}", made)
        return made

    def large(self, sha256: str) -> Path:
        return self.dir / "large" / sha256


def in_order(found: list[Manifest]) -> list[Manifest]:
    """Newest first. A clock that went back does not turn a snapshot and its successor round."""
    depth: dict[str, int] = {}
    by_id = {m.id: m for m in found}

    def count(start: Manifest) -> int:
        chain: list[str] = []
        at: Manifest | None = start
        while at is not None and at.id not in depth and at.id not in chain:
            chain.append(at.id)
            at = by_id.get(at.previous) if at.previous else None
        base = depth.get(at.id, 0) if at is not None else 0
        for number, name in enumerate(reversed(chain), 1):
            depth[name] = base + number
        return depth[start.id]

    hosts = {m.host for m in found}
    if len(hosts) <= 1:
        return sorted(found, key=lambda m: (count(m), m.at), reverse=True)
    return sorted(found, key=lambda m: (m.at, count(m)), reverse=True)
