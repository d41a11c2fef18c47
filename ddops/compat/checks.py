"""The first checks: what a deploy needs of a host before anything is touched.

A check is one pure function of a `Subject`. UNKNOWN is never PASS. When a blocker fails, what
needs it is SKIP and names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddops.model import Verdict
from ddops.probe import Facts

GIB = 1 << 30
#: From 0.5.11 SGLang's wheels are manylinux_2_34.
GLIBC_FLOOR = (2, 34)
#: Device families by compute capability, as ddops' host classes name them.
CLASS_CAPS = {"pcie": ("12.0",), "nvlink": ("9.0", "10.0", "10.3")}
#: First driver branch that knows the architecture in practice.
DRIVER_FLOOR = {"9.0": 525, "10.0": 570, "10.3": 580, "12.0": 570}
#: Space an engine environment and its caches need.
NEED_FREE = {"sglang": 40 * GIB, "sglang-cpu": 4 * GIB, "sim": GIB // 4}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is judged: facts, and what the inventory says the host is for."""

    facts: Facts
    host_class: str
    engine_env: str
    pinned_gpus: tuple[str, ...] = ()
    gpus_needed: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's outcome: what was seen, and what to do about it."""

    check: str
    title: str
    verdict: Verdict
    seen: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """`needs` names checks that must not have failed; `blocker` turns dependents to SKIP."""

    id: str
    title: str
    why: str
    run: Callable[[Subject], tuple[Verdict, str, str]]
    needs: tuple[str, ...] = ()
    gpu_only: bool = False


def judge(subject: Subject) -> list[Finding]:
    """All checks, in order. Pure."""
    out: list[Finding] = []
    bad: set[str] = set()
    for check in CHECKS:
        if check.gpu_only and subject.host_class == "cpu":
            out.append(Finding(check.id, check.title, Verdict.SKIP, "a CPU host"))
            continue
        blocker = next((n for n in check.needs if n in bad), None)
        if blocker:
            out.append(Finding(check.id, check.title, Verdict.SKIP, f"needs {blocker}"))
            bad.add(check.id)
            continue
        verdict, seen, mend = check.run(subject)
        if verdict in (Verdict.FAIL, Verdict.UNKNOWN):
            bad.add(check.id)
        out.append(Finding(check.id, check.title, verdict, seen, mend))
    return out


def _arch(s: Subject) -> tuple[Verdict, str, str]:
    ok = s.facts.arch == "x86_64"
    return (Verdict.PASS if ok else Verdict.FAIL, s.facts.arch,
            "" if ok else "the locks shipped with ddops are for x86_64")  # fmt: skip


def _glibc(s: Subject) -> tuple[Verdict, str, str]:
    mend = "a newer base system (glibc 2.34 or newer), or the vendor's container"
    if s.facts.glibc is None:
        return Verdict.UNKNOWN, "the C library did not name itself", mend
    try:
        seen = tuple(int(p) for p in s.facts.glibc.split(".")[:2])
    except ValueError:
        return Verdict.UNKNOWN, f"glibc {s.facts.glibc}", mend
    if s.engine_env == "sim" or seen >= GLIBC_FLOOR:
        return Verdict.PASS, f"glibc {s.facts.glibc}", ""
    return Verdict.FAIL, f"glibc {s.facts.glibc}", mend


def _python(s: Subject) -> tuple[Verdict, str, str]:
    words = "Python " + ".".join(str(n) for n in s.facts.python)
    if s.facts.python < (3, 10, 0):
        return Verdict.FAIL, words, "Python 3.10 or newer; set python in hosts.toml"
    if not s.facts.can_venv:
        return Verdict.FAIL, f"{words} without venv", "install python3-venv"
    return Verdict.PASS, words, ""


def _disk(s: Subject) -> tuple[Verdict, str, str]:
    disk, need = s.facts.disk, NEED_FREE[s.engine_env]
    seen = f"{disk.free / GIB:.1f} GiB free for {disk.path}"
    if not disk.writable:
        return Verdict.FAIL, f"{disk.path} is not writable", "chown it, or set engine_dir"
    if disk.free < need:
        return Verdict.FAIL, seen, f"free {need / GIB:.1f} GiB, or set engine_dir"
    return Verdict.PASS, seen, ""


