"""A snapshot's row in the ledger, made by whoever refers to it."""

from __future__ import annotations

from ddops.ledger import Ledger
from ddops.snapshot.model import Manifest


def note(ledger: Ledger, manifest: Manifest) -> None:
    """Have the ledger know this snapshot; one that it knows is left alone.

    The store keeps snapshots, and the ledger may be newer than they are: it was lost, or it is
    another operator's. So each row that refers to a snapshot is written behind this.
    """
    ledger.add_snapshot(
        manifest.id, host=manifest.host, tree=manifest.tree_hash, release=manifest.release,
        manifest=manifest.content, at=manifest.at,
    )  # fmt: skip
