"""FAB-*: the NVLink fabric, where there is one. On a PCIe host its absence is health."""

from __future__ import annotations

import re

from ddops.compat.model import Look, Outcome, fail, info, ok, skip, unknown, warn
from ddops.probe import text as t

#: After this long "In Progress" is a fault. A proposal of ours: no vendor states a limit.
REGISTER_WAIT_S = 300.0


def _none(look: Look) -> Outcome | None:
    """SKIP without a fabric; UNKNOWN when nobody knows; None when there is one to judge."""
    if look.chain.wsl:
        return skip("WSL")
    if look.fabric is None:
        return unknown(look.unknown_kind)
    return skip("these GPUs have no NVLink fabric") if look.fabric == "none" else None


def _guest(look: Look) -> bool:
    return look.chain.where not in ("none", "unknown")


def fab_01(look: Look) -> Outcome:
    if look.fabric is None:
        return unknown(look.unknown_kind)
    unit = t.parse_unit(look.chain.out("fm_unit") or "")
    if look.fabric == "none":
        if unit.get("ActiveState") == "failed":
            return info(
                "no fabric here: the failed nvidia-fabricmanager unit is no fault; disable it"
            )
        return info("no fabric is expected")
    return info(f"a fabric is expected: {look.fabric}")


def fab_02(look: Look) -> Outcome:
    if (early := _none(look)) is not None:
        return early
    unit = t.parse_unit(look.chain.out("fm_unit") or "")
    state, load = unit.get("ActiveState"), unit.get("LoadState")
    if state is None:
        return unknown("the state of nvidia-fabricmanager was not read")
    if load == "not-found" or state != "active":
        if _guest(look):
            return unknown(
                f"in a guest ({look.chain.where}) Fabric Manager may run on the host: see FAB-04"
            )
        word = "not installed" if load == "not-found" else state
        log = look.chain.out("fm_log") or ""
        why = "; its log names NV_WARN_NOTHING_TO_DO, see FAB-03" if "NOTHING_TO_DO" in log else ""
        return fail(f"nvidia-fabricmanager is {word}{why}")
    ran = look.chain.ran("fm_version")
    version = t.first_version(ran.said if ran else None)
    driver = look.chain.driver
    if version is None or driver is None:
        return unknown("Fabric Manager runs; its version or the driver's was not read")
    if version != driver:
        return fail(f"Fabric Manager {version}, driver {driver}: they must be equal",
                    f"install nvidia-fabricmanager {driver} and restart it")  # fmt: skip
    return ok(f"Fabric Manager {version} runs")


def fab_03(look: Look) -> Outcome:
    if (early := _none(look)) is not None:
        return early
    if look.fabric != "nvlink5":
        return skip("only NVLink5 boards need NVLSM")
    missing = []
    modules = look.chain.modules
    if modules is None:
        return unknown("the list of modules was not read")
    missing += [m for m in ("mlx5_ib", "ib_umad") if m not in modules]
    ran = look.chain.ran("nvlsm")
    infiniband = look.chain.probes.get("infiniband")
    if ran is not None and ran.rc is None and ran.why.startswith("no nvlsm"):
        missing.append("nvlsm")
    if isinstance(infiniband, dict) and not infiniband.get("umad") and "ib_umad" not in missing:
        missing.append("/dev/infiniband/umad*")
    if missing and _guest(look):
        return unknown(
            f"in a guest ({look.chain.where}) it may be on the host; absent: {', '.join(missing)}"
        )
    if missing:
        return fail(f"missing for NVLink5: {', '.join(missing)}")
    if ran is None or not isinstance(infiniband, dict):
        return unknown("modules are there; NVLSM or the umad devices were not looked at")
    return ok("NVLSM, mlx5_ib and ib_umad are there")


