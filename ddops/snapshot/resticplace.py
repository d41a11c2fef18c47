"""The second copy: a restic repository with the whole store, so that it suffices alone.

The store's packs never change once written, so restic sends what is new. The manifest follows
when the data was read back, as a snapshot of its own that names the first one. Without it, nothing
counts.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddops.errors import CommandFailed, DdopsError
from ddops.gitio import Repo
from ddops.snapshot.large import file_sha256
from ddops.snapshot.model import Manifest, parse_manifest
from ddops.snapshot.resticio import Restic
from ddops.snapshot.store import MANIFEST, REFS, Store

DATA, DONE = "ddops-data", "ddops-snapshot"


@dataclass(frozen=True, slots=True)
class ResticCopy:
    """A restic repository as a place. `check_percent` of its packs are read back each time."""

    restic: Restic
    check_percent: int = 10

    @property
    def name(self) -> str:
        return self.restic.place

    @property
    def costly(self) -> bool:
        return True

    def keep(self, store: Store, manifest: Manifest) -> dict[str, object]:
        """Back up the store, check, read the manifest back, publish it.

        restic's check wants the repository for itself: another snapshot of this project waits.
        """
        with store.locked("restic"):
            return self._keep(store, manifest)

    def _keep(self, store: Store, manifest: Manifest) -> dict[str, object]:
        self.restic.ensure()
        there = self.published()
        if manifest.id in there:
            return {"words": "there already", "data": there[manifest.id]}
        data, added = self._backup(store, manifest)
        self.restic.run("check", f"--read-data-subset={self.check_percent}%")
        self._publish(manifest, data)
        return {"words": f"{added} bytes added, checked, manifest read back", "data": data,
                "bytes": added}  # fmt: skip

    def there(self) -> list[str]:
        return sorted(self.published())

    def published(self) -> dict[str, str]:
        """Ids of snapshots whose manifest is there, with the restic snapshot of their data."""
        out = {}
        for row in self._snapshots(DONE):
            tags = dict(t.split("=", 1) for t in _tags(row) if "=" in t)
            if "id" in tags and "data" in tags:
                out[tags["id"]] = tags["data"]
        return out

    def check(self, store: Store, manifest: Manifest) -> None:
        """Read every byte of the repository, then this snapshot's manifest."""
        data = self.published().get(manifest.id)
        if data is None:
            raise CommandFailed(f"{self.name} has no snapshot {manifest.id[:12]}", rc=1,
                                next="ddops snapshot brings it there")  # fmt: skip
        with store.locked("restic"):
            self.restic.run("check", "--read-data")
        self._read_manifest(manifest.id)

    def drop(self, store: Store, manifests: Sequence[Manifest]) -> None:
        there = self.published()
        gone = {m.id for m in manifests if m.id in there}
        if not gone:
            return
        ids = [str(r["id"]) for r in self._snapshots(DONE)
               if {t.removeprefix("id=") for t in _tags(r)} & gone]  # fmt: skip
        self.restic.run("forget", *ids, *(there[i] for i in gone))
        self.restic.run("prune")

    def get(self, store: Store, snapshot_id: str) -> None:
        """Bring a snapshot from there into the store; it counts here once it was read."""
        data = self.published().get(snapshot_id)
        if data is None:
            raise DdopsError(f"{self.name} has no snapshot {snapshot_id[:12]}",
                             next="ddops snapshot list")  # fmt: skip
        manifest = self._read_manifest(snapshot_id)
        store.ensure()
        with tempfile.TemporaryDirectory(dir=store.incoming) as folder:
            self.restic.run("restore", data, "--target", folder)
            found = next(Path(folder).rglob("store.git"))
            repo = Repo(found)
            commit = repo.refs(REFS)[snapshot_id]
            names = repo.text("rev-list", "--objects", "--no-object-names", commit).split()
            store.repo.take_pack(repo.make_pack(names))
            for row in manifest.large:
                source, target = found.parent / "large" / row.sha256, store.large(row.sha256)
                if file_sha256(source) != row.sha256:
                    raise DdopsError(f"{self.name}: {row.path} is not what was written")
                if not target.exists():
                    source.replace(target)
        parse_manifest(store.repo.blob(f"{commit}:{MANIFEST}"), snapshot_id)
        store.repo.set_ref(f"{REFS}/{snapshot_id}", commit)

    def _backup(self, store: Store, manifest: Manifest) -> tuple[str, int]:
        tag = f"{DATA},for={manifest.id}"
        out = self.restic.run("backup", "--json", "--tag", tag, "--host", manifest.host,
                              "store.git", "large", cwd=store.dir)  # fmt: skip
        rows = [r for r in self.restic.json_lines(out) if r.get("message_type") == "summary"]
        if not rows:
            raise CommandFailed(f"{self.name}: restic gave no summary of its backup", rc=1)
        return str(rows[-1]["snapshot_id"]), int(str(rows[-1].get("data_added", 0)))

    def _publish(self, manifest: Manifest, data: str) -> None:
        tag = f"{DONE},id={manifest.id},data={data}"
        self.restic.run("backup", "-q", "--tag", tag, "--host", manifest.host, "--stdin",
                        "--stdin-filename", MANIFEST, stdin=manifest.text)  # fmt: skip
        self._read_manifest(manifest.id)

    def _read_manifest(self, snapshot_id: str) -> Manifest:
        raw = self.restic.run("dump", "--tag", f"{DONE},id={snapshot_id}", "latest",
                              f"/{MANIFEST}")  # fmt: skip
        return parse_manifest(raw, snapshot_id)

    def _snapshots(self, tag: str) -> list[Mapping[str, object]]:
        rows = json.loads(self.restic.run("snapshots", "--json", "--tag", tag) or b"[]")
        return list(rows or [])


def _tags(row: Mapping[str, object]) -> list[str]:
    tags = row.get("tags")
    return [str(t) for t in tags] if isinstance(tags, list) else []
