"""GPU-*: are the GPUs there, alike, healthy and free?"""

from __future__ import annotations

from ddops.compat import tables
from ddops.compat.model import Look, Outcome, fail, info, ok, skip, unknown, warn
from ddops.probe import text as t

MARKERS = ("err!", "unknown error", "gpu requires reset", "insufficient permissions", "gpu is lost")
USED_SHARE = 0.02


def gpu_list(look: Look) -> Outcome:
    gpus = look.facts.gpus
    if gpus is None:
        ran = look.chain.ran("smi_list")
        if ran is not None and "No devices were found" in ran.said:
            return fail(
                "nvidia-smi finds no device", "ReBAR, Above-4G decoding, power, the kernel log"
            )
        return unknown(look.facts.unread.get("gpus", "not reported"))
    if not gpus:
        return fail("no GPU")
    seen = f"{len(gpus)} x {', '.join(sorted({g.name or 'unnamed' for g in gpus}))}"
    return ok(seen)


def gpu_class(look: Look) -> Outcome:
    if look.kinds is None:
        return unknown(look.unknown_kind)
    seen = "compute capability " + ", ".join(sorted({f"{a}.{b}" for a, b in look.caps or ()}))
    want = look.subject.host_class
    if look.fabric == "none" and want == "pcie":
        return ok(seen)
    if all(k["host_class"] == want for k in look.kinds):
        return ok(seen)
    return fail(f"{seen}: not a host of class {want}")


def gpu_pins(look: Look) -> Outcome:
    pins = look.subject.pinned_gpus
    if not pins:
        return info("no GPU is pinned; pins.gpu_uuids in hosts.toml binds them")
    gone = sorted(set(pins) - {g.uuid for g in look.facts.gpus or ()})
    return fail(f"pinned but absent: {', '.join(gone)}") if gone else ok(f"{len(pins)} pinned GPUs")


def gpu_01(look: Look) -> Outcome:
    """Virtual functions share the id of their card: only physical ones are counted."""
    if look.chain.wsl:
        return skip("WSL shows no PCI functions")
    pci = look.chain.pci
    if pci is None:
        return unknown("PCI functions were not listed")
    physical = [
        r for r in pci if r.get("virtual") is not True and str(r.get("bdf", "")).endswith(".0")
    ]
    gpus = len(look.facts.gpus) if look.facts.gpus is not None else None
    listed = t.parse_list(look.chain.out("smi_list") or "")
    if gpus is None:
        ran = look.chain.ran("smi_list")
        if ran is not None and "No devices were found" in ran.said and physical:
            return fail(f"{len(physical)} GPUs on the bus, none usable")
        return unknown(f"{len(physical)} GPUs on the bus; nvidia-smi lists none")
    guest = look.chain.where not in ("none", "unknown")
    if listed is not None and listed[0] != gpus:
        return fail(f"nvidia-smi lists {listed[0]} GPUs and describes {gpus}")
    if len(physical) != gpus and not (guest and not physical):
        if guest and len(physical) > gpus:
            return info(
                f"{gpus} of {len(physical)} GPUs on the bus are given to this {look.chain.where}"
            )
        return fail(f"{len(physical)} GPUs on the bus, {gpus} usable")
    return ok(f"{gpus} GPUs on the bus and usable")


def gpu_02(look: Look) -> Outcome:
    rows = look.chain.rows
    if not rows:
        return unknown("no rows of nvidia-smi")
    odd = []
    for field in ("name", "compute_cap", "memory.total", "pci.device_id"):
        values = {r.get(field) for r in rows}
        if len(values) > 1:
            odd.append(f"{field}: {', '.join(sorted(str(v) for v in values))}")
    if odd:
        return fail("GPUs differ: " + "; ".join(odd))
    bios = {r["vbios_version"] for r in rows if "vbios_version" in r}
    if len(bios) > 1:
        return warn(f"different VBIOS versions: {', '.join(sorted(bios))}")
    return ok(f"{len(rows)} alike")


