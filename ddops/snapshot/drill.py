"""A restore drill: each place's copy into a scratch folder, proven, and recorded with its time."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ddops.engines import release_digest
from ddops.errors import DdopsError
from ddops.snapshot.make import Tools
from ddops.snapshot.model import Manifest
from ddops.snapshot.note import note
from ddops.snapshot.store import Store
from ddops.snapshot.verify import verify_here


@dataclass(frozen=True, slots=True)
class Drilled:
    """How one place's drill ended."""

    place: str
    verdict: str
    words: str
    seconds: float

    def as_json(self) -> dict[str, object]:
        return {"place": self.place, "verdict": self.verdict, "words": self.words,
                "seconds": round(self.seconds, 2)}  # fmt: skip


@runtime_checkable
class Giver(Protocol):
    """A place that can give a snapshot back."""

    def get(self, store: Store, snapshot_id: str) -> None: ...


def drill(manifest: Manifest, tools: Tools) -> list[Drilled]:
    """Restore from every place into scratch; a failure is an outcome, not an error."""
    out = []
    with tools.ledger() as ledger:
        note(ledger, manifest)
    for place in tools.places:
        began = time.monotonic()
        try:
            words, verdict = _one(place, manifest), "PASS"
        except DdopsError as error:
            words, verdict = str(error), "FAIL"
        row = Drilled(place.name, verdict, words, time.monotonic() - began)
        out.append(row)
        with tools.ledger() as ledger:
            ledger.add_drill(manifest.id, place=place.name, verdict=verdict,
                             evidence=row.as_json())  # fmt: skip
    return out


def _one(place: object, manifest: Manifest) -> str:
    if not isinstance(place, Giver):
        raise DdopsError("this place cannot give a snapshot back")
    with tempfile.TemporaryDirectory(prefix="ddops-drill-") as folder:
        store = Store(Path(folder) / "snapshots")
        place.get(store, manifest.id)
        verify_here(store, manifest)
        files = prove_tree(store, manifest, Path(folder) / "tree")
        release = prove_release(store.read(manifest.id).files, manifest)
        return f"{files} files, tree {manifest.tree_hash[:12]} and {release} proven"


def prove_tree(store: Store, manifest: Manifest, target: Path) -> int:
    """Write the tree out and read it back from disk; how many files. Raises when it differs."""
    target.mkdir()
    env = {"GIT_WORK_TREE": str(target), "GIT_INDEX_FILE": str(target.with_suffix(".index"))}
    repo = store.repo
    (repo.dir / "info").mkdir(exist_ok=True)
    (repo.dir / "info" / "attributes").write_text("* -text -ident -filter !working-tree-encoding\n")
    repo.run("-c", "core.bare=false", "read-tree", manifest.tree_hash, env=env)
    repo.run("-c", "core.bare=false", "checkout-index", "-a", "-q", env=env)
    # A fresh index knows no times: comparing reads every file.
    repo.run("-c", "core.bare=false", "read-tree", "--reset", manifest.tree_hash, env=env)
    words = ("-c", "core.bare=false", "ls-files", "-z", "-m", "-o")
    differing = repo.run(*words, env=env).split(b"\0")[:-1]
    if differing:
        raise DdopsError(f"{len(differing)} files are not what was written",
                         why=repr(differing[:5]))  # fmt: skip
    return len(repo.ls(manifest.tree_hash))


def prove_release(files: Mapping[str, bytes], manifest: Manifest) -> str:
    """The recorded release has the digest that the manifest names."""
    if manifest.release is None:
        return "no release"
    content = json.loads(files["record/release.json"])
    content.pop("digest", None)
    found = release_digest(content)
    if found != manifest.release:
        raise DdopsError(f"the recorded release has the digest {found[:12]}",
                         why=f"the manifest names {manifest.release[:12]}")  # fmt: skip
    return f"release {found[:12]}"
