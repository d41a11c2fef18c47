"""Back to the last other release that passed its gates on a host, without knowing its name.

What counts is the host's own memory: the releases that are staged there, and its journal of what
was committed. So it works from any operator's machine, and after the ledger here is gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddops.compat import launch_of
from ddops.deploy.host import ServiceOnHost
from ddops.deploy.release import Release, staged_release
from ddops.deploy.run import Outcome, Tools, at_work, port_of, together
from ddops.errors import RefusedError, RollbackFailedError, RolledBackError
from ddops.inventory.model import Host, Service
from ddops.model import short
from ddops.transport import Transport


@dataclass(frozen=True, slots=True)
class WayBack:
    """`current` is what the link names now; `releases` passed here before, the last one first."""

    current: str | None
    releases: tuple[str, ...]

    def choose(self, host: str, to: str | None) -> str:
        """The release to go back to. Raises RefusedError when there is none that `to` means."""
        others = [r for r in self.releases if r != self.current]
        if to is None:
            if others:
                return others[0]
            now = short(self.current) if self.current else "nothing"
            raise RefusedError(
                f"{host}: there is nothing to go back to",
                why=f"current is {now}, and no other release that is staged here ever passed",
                next=f"ddops status {host}",
            )
        found = [r for r in self.releases if r.startswith(to.lower())] if len(to) >= 4 else []
        if len(found) != 1 or found[0] == self.current:
            why = "it is current already" if found == [self.current] else (
                "known are " + (", ".join(map(short, others)) or "none")
            )  # fmt: skip
            raise RefusedError(f"{host}: no release to go back to begins with {to!r}", why=why)
        return found[0]


def way_back(journal: str, staged: Sequence[str], service: str, current: str | None) -> WayBack:
    """Read the host's journal, whose first line may be cut. Pure."""
    passed: list[str] = []
    for line in journal.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # cut by the limit on its length, or by a full disk
        if not isinstance(row, dict) or row.get("service") != service:
            continue
        if row.get("state") == "committed" and row.get("verdict") == "ok":
            passed.append(str(row.get("release")))
        elif row.get("state") == "locked" and row.get("committed"):
            passed.append(str(row["committed"]))  # by the link: its own run may have been killed
    order = dict.fromkeys(r for r in reversed(passed) if r in staged)
    return WayBack(current, tuple(order))


def look_back(target: ServiceOnHost) -> WayBack:
    """What a host could go back to."""
    return way_back(
        target.journal_text(), target.staged(), target.service.name, target.links().current
    )


def roll_back(
    transport: Transport, host: Host, service: Service, to: str | None, tools: Tools
) -> Outcome:
    """Make an earlier release live again, gated as any other. Exit 6 when it does not pass."""
    target = ServiceOnHost(
        transport, host, service, port_of(host, service), tools.lookup, tools.redactor
    )
    hurried = replace(tools, snapshots="a way back waits for no backup place")
    with (
        together(target, hurried) as shared,
        at_work(target, f"rollback {service.name}", shared) as work,
    ):
        release = _staged(target, look_back(target).choose(host.name, to))
        if shared.party is not None:
            shared.party.agree(host.name, "release to go back to", release.digest)
        try:
            # What provision would do today says nothing about the environment of that release:
            # the engine in it was asked for its flags, and that is the proof.
            judged = launch_of(release.launch, str(release.content["upstream"]), service, host)
            with work.looking(release, lambda: ()) as ahead:
                return work.go(release, ahead, judged)
        except RolledBackError as error:
            raise RollbackFailedError(
                f"{host.name}: {short(release.digest)} does not pass its gates any more",
                why=f"{error.why}; what served before serves again",
                next=f"ddops status {host.name}",
            ) from error


def _staged(target: ServiceOnHost, digest: str) -> Release:
    return staged_release(digest, target.staged_files(digest))
