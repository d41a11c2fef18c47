"""What GPUs and the kernel said of errors between two collections of one boot. Pure.

For a soak every new Xid counts, those of a program too: the program is the release on trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ddops.compat.counters_since import LIMIT_PER_S, Since, compare, evidence
from ddops.model import GateResult, Verdict
from ddops.probe import Chain, Facts
from ddops.probe.error_counts import (
    Counters,
    complaint,
    link_counters,
    memory_counters,
    names_a_link,
    says_no_links,
)
from ddops.probe.text import parse_xids

#: Commands of the collector that hold the kernel's log.
LOGS = ("dmesg", "journal")
#: All that are asked for; the GPUs' rows are always there.
COMMANDS = (*LOGS, "smi_q", "nvlink_errors")
_ECC = "ecc.errors.uncorrected.volatile.total"
#: Of each kind, as many stand in the message; how many more there are, it says.
_TOLD = 6


def judge_errors(before: Facts, after: Facts) -> GateResult:
    """FAIL on a new error; UNKNOWN where one could have gone unseen; WARN on what was repaired."""
    found = Since()
    first, last = Chain(before), Chain(after)
    xids = _new_xids(first, last)
    if xids is None:
        found.unseen.append(
            "the kernel log cannot be read: let the login join group adm or systemd-journal"
        )
    was, now = _ecc(before), _ecc(after)
    if was is None or now is None:
        found.unseen.append("nvidia-smi does not list the GPUs")
    else:
        _rows(found, was, now)
    seconds = _between(before, after)
    memory = _memory(first, last, seconds)
    links = _links(first, last, seconds)
    _fold(found, memory)
    _fold(found, links)
    found.faults += [f"Xid {code} on {bus}" for code, bus in xids or ()]
    kept = {
        "xids": xids, "ecc_before": was, "ecc_after": now, "seconds": seconds,
        "limit_per_s": LIMIT_PER_S, "memory": evidence(memory), "nvlink": evidence(links),
    }  # fmt: skip
    verdict, words = _verdict(found, memory, links, now or {})
    return GateResult("G6", verdict, words, kept)


def _verdict(
    found: Since, memory: Since, links: Since, last: Mapping[str, object]
) -> tuple[Verdict, str]:
    if found.faults:
        return Verdict.FAIL, _told(found.faults)
    if found.unseen:
        return Verdict.UNKNOWN, _told(found.unseen)
    if found.warnings:
        return Verdict.WARN, "nothing that fails, but " + _told(found.warnings)
    counted = sum(v is not None for v in last.values())
    words = f"no new Xid on {len(last)} GPUs; memory errors counted on {counted}, none new"
    without = {a.partition(": ") for a in memory.absent}
    lacking = len({gpu for gpu, _, name in without if name.startswith(("volatile", "ECC"))})
    words += f" ({lacking} without ECC counters)" if lacking else ""
    nvlinks = f"{links.counted} NVLink counters, none risen" if links.counted else "no NVLink"
    return Verdict.PASS, f"{words}; {nvlinks}"


def _told(words: list[str]) -> str:
    more = len(words) - _TOLD
    return "; ".join(words[:_TOLD]) + (f"; and {more} more" if more > 0 else "")


def _fold(found: Since, part: Since) -> None:
    """A GPU that is gone is gone once, whoever says so."""
    for mine, others in (
        (found.faults, part.faults), (found.unseen, part.unseen), (found.warnings, part.warnings),
    ):  # fmt: skip
        mine += [words for words in others if words not in mine]


def _rows(
    found: Since, first: Mapping[str, int | str | None], last: Mapping[str, int | str | None]
) -> None:
    found.faults += [f"{uuid} is gone" for uuid in first if uuid not in last]
    found.warnings += [f"{u} is new since the first look" for u in last if u not in first]
    for uuid in first:
        if uuid not in last:
            continue
        was, now = first[uuid], last[uuid]
        if isinstance(was, int) and isinstance(now, int):
            if now > was:
                found.faults.append(f"{now - was} new uncorrectable memory errors on {uuid}")
            elif now < was:
                found.unseen.append(
                    f"the uncorrectable memory errors of {uuid} went back from {was} to {now}: the"
                    " driver was loaded anew, or the GPU was reset"
                )
        elif was != now:
            found.unseen.append(f"the memory errors of {uuid} were {was} and are {now}")
        elif isinstance(was, str):
            found.unseen.append(f"the memory errors of {uuid} are {was}")


def _memory(before: Chain, after: Chain, seconds: float | None) -> Since:
    """Counters of `nvidia-smi -q`; without it a pending remap would go unseen."""
    looks = []
    for chain, other in ((before, after), (after, before)):
        ran = chain.ran("smi_q")
        uuids = {**_uuids(other), **_uuids(chain)}
        read = memory_counters(ran.out, uuids) if ran and ran.rc == 0 else None
        if read is None:
            why = (ran.why or f"it ended with {ran.rc}") if ran else "it was not asked"
            return Since(unseen=[f"nvidia-smi -q tells of no GPU ({why})"])
        told = {place for place, _ in read.values}
        mute = [p for p in read.places if p not in told]
        if mute:
            return Since(
                unseen=[f"nvidia-smi -q has no memory errors of {mute[0]} that we can read"]
            )
        looks.append(read)
    return compare(looks[0], looks[1], seconds)


def _links(before: Chain, after: Chain, seconds: float | None) -> Since:
    looks: list[Counters] = []
    for chain in (before, after):
        ran = chain.ran("nvlink_errors")
        silent = ran is None or ran.rc is None
        if ran is None or silent or (ran.rc != 0 and not says_no_links(ran.said)):
            why = (ran.why or f"it ended with {ran.rc}") if ran else "it was not asked"
            return Since(unseen=[f"nvidia-smi nvlink -e does not answer ({why})"])
        if words := complaint(ran.out):
            return Since(unseen=[f"nvidia-smi nvlink -e says: {words}"])
        read = link_counters(ran.out)
        if not read.values and names_a_link(ran.out):
            return Since(
                unseen=["nvidia-smi nvlink -e names links, and no counter that we can read"]
            )
        # A GPU without links is listed or not, as the driver likes: that says nothing of the GPU.
        linked = {place for place, _ in read.values}
        looks.append(Counters(tuple(p for p in read.places if p in linked), read.values))
    out = compare(looks[0], looks[1], seconds)
    listed = {r["uuid"] for r in after.rows or () if "uuid" in r}
    # Its links went with a GPU that is gone: the rows say that once.
    out.faults = [f for f in out.faults if not f.endswith(" is gone") or f.split()[0] in listed]
    return out


def _uuids(chain: Chain) -> dict[str, str]:
    """UUID by bus, as the rows have them."""
    both = ("pci.bus_id", "uuid")
    return {r[both[0]]: r[both[1]] for r in chain.rows or () if all(k in r for k in both)}


def _between(before: Facts, after: Facts) -> float | None:
    """Seconds by the host's clock; None where it stood still or went back."""
    was, now = before.raw.get("at"), after.raw.get("at")
    if not isinstance(was, (int, float)) or not isinstance(now, (int, float)) or now <= was:
        return None
    return round(now - was, 1)


def _new_xids(before: Chain, after: Chain) -> list[tuple[int, str]] | None:
    """Code and bus of what the log has more; None where no log was readable both times.

    Log against the same log: one event stands in both, in words that differ.
    """
    found: dict[tuple[int, str], None] = {}
    readable = False
    for name in LOGS:
        old, new = before.log(name), after.log(name)
        if old is None or new is None:
            continue
        readable = True
        lines = Counter(new.splitlines()) - Counter(old.splitlines())
        for xid in parse_xids("\n".join(lines)):
            found[(xid.code, xid.bus)] = None
    return list(found) if readable else None


def _ecc(facts: Facts) -> Mapping[str, int | str | None] | None:
    """By GPU: a count, None where it has no such counter, or the words that stand there instead."""
    rows = facts.raw.get("gpus")
    if not isinstance(rows, list) or not rows:
        return None
    out: dict[str, int | str | None] = {}
    for row in rows:
        said = row.get(_ECC)
        number = isinstance(said, str) and said.isascii() and said.isdigit() and len(said) <= 20
        out[str(row.get("uuid") or row.get("pci.bus_id"))] = int(said) if number else said
    return out
