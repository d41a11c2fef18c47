"""Which places a host's snapshots go to, as the project (or its lab) says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddops.snapshot.gitplace import GitPlace
from ddops.snapshot.model import Manifest
from ddops.snapshot.store import Store


@dataclass(frozen=True, slots=True)
class GitCopy:
    """The bare git repository as a place."""

    place: GitPlace

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def costly(self) -> bool:
        return False

    def keep(self, store: Store, manifest: Manifest) -> dict[str, object]:
        commit = store.ids()[manifest.id]
        there = self.place.ids(make=True)
        if there.get(manifest.id) == commit:
            return {"words": "there already", "commit": commit, "bytes": 0}
        sent = self.place.put(store, manifest, commit, there)
        return {"words": f"uploaded {sent} bytes, read back", "commit": commit, "bytes": sent}

    def check(self, store: Store, manifest: Manifest) -> None:
        self.place.check(manifest, store.ids()[manifest.id])

    def there(self) -> list[str]:
        return sorted(self.place.ids())

    def get(self, store: Store, snapshot_id: str) -> None:
        self.place.get(store, snapshot_id)

    def drop(self, store: Store, manifests: Sequence[Manifest]) -> None:
        there: Mapping[str, str] = self.place.ids()
        gone = [m.id for m in manifests if m.id in there]
        if gone:
            self.place.drop(gone)
