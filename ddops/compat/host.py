"""One host judged whole: its facts, a service's launch where asked, and waivers of the day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from ddops.compat.judge import judge_all, simulated
from ddops.compat.model import Finding, Launch
from ddops.compat.subject import launch_of, subject_of
from ddops.compat.waive import waive
from ddops.config.words import unknown
from ddops.engines import launch_spec
from ddops.errors import RefusedError, UsageError
from ddops.inventory import Inventory
from ddops.inventory.model import Host, Waiver
from ddops.probe import Facts


def launch_for(inventory: Inventory, name: str, host: Host) -> Launch:
    """A service's launch as it would be rendered for this host."""
    service = inventory.services.get(name)
    if service is None:
        words = unknown(name, inventory.services, "service")
        raise UsageError(words, next="ddops config show")
    profile = inventory.profile_of(service)
    spec = launch_spec(service, profile, "${engine_dir}/env")
    return launch_of(spec, profile.engine, service, host)


def judge_host(
    facts: Facts,
    host: Host,
    launch: Launch | None,
    waivers: tuple[Waiver, ...],
    day: date,
    *,
    router: bool = False,
) -> list[Finding]:
    """All findings of a host; simulated facts say so in a row of their own.

    `router`: a service's router is all that it is for, so no GPU chain is judged.
    """
    findings = waive(judge_all(subject_of(facts, host, launch, router=router)), waivers, host, day)
    if facts.simulated:
        findings.insert(0, simulated())
    return findings


def refusal_of(
    host: Host, findings: Sequence[Finding], *, next: str = "see the last column"
) -> RefusedError | None:
    """The error of a host that is not fit; None for one that is."""
    bad = [f.check for f in findings if f.refuses]
    if not bad:
        return None
    return RefusedError(f"{host.name}: not fit: {', '.join(bad)}", next=next)
