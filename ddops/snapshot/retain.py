"""How many snapshots stay, and removing the others everywhere. A failure here is a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddops.errors import DdopsError
from ddops.snapshot.model import Manifest
from ddops.snapshot.store import REFS

if TYPE_CHECKING:
    from ddops.snapshot.make import Tools


def surplus(found: Sequence[Manifest], keep: int) -> list[Manifest]:
    """What goes when `keep` of each tree stay. `found` is newest first. Pure.

    The newest snapshot of each release stays whatever its age: it is what a rollback needs.
    """
    count: dict[str, int] = {}
    releases: set[str] = set()
    gone = []
    for manifest in found:
        tree = str(manifest.tree["path"])
        count[tree] = count.get(tree, 0) + 1
        first = manifest.release is not None and manifest.release not in releases
        releases |= {manifest.release} if manifest.release else set()
        if count[tree] > keep and not first:
            gone.append(manifest)
    return gone


def retain(host: str, keep: int, tools: Tools, *, dry_run: bool = False) -> list[Manifest]:
    """Remove what is too much, at the places first and here last; what went or would go."""
    gone = surplus(tools.store.manifests(host), keep)
    if dry_run or not gone:
        return gone
    for place in tools.places:
        try:
            place.drop(tools.store, gone)
        except DdopsError as error:
            raise DdopsError(
                f"{host}: retention failed at {place.name}; the new snapshot is safe",
                why=str(error),
                next="ddops snapshot prune --dry-run",
            ) from error
        with tools.ledger() as ledger, ledger.batch():
            known = {s.id for s in ledger.snapshots(host)}
            for manifest in gone:
                if manifest.id in known:
                    ledger.add_copy(manifest.id, place=place.name, state="removed")
    with tools.store.locked():
        tools.store.repo.drop_refs([f"{REFS}/{m.id}" for m in gone])
        tools.store.repo.run("repack", "-q", "-a", "-d", "--window=0")
        tools.store.repo.run("prune", "--expire=1.hour.ago")
    return gone
