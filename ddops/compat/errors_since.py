"""What GPUs and the kernel said of errors between two collections of one boot. Pure.

For a soak every new Xid counts, those of a program too: the program is the release on trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ddops.model import GateResult, Verdict
from ddops.probe import Chain, Facts
from ddops.probe.text import parse_xids

#: Commands of the collector that hold the kernel's log; the GPUs' rows are always there.
COMMANDS = ("dmesg", "journal")
_ECC = "ecc.errors.uncorrected.volatile.total"


def judge_errors(before: Facts, after: Facts) -> GateResult:
    """FAIL on a new error, UNKNOWN where one could have gone unseen."""
    faults: list[str] = []
    unseen: list[str] = []
    xids = _new_xids(Chain(before), Chain(after))
    if xids is None:
        unseen.append(
            "the kernel log cannot be read: let the login join group adm or systemd-journal"
        )
    first, last = _ecc(before), _ecc(after)
    if first is None or last is None:
        unseen.append("nvidia-smi does not list the GPUs")
    else:
        faults += [f"{uuid} is gone" for uuid in first if uuid not in last]
        for uuid in first.keys() & last.keys():
            was, now = first[uuid], last[uuid]
            if isinstance(was, int) and isinstance(now, int) and now > was:
                faults.append(f"{now - was} new uncorrectable memory errors on {uuid}")
            elif was != now and not (isinstance(was, int) and isinstance(now, int)):
                unseen.append(f"the memory errors of {uuid} were {was} and are {now}")
            elif isinstance(was, str):
                unseen.append(f"the memory errors of {uuid} are {was}")
    faults += [f"Xid {code} on {bus}" for code, bus in xids or ()]
    evidence = {"xids": xids, "ecc_before": first, "ecc_after": last}
    if faults:
        return GateResult("G6", Verdict.FAIL, "; ".join(faults[:6]), evidence)
    if unseen:
        return GateResult("G6", Verdict.UNKNOWN, "; ".join(unseen[:6]), evidence)
    counted = sum(v is not None for v in (last or {}).values())
    words = f"no new Xid on {len(last or {})} GPUs; memory errors counted on {counted}, none new"
    return GateResult("G6", Verdict.PASS, words, evidence)


def _new_xids(before: Chain, after: Chain) -> list[tuple[int, str]] | None:
    """Code and bus of what the log has more; None where no log was readable both times.

    Log against the same log: one event stands in both, in words that differ.
    """
    found: dict[tuple[int, str], None] = {}
    readable = False
    for name in COMMANDS:
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
        number = isinstance(said, str) and said.isdigit()
        out[str(row.get("uuid"))] = int(said) if number else said
    return out
