"""PCI-*: the way between GPUs on a host without NVLink."""

from __future__ import annotations

from ddops.compat.model import Look, Outcome, fail, info, ok, skip, unknown, warn
from ddops.probe import text as t


def pci_01(look: Look) -> Outcome:
    """At idle a link drops to Gen1 by design: only the width, and the speed under load, count."""
    rows = look.chain.rows or []
    narrow, seen = [], False
    for row in rows:
        have, most = row.get("pcie.link.width.current", ""), row.get("pcie.link.width.max", "")
        if not (have.isdigit() and most.isdigit()):
            continue
        seen = True
        if int(have) < int(most):
            narrow.append(f"GPU {row.get('index')}: x{have} of x{most}")
    if narrow:
        return fail("; ".join(narrow))
    link = (look.chain.proved or {}).get("link")
    gens = link.get("gens") if link else None
    if isinstance(gens, list):
        most_gen = {r.get("pcie.link.gen.max") for r in rows}
        slow = [g for g in gens if str(g) not in most_gen]
        if slow:
            return fail(f"under load the links run at Gen{min(map(str, slow))}")
        return ok("full width, and full speed under load")
    if not seen:
        return unknown("link widths not reported")
    return ok("full width; the speed shows only under load (--prove), Gen1 at idle is normal")


def pci_02(look: Look) -> Outcome:
    details = look.chain.details
    sizes = {d.bus: d.bar1_mib for d in details or ()}
    totals = [int(m) for r in look.chain.rows or () if (m := r.get("memory.total", "")).isdigit()]
    if not sizes or None in sizes.values() or not totals:
        return unknown("BAR1 or memory sizes not reported")
    small = {b: s for b, s in sizes.items() if s is not None and s < max(totals)}
    if small:
        return fail(f"BAR1 is {min(small.values())} MiB, GPU memory {max(totals)} MiB")
    return ok(f"BAR1 covers the memory: {min(s for s in sizes.values() if s is not None)} MiB")


def pci_03(look: Look) -> Outcome:
    rows = [r.get("aer") for r in look.chain.pci or ()]
    totals: dict[str, int] = {}
    for row in rows:
        for kind, text in (row or {}).items() if isinstance(row, dict) else ():
            for line in str(text or "").splitlines():
                name, _, count = line.partition(" ")
                if name.startswith("TOTAL") and count.strip().isdigit():
                    totals[kind] = totals.get(kind, 0) + int(count)
    if not totals:
        return unknown("AER counters not readable here")
    if totals.get("fatal", 0) or totals.get("nonfatal", 0):
        return warn(
            f"uncorrected bus errors: {sum(totals.get(k, 0) for k in ('fatal', 'nonfatal'))}"
        )
    if totals.get("correctable", 0) > 1000:
        return warn(f"{totals['correctable']} corrected bus errors since boot")
    return ok("no uncorrected bus error since boot")


def pci_04(look: Look) -> Outcome:
    """Request or completion redirect on a bridge sends peer traffic up to the root complex."""
    if look.chain.where not in ("none", "unknown"):
        return skip(f"in {look.chain.where} the bridges are not the host's")
    rows, pci = look.chain.lspci, look.chain.pci
    if rows is None:
        return unknown("lspci did not answer", "install pciutils; run the probe as root once")
    above = {str(b) for r in pci or () if isinstance(a := r.get("above"), list) for b in a}
    bridges = [rows[b] for b in sorted(above) if b in rows] or [
        r for r in rows.values() if r.klass == "0604"
    ]
    if not bridges:
        return unknown("no bridge above a GPU was found")
    bad = [b.bdf for b in bridges if b.acs and (b.acs.get("ReqRedir") or b.acs.get("CmpltRedir"))]
    if bad:
        return fail(f"ACS redirects on {', '.join(bad[:6])}")
    denied = [b.bdf for b in bridges if b.acs is None and b.denied]
    if denied:
        return unknown(f"ACS of {len(denied)} bridges needs root to be read")
    return ok(f"no ACS redirect on {len(bridges)} bridges above the GPUs")


def pci_05(look: Look) -> Outcome:
    matrix = t.parse_topo(look.chain.out("topo") or "")
    if matrix is None:
        return unknown("the topology was not read")
    words = sorted({w for w in matrix.values() if w != "X"})
    links = [w for w in words if w.startswith("NV")]
    if look.subject.host_class == "nvlink" and words and not links and look.fabric != "none":
        return warn(f"no NVLink between the GPUs: {', '.join(words)}", "see FAB-04 and FAB-05")
    return info(f"between the GPUs: {', '.join(words) or 'one GPU'}")