def gpu_03(look: Look) -> Outcome:
    rows, details = look.chain.rows, look.chain.details
    if not rows:
        return unknown("no rows of nvidia-smi")
    bad = []
    for row in rows:
        bad += [
            f"GPU {row.get('index')}: {k} is {v}"
            for k, v in row.items() if v.strip("[]").lower() in MARKERS
        ]  # fmt: skip
        errors = row.get("ecc.errors.uncorrected.volatile.total", "0")
        if errors.isdigit() and int(errors):
            bad.append(f"GPU {row.get('index')}: {errors} uncorrectable memory errors")
    ran = look.chain.ran("smi")
    if ran is not None and "Unable to determine the device handle" in ran.said:
        bad.append("a GPU has no handle any more")
    for one in details or ():
        if one.recovery not in (None, "None"):
            bad.append(f"{one.bus}: recovery action {one.recovery}")
        if one.remap_pending or one.remap_failed:
            bad.append(f"{one.bus}: row remapping pending or failed")
    if bad:
        return fail("; ".join(bad[:6]))
    if details is None:
        return unknown("no error marker; recovery action and row remapping were not read")
    return ok("no error state")


def gpu_04(look: Look) -> Outcome:
    """Xid 13, 31, 43 and 45 are what a program did, not the GPU."""
    log = look.chain.kernel_log
    if log is None:
        return unknown(
            "the kernel log was not readable", "probe as root, or join group adm or systemd-journal"
        )
    table = tables.table("xid").data
    fatal, known = [], []
    for xid in t.parse_xids(log):
        if xid.code in table["action"]:
            if "(None)" not in xid.rest.rpartition(" to ")[2]:
                fatal.append(f"Xid 154: {xid.rest[:80]}")
        elif xid.code in table["hardware"] or xid.code in table["fabric"]:
            fatal.append(f"Xid {xid.code} on {xid.bus}")
        elif xid.code in table["application"]:
            known.append(f"Xid {xid.code}: a program's fault, {xid.rest[:60]}")
        else:
            known.append(f"Xid {xid.code} on {xid.bus}")
    low = log.lower()
    if "fallen off the bus" in low and not fatal:
        fatal.append("a GPU has fallen off the bus")
    if "surprise down" in low:
        fatal.append("Surprise Down on a PCIe port")
    if fatal:
        return fail("; ".join(sorted(set(fatal))[:4]))
    return (
        warn("; ".join(sorted(set(known))[:4]))
        if known
        else ok("no Xid since boot, as far as the log goes back")
    )


def gpu_05(look: Look) -> Outcome:
    modes = {r["persistence_mode"] for r in look.chain.rows or () if "persistence_mode" in r}
    ran = look.chain.ran("persistenced")
    if modes == {"Enabled"} or (ran is not None and ran.out.strip() == "active"):
        return ok("persistence is on")
    return warn("persistence is off") if modes else unknown("persistence mode not reported")


def gpu_06(look: Look) -> Outcome:
    rows = look.chain.rows or []
    limits = {r["power.limit"] for r in rows if "power.limit" in r}
    reasons = [r["clocks_event_reasons.active"] for r in rows if "clocks_event_reasons.active" in r]
    bad = []
    if len(limits) > 1:
        bad.append(f"unequal power limits: {', '.join(sorted(limits))} W")
    for text in reasons:
        try:
            bits = int(text, 16)
        except ValueError:
            continue
        if bits & 0xC8:  # hardware slowdown, thermal slowdown, power brake
            bad.append(f"hardware slowdown: {text}")
    if bad:
        return warn("; ".join(sorted(set(bad))))
    if not limits:
        return unknown("power limits not reported")
    return ok(f"power limit {limits.pop()} W" + ("" if reasons else "; clock reasons not reported"))


def gpu_07(look: Look) -> Outcome:
    rows = look.chain.rows or []
    if not rows:
        return unknown("no rows of nvidia-smi")
    if any(r.get("mig.mode.current") == "Enabled" for r in rows):
        return fail("MIG is on: no peer copies, no NVLS, no tensor parallelism")
    modes = {r["compute_mode"] for r in rows if "compute_mode" in r}
    if modes - {"Default"}:
        return fail(f"compute mode {', '.join(sorted(modes))}", "nvidia-smi -c DEFAULT")
    listed = t.parse_list(look.chain.out("smi_list") or "")
    if listed is not None and listed[1]:
        return fail(f"{listed[1]} MIG devices are there")
    return ok("MIG off or not there" + (", compute mode Default" if modes else ""))


def gpu_08(look: Look) -> Outcome:
    used = []
    for row in look.chain.rows or ():
        have, total = row.get("memory.used", ""), row.get("memory.total", "")
        if not (have.isdigit() and total.isdigit() and int(total)):
            return unknown("memory in use not reported")
        if int(have) > USED_SHARE * int(total):
            used.append(f"GPU {row.get('index')}: {have} MiB")
    if not look.chain.rows:
        return unknown("no rows of nvidia-smi")
    return warn("in use: " + ", ".join(used)) if used else ok("memory is free")
