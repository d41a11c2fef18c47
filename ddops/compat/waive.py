"""Waivers over findings. A waived check still fails, and says so; it only refuses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date

from ddops.compat.model import Finding
from ddops.inventory.model import Host, Waiver
from ddops.model import Verdict


def waive(
    findings: Sequence[Finding], waivers: Iterable[Waiver], host: Host, today: date
) -> list[Finding]:
    """The findings with the waivers of this host. Of two for one check the later written counts.

    A waiver that is past its day changes nothing and is named where its check still refuses; one
    that nothing needs is told in a row of its own, so that it does not lie in wait.
    """
    mine = {w.check: w for w in waivers if w.covers(host)}
    known = {f.check for f in findings}
    out = [_one(f, mine[f.check], today) if f.check in mine else f for f in findings]
    useless = [
        w for w in mine.values()
        if w.check not in known or not any(f.refuses for f in findings if f.check == w.check)
    ]  # fmt: skip
    return out + [idle(w, known, today) for w in useless]


def _one(finding: Finding, waiver: Waiver, today: date) -> Finding:
    if not finding.refuses:
        return finding
    words = f"until {waiver.until} by {waiver.owner}: {waiver.reason}"
    if waiver.until < today:
        return replace(finding, seen=f"{finding.seen} (its waiver ended: {words})")
    return replace(finding, waived=words)


def idle(waiver: Waiver, known: set[str], today: date) -> Finding:
    """What nothing needs any more would lie in wait for the next failure of its check."""
    words = f"{waiver.check} is waived until {waiver.until}, and "
    if waiver.check not in known:
        seen, verdict = words + "no check has that name", Verdict.WARN
    elif waiver.until < today:
        seen, verdict = words + "both are over: it refuses nothing now", Verdict.INFO
    else:
        seen, verdict = words + "refuses nothing now", Verdict.INFO
    mend = f"remove it from {waiver.origin.file.name}"
    return Finding("WAIVER", "waiver without use", verdict, seen, mend, "I", "host")
