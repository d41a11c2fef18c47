"""Reading a snapshot back, byte by byte, wherever it is."""

from __future__ import annotations

from ddops.errors import CommandFailed, DdopsError
from ddops.events import Event, Level
from ddops.snapshot.large import file_sha256
from ddops.snapshot.make import Tools
from ddops.snapshot.model import Manifest
from ddops.snapshot.note import note
from ddops.snapshot.store import Store


def verify(manifest: Manifest, tools: Tools) -> None:
    """Check the store and every place; each outcome is recorded. Raises when one is not whole."""
    wrong: list[str] = []
    errors: list[DdopsError] = []
    for place in (None, *tools.places):
        name = place.name if place is not None else "store"
        try:
            if place is None:
                verify_here(tools.store, manifest)
            else:
                place.check(tools.store, manifest)
            state, why = "verified", ""
        except DdopsError as error:
            state, why = "failed", str(error)
            wrong.append(f"{name}: {error.what}")
            errors.append(error)
        level = Level.INFO if state == "verified" else Level.ERROR
        words = f"{name}: {'whole' if state == 'verified' else why}"
        tools.report.emit(Event("verify", words, manifest.host, level))
        if place is not None:
            with tools.ledger() as ledger:
                note(ledger, manifest)
                ledger.add_copy(manifest.id, place=name, state=state, evidence={"why": why})
    if len(errors) == 1 and errors[0].exit_code != DdopsError.exit_code:
        raise errors[0]
    if wrong:
        raise DdopsError(
            f"snapshot {manifest.id[:12]} is not whole at {len(wrong)} of"
            f" {len(tools.places) + 1} places",
            why="; ".join(wrong),
            next="ddops snapshot, which makes a new one where the tree still is",
        )


def verify_here(store: Store, manifest: Manifest) -> None:
    """Every object of the snapshot in the store, the record by sha256, the large files too."""
    try:
        found = store.read(manifest.id)
    except CommandFailed as error:
        raise DdopsError(f"snapshot {manifest.id[:12]} cannot be read here", why=error.why,
                         next="ddops snapshot verify") from error  # fmt: skip
    store.repo.fsck(found.commit)
    for row in manifest.large:
        path = store.large(row.sha256)
        if not path.exists():
            raise DdopsError(f"{row.path}: its bytes are not here", why=str(path))
        if file_sha256(path) != row.sha256:
            raise DdopsError(f"{row.path}: is not what was written", why=str(path))
