"""A snapshot as a step of a deploy, taken before anything is staged.

A deploy waits for it, so it does what protects the tree and no more: a tree that is kept already
is not kept again, whatever release it serves now; the places that answer at once get the copy, and
those where a look alone costs seconds (restic) are left to `ddops snapshot`, unless they are the
only ones, or hold what git does not. Retention is left to it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddops.errors import DdopsError, RefusedError
from ddops.inventory.model import Host
from ddops.probe import Facts
from ddops.snapshot.make import Made, Place, Tools, about, copy_out, take
from ddops.transport import Transport


@dataclass(frozen=True, slots=True)
class Step:
    """How the step ended. `skipped` says why there is no snapshot; else `evidence` holds it."""

    skipped: str
    evidence: dict[str, object]


@dataclass(slots=True)
class BeforeDeploy:
    """The snapshot of one deploy. `ask` takes nothing: it may run ahead, in another thread."""

    transport: Transport
    host: Host
    service: str
    tools_of: Callable[[Host], Tools]
    _tools: Tools | None = None
    _about: dict[str, object] | None = None

    def ask(self) -> None:
        """What belongs to the tree; the places are told apart, and may begin to connect."""
        self._tools = self.tools_of(self.host)
        if self._tools.places:
            self._about = about(self.transport, self.host, self.service)

    def take(self, facts: Facts, required: bool) -> Step:
        """See `snapshot_for_deploy`."""
        return snapshot_for_deploy(
            self.transport, self.host, self.service, self._tools or self.tools_of(self.host),
            required=required, facts=facts, seen=self._about,
        )  # fmt: skip


def snapshot_for_deploy(
    transport: Transport,
    host: Host,
    service: str,
    tools: Tools,
    *,
    required: bool = False,
    facts: Facts | None = None,
    seen: dict[str, object] | None = None,
) -> Step:
    """Take the running tree and bring it to its places; for a deploy's `snapshotted`.

    The caller holds the host's lock; this takes none. A host without a tree, as before its first
    deploy, is a SKIP with its reason. Unless `required`, so is a project without a backup place
    and a snapshot that was refused (secrets, large files, a moving tree): what serves is
    not made worse by a deploy without one. With `required` these raise, all places get their copy,
    and a copy that did not verify raises always: what that means is the caller's to say.
    """
    if not tools.places:
        if required:
            raise RefusedError(
                f"{host.name}: {service} requires a snapshot, and no backup place is set up",
                next="write [backup] in ddops.toml, or take require_snapshot out of the service",
            )
        return Step("no [backup] is set up", {})
    try:
        made = take(transport, host, service, None, tools, facts=facts, kept=True, seen=seen)
    except RefusedError as error:
        if required and "no source tree" not in error.what:
            raise
        return Step(error.what, {})
    places = _places(made, tools.places, required)
    try:
        copy_out(made, replace(tools, places=places, keep=None))
    except DdopsError as error:
        error.add_note(f"the snapshot {made.manifest.id[:12]} itself is in the project's store")
        raise
    later = [p.name for p in tools.places if p not in places and made.fresh]
    evidence: dict[str, object] = {
        "snapshot": made.manifest.id, "tree": made.manifest.tree_hash, "fresh": made.fresh,
        "copies": dict(made.copies), "took_s": {k: round(v, 3) for k, v in made.took.items()},
    }  # fmt: skip
    return Step("", evidence | ({"later": later} if later else {}))


def _places(made: Made, places: Sequence[Place], required: bool) -> list[Place]:
    """Who gets a copy now."""
    quick = [p for p in places if not p.costly]
    if required or not quick or made.manifest.large:
        return list(places)
    return quick
