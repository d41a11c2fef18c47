"""HOST-*: can this machine hold an engine at all?"""

from __future__ import annotations

import re

from ddops.compat import tables
from ddops.compat.model import ROUTER_ALONE, Look, Outcome, fail, info, ok, skip, unknown, warn
from ddops.probe import text as t
from ddops.probe.version import minor, older

GIB = 1 << 30
#: Space an engine environment and its caches need.
NEED_FREE = {
    "sglang": 40 * GIB, "sglang-cpu": 4 * GIB, "sim": GIB // 4, ROUTER_ALONE: GIB // 2,
}  # fmt: skip


def host_py(look: Look) -> Outcome:
    facts = look.facts
    words = "Python " + ".".join(str(n) for n in facts.python)
    if facts.python < (3, 10, 0):
        return fail(words)
    if not facts.can_venv:
        return fail(f"{words} without venv", "install python3-venv")
    return ok(words)


def host_disk(look: Look) -> Outcome:
    disk, need = look.facts.disk, NEED_FREE.get(look.subject.engine_env, 40 * GIB)
    if not disk.writable:
        return fail(f"{disk.path} is not writable", "chown it, or set engine_dir in hosts.toml")
    seen = f"{disk.free / GIB:.1f} GiB free for {disk.path}"
    if disk.free < need:
        return fail(seen, f"free {need / GIB:.1f} GiB, or set engine_dir in hosts.toml")
    return ok(seen)


def host_01(look: Look) -> Outcome:
    """The floor is the release's own: sglang's wheels are manylinux_2_34 from 0.5.11 on."""
    facts = look.facts
    if facts.arch != "x86_64":
        return fail(f"CPU architecture {facts.arch}", "the locks shipped with ddops are for x86_64")
    if look.subject.engine_env == "sim":
        return ok(f"x86_64, glibc {facts.glibc or 'unnamed'}; the stand-in needs none")
    have = minor(facts.glibc)
    if have is None:
        return unknown("the C library did not name itself")
    version = look.launch.version if look.launch else look.chain.package("sglang")
    floor = (2, 34)
    if look.subject.engine_env == ROUTER_ALONE or (version and older(version, "0.5.11")):
        floor = (2, 17)
    if have < floor:
        return fail(f"glibc {facts.glibc}, wheels need {floor[0]}.{floor[1]}")
    return ok(f"x86_64, glibc {facts.glibc}")


def host_02(look: Look) -> Outcome:
    """A translated IOMMU domain with ACS redirect sends peer copies through the CPU, or nowhere."""
    line = look.chain.file("proc/cmdline")
    types = {str(r.get("iommu")) for r in look.chain.pci or () if r.get("iommu")}
    if line is None and not types:
        return unknown("kernel command line and IOMMU groups were not read")
    words = (line or "").split()
    if types:
        translated = any(kind.startswith("DMA") for kind in types)
    elif set(words) & {"iommu=pt", "iommu=off", "amd_iommu=off", "intel_iommu=off"}:
        translated = False
    else:
        log = look.chain.kernel_log or ""
        found = re.findall(r"[Dd]efault domain type: (\w+)", log)
        if not found:
            return unknown("the IOMMU's default domain was not read", "run the probe as root once")
        translated = found[-1].lower() == "translated"
    notes = []
    if "pcie_aspm=off" not in words and line is not None:
        notes.append("pcie_aspm=off is advised against links that drop out")
    if any(w.startswith("pcie_acs_override") for w in words):
        notes.append("pcie_acs_override needs a patched kernel, and hides ACS only from Linux")
    if translated:
        return warn("; ".join(["GPUs are in translated IOMMU domains", *notes]))
    seen = "IOMMU in passthrough or off"
    return ok("; ".join([seen, *notes]))


def host_03(look: Look) -> Outcome:
    bad, seen = [], 0
    balancing = look.chain.file("proc/sys/kernel/numa_balancing")
    governor = look.chain.file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if balancing is not None:
        seen += 1
        if balancing != "0":
            bad.append(f"numa_balancing is {balancing}")
    if governor is not None:
        seen += 1
        if governor != "performance":
            bad.append(f"governor {governor}")
    lost = [r["bdf"] for r in look.chain.pci or () if r.get("numa") == "-1"]
    nodes = {str(r.get("numa")) for r in look.chain.pci or ()}
    if lost and len(nodes) > 1:
        bad.append(f"GPUs without a NUMA node: {', '.join(map(str, lost))}")
    if bad:
        return warn("; ".join(bad))
    return ok("NUMA balancing off, governor performance") if seen else unknown("not readable here")