def fab_04(look: Look) -> Outcome:
    """Healthy is Completed and Success and no health flag; `nvidia-smi -L` says nothing of it."""
    if (early := _none(look)) is not None:
        return early
    states = _states(look)
    if not states:
        return unknown("the fabric state was not reported")
    if any(s is None for s, _, _ in states):
        return (
            fail("a GPU of this kind reports no fabric state")
            if look.fabric == "nvlink5"
            else unknown("no fabric state is reported")
        )
    bad = [(s, status) for s, status, _ in states if s != "Completed"]
    uptime = look.chain.probes.get("uptime_s")
    if bad:
        seen = f"{len(bad)} of {len(states)} GPUs: {bad[0][0]}"
        young = isinstance(uptime, float | int) and uptime < REGISTER_WAIT_S
        if bad[0][0] == "In Progress" and young:
            return warn(f"{seen}, {uptime:.0f} s after boot", "wait, and check again")
        return fail(seen)
    faults = [status for _, status, _ in states if status != "Success"]
    if faults:
        return fail(f"registered, but status {faults[0] or 'not reported'} on {len(faults)} GPUs")
    flags = sorted({h for _, _, health in states for h in health})
    if flags:
        return fail(f"health: {', '.join(flags)}")
    return ok(f"{len(states)} GPUs registered")


def _states(look: Look) -> list[tuple[str | None, str | None, tuple[str, ...]]]:
    if look.chain.details:
        return [(d.fabric_state, d.fabric_status, d.fabric_health) for d in look.chain.details]
    rows = [r for r in look.chain.rows or () if "fabric.state" in r]
    return [(r.get("fabric.state"), r.get("fabric.status"), ()) for r in rows]


def fab_05(look: Look) -> Outcome:
    if (early := _none(look)) is not None:
        return early
    links = t.parse_nvlink(look.chain.out("nvlink") or "")
    if links is None:
        return unknown("NVLink states were not read")
    counts, speeds = {len(x) for x in links}, {s for x in links for s in x}
    kind = (look.kinds or [{}])[0]
    want, speed = kind.get("links"), kind.get("link_mb_s")
    if len(links) != len(look.facts.gpus or links):
        return fail(
            f"NVLink of {len(links)} GPUs is reported, {len(look.facts.gpus or ())} are there"
        )
    if counts == {0}:
        return fail("no NVLink is active")
    if len(counts) > 1 or len(speeds) > 1:
        return fail(f"unequal links: {sorted(counts)} a GPU, {sorted(speeds)} GB/s")
    (count,), (one,) = counts, speeds
    if isinstance(want, int) and count != want:
        return fail(f"{count} links a GPU, {want} are right")
    if isinstance(speed, int) and abs(one * 1000 - speed) > 1000:
        return fail(f"{one:g} GB/s a link, {speed / 1000:g} is right")
    return ok(f"{count} links a GPU at {one:g} GB/s")


def fab_06(look: Look) -> Outcome:
    """Stale multicast state shows as error 401 when NCCL sets up NVLS."""
    if (early := _none(look)) is not None:
        return early
    env = {**(look.chain.environ or {}), **(look.launch.env if look.launch else {})}
    if env.get("NCCL_NVLS_ENABLE") == "0":
        return ok("NVLS is switched off by NCCL_NVLS_ENABLE=0")
    proof = (look.chain.proved or {}).get("nccl")
    if proof is None:
        return unknown("nobody has tried it", "ddops check HOST --prove")
    if proof.get("skipped"):
        return unknown(str(proof["skipped"]))
    words = str(proof.get("error") or "")
    if re.search(r"\b401\b|cuMulticast|NVLS", words):
        return warn(f"NVLS fails: {words[:120]}")
    return (
        ok("all-reduce worked")
        if proof.get("ok") is True
        else unknown(f"all-reduce failed: {words[:120]}")
    )


def fab_07(look: Look) -> Outcome:
    if (early := _none(look)) is not None:
        return early
    unit = t.parse_unit(look.chain.out("imex_unit") or "")
    nvl72 = any(
        "GB200" in (g.name or "") or "GB300" in (g.name or "") for g in look.facts.gpus or ()
    )
    active = unit.get("ActiveState") == "active"
    if not nvl72:
        return ok("IMEX is not needed on one HGX board" + (", and runs" if active else ""))
    if not unit:
        return unknown("the state of nvidia-imex was not read")
    return ok("nvidia-imex runs") if active else warn("multi-node NVLink without nvidia-imex")
