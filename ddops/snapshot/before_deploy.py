"""A snapshot as a step of a deploy, taken before anything is staged."""

from __future__ import annotations

from dataclasses import dataclass

from ddops.errors import DdopsError, RefusedError
from ddops.inventory.model import Host
from ddops.snapshot.make import Tools, copy_out, take
from ddops.transport import Transport


@dataclass(frozen=True, slots=True)
class Step:
    """How the step ended. `skipped` says why there is no snapshot; else `evidence` holds it."""

    skipped: str
    evidence: dict[str, object]


def snapshot_for_deploy(
    transport: Transport, host: Host, service: str, tools: Tools, *, required: bool = False
) -> Step:
    """Take the running tree and bring it to every place; for a deploy's `snapshotted`.

    The caller holds the host's lock; this takes none. A host without a tree, as before its first
    deploy, is a SKIP with its reason. Unless `required`, so is a project without a backup place
    and a snapshot that was refused (secrets, large files, a moving tree): what serves is
    not made worse by a deploy without one. With `required` these raise, and a copy that did not
    verify raises always: a place that is set up and does not work must not stay unseen.
    """
    if not tools.places and not required:
        return Step("no [backup] is set up", {})
    try:
        made = take(transport, host, service, None, tools)
    except RefusedError as error:
        if required and "no source tree" not in error.what:
            raise
        return Step(error.what, {})
    try:
        copy_out(made, tools)
    except DdopsError as error:
        error.add_note(f"the snapshot {made.manifest.id[:12]} itself is in the project's store")
        raise
    return Step("", {"snapshot": made.manifest.id, "tree": made.manifest.tree_hash,
                     "fresh": made.fresh, "copies": dict(made.copies)})  # fmt: skip