def _gpus(s: Subject) -> tuple[Verdict, str, str]:
    gpus = s.facts.gpus
    if gpus is None:
        why = s.facts.unread.get("gpus", "not reported")
        return Verdict.UNKNOWN, why, "nvidia-smi must answer; see its message"
    if not gpus:
        return Verdict.FAIL, "no GPU", "load the driver; see dmesg"
    names = sorted({g.name or "unnamed" for g in gpus})
    seen = f"{len(gpus)} x {', '.join(names)}"
    if s.gpus_needed > len(gpus):
        return Verdict.FAIL, seen, f"the launch needs {s.gpus_needed} GPUs"
    return Verdict.PASS, seen, ""


def _class(s: Subject) -> tuple[Verdict, str, str]:
    caps = {g.compute_cap for g in s.facts.gpus or ()}
    if None in caps:
        return Verdict.UNKNOWN, "compute capability not reported", "a driver that reports it"
    seen = "compute capability " + ", ".join(sorted(c for c in caps if c))
    if caps <= set(CLASS_CAPS[s.host_class]):
        return Verdict.PASS, seen, ""
    return Verdict.FAIL, seen, f"class {s.host_class!r} in hosts.toml does not fit this host"


def _driver(s: Subject) -> tuple[Verdict, str, str]:
    versions = sorted({g.driver or "" for g in s.facts.gpus or ()})
    seen = f"driver {', '.join(versions)}"
    if len(versions) != 1 or not versions[0].split(".")[0].isdigit():
        return Verdict.UNKNOWN, seen, "one driver for all GPUs, with a readable version"
    if s.facts.driver is not None and s.facts.driver != versions[0]:
        return (Verdict.FAIL, f"{seen}, kernel module {s.facts.driver}",
                "reboot: driver and kernel module were split by an upgrade")  # fmt: skip
    branch = int(versions[0].split(".")[0])
    floors = [DRIVER_FLOOR.get(g.compute_cap or "") for g in s.facts.gpus or ()]
    if None in floors:
        return Verdict.UNKNOWN, seen, "this GPU is newer than the table"
    floor = max(f for f in floors if f is not None)
    if branch < floor:
        return Verdict.FAIL, seen, f"driver branch {floor} or newer"
    return Verdict.PASS, seen, ""


def _pins(s: Subject) -> tuple[Verdict, str, str]:
    if not s.pinned_gpus:
        return Verdict.INFO, "no GPU is pinned", "pins.gpu_uuids in hosts.toml binds them"
    have = {g.uuid for g in s.facts.gpus or ()}
    gone = sorted(set(s.pinned_gpus) - {u for u in have if u})
    if gone:
        return Verdict.FAIL, f"pinned but absent: {', '.join(gone)}", "is it the same machine?"
    return Verdict.PASS, f"{len(s.pinned_gpus)} pinned GPUs present", ""


CHECKS = (
    Check("HOST-ARCH", "CPU architecture", "Wheels are built per architecture.", _arch),
    Check("HOST-LIBC", "C library", "SGLang's wheels need glibc 2.34 from 0.5.11 on.", _glibc),
    Check("HOST-PY", "Python", "The engine environment is a venv of this interpreter.", _python),
    Check("HOST-DISK", "Disk", "An environment that runs out of space is half built.", _disk),
    Check("GPU-LIST", "GPUs", "No GPU, or fewer than the launch asks for.", _gpus, gpu_only=True),
    Check("GPU-CLASS", "GPU class", "The class decides which steps and limits apply.", _class,
          ("GPU-LIST",), gpu_only=True),
    Check("GPU-DRIVER", "Driver", "Each architecture has a first driver; a split one fails.",
          _driver, ("GPU-LIST",), gpu_only=True),
    Check("GPU-PINS", "Pinned GPUs", "A swapped baseboard must not inherit a baseline.", _pins,
          ("GPU-LIST",), gpu_only=True),
)  # fmt: skip