def host_04(look: Look) -> Outcome:
    limits = look.chain.probes.get("limits")
    if not isinstance(limits, dict):
        return unknown("process limits were not read")
    bad = []
    files, shm, lock = (limits.get(k) for k in ("nofile", "shm_bytes", "memlock"))
    if isinstance(files, int) and files < 65536:
        bad.append(f"{files} open files allowed")
    if isinstance(lock, int) and lock < GIB:
        bad.append("memlock is limited")
    if isinstance(shm, int) and shm < 16 * GIB:
        bad.append(f"shared memory (/dev/shm) has {shm / GIB:.1f} GiB")
    return warn("; ".join(bad)) if bad else ok("open files, memlock and /dev/shm are wide enough")


def host_05(look: Look) -> Outcome:
    """Never a failure by itself: it explains what cannot be read elsewhere."""
    words = {"none": "bare metal", "wsl": "WSL: two driver numbers are normal here"}
    return info(words.get(look.chain.where, look.chain.where))


def host_06(look: Look) -> Outcome:
    """A driver that was upgraded under a running module breaks at the next start."""
    loaded = look.chain.driver
    text = look.chain.out("modinfo")
    disk = re.search(r"^version:\s+(\d+\.\d[\d.]*)", text or "", re.MULTILINE)
    if look.chain.wsl:
        return skip("WSL: the driver belongs to Windows")
    if loaded is None or disk is None:
        return unknown("the module on disk was not read")
    if disk.group(1) != loaded:
        return warn(f"loaded {loaded}, on disk {disk.group(1)}: the next reboot changes the driver")
    holds = look.chain.out("holds")
    if holds is not None and "nvidia" not in holds:
        return warn(f"{loaded}; no NVIDIA package is held", "apt-mark hold the driver's packages")
    return ok(f"{loaded} loaded and on disk")


def ct_01(look: Look) -> Outcome:
    """The image's own demand; with the check disabled, DRV-05 speaks instead."""
    env = look.chain.environ
    if env is None:
        return unknown("the environment was not read")
    demand = env.get("NVIDIA_REQUIRE_CUDA")
    if look.chain.where != "container" or not demand:
        return skip("no image demands a CUDA version here")
    if env.get("NVIDIA_DISABLE_REQUIRE", env.get("NVIDIA_DISABLE_REQUIRES")) in ("true", "1"):
        return warn(f"{demand} is not enforced; see DRV-05")
    have = tables.cuda_of_driver(look.branch) if look.branch else None
    if have is None:
        return unknown(tables.table("drivers").ends(f"driver {look.chain.driver}"))
    return _required(demand, have, look.branch or 0)


def _required(demand: str, cuda: str, branch: int) -> Outcome:
    """Alternatives are separated by blanks, conditions of one by commas."""
    unread = False
    for alternative in demand.split():
        answers: list[bool | None] = []
        for part in alternative.split(","):
            found = re.fullmatch(r"(cuda|driver)(>=|<=|>|<|=)(\d+(?:\.\d+)?)", part)
            if not found:
                answers.append(None)  # brand=... asks for things that are not known here
                continue
            what, op, number = found.groups()
            have = minor(cuda) if what == "cuda" else (branch, 0)
            want = minor(number) or (int(float(number)), 0)
            assert have is not None  # noqa: S101 - the table holds readable versions
            answers.append(
                {">=": have >= want, "<=": have <= want, ">": have > want, "<": have < want,
                 "=": have == want}[op]
            )  # fmt: skip
        if all(a is True for a in answers):
            return ok(f"{alternative} holds: driver {branch} brings CUDA {cuda}")
        unread = unread or (None in answers and False not in answers)
    seen = f"the image demands {demand}; driver {branch} brings CUDA {cuda}"
    return unknown(seen) if unread else fail(seen)


def ct_02(look: Look) -> Outcome:
    """CDI files are written once; after a driver change they name libraries that are gone."""
    ran, files = look.chain.ran("ctk"), look.chain.probes.get("cdi")
    if look.chain.where == "container":
        return skip("inside a container: ask the host")
    old = {
        path: version
        for path, version in (files.items() if isinstance(files, dict) else ())
        if version != look.chain.driver
    }
    if old and look.chain.driver:
        words = ", ".join(f"{k} names {v}" for k, v in sorted(old.items()))
        return fail(f"driver {look.chain.driver}, but {words}")
    if ran is None or ran.rc is None:
        return skip("no NVIDIA container toolkit here; ddops starts none")
    version = t.first_version(ran.out)
    return ok(f"container toolkit {version}") if version else unknown("version not readable")


def ct_03(look: Look) -> Outcome:
    env, preload = look.chain.environ, look.chain.file("etc/ld.so.preload")
    if env is None:
        return unknown("the environment was not read")
    found = [x for x in (env.get("LD_PRELOAD"), preload) if x]
    if found:
        return warn(f"preloaded into every process: {', '.join(found)}")
    return ok("nothing is preloaded")
