"""DRV-*: the loaded driver, its user space, and what they make of the GPUs."""

from __future__ import annotations

from ddops.compat import tables
from ddops.compat.model import Look, Outcome, fail, ok, skip, unknown, warn
from ddops.probe.chain import is_compat
from ddops.probe.version import branch, minor


def drv_01(look: Look) -> Outcome:
    chain = look.chain
    if chain.wsl:
        return skip("WSL: the driver belongs to Windows")
    nouveau = [r["bdf"] for r in chain.pci or () if r.get("driver") == "nouveau"]
    if nouveau:
        return fail(f"nouveau holds {', '.join(map(str, nouveau))}")
    said = chain.ran("smi") or chain.ran("smi_list")
    if chain.modules is None:
        if chain.kernel:
            return ok(f"module {chain.kernel[0]} is loaded")
        if said is not None and "couldn't communicate with the NVIDIA driver" in said.said:
            return fail("nvidia-smi cannot reach the kernel module")
        return unknown("the list of modules was not read")
    if "nvidia" not in chain.modules:
        if chain.where == "container" and chain.kernel:
            return ok(f"module {chain.kernel[0]}, seen from a container")
        return fail("the nvidia module is not loaded")
    if "nvidia_uvm" not in chain.modules:
        return fail(
            "nvidia_uvm is not loaded", "nvidia-modprobe -u -c=0, or load nvidia_uvm at boot"
        )
    return ok(f"nvidia and nvidia_uvm loaded, {chain.driver or 'version not read'}")


def drv_02(look: Look) -> Outcome:
    if look.chain.wsl:
        return skip("WSL")
    if look.kinds is None:
        return unknown(look.unknown_kind)
    if look.chain.kernel is None:
        return unknown("the flavour of the kernel module was not read")
    open_flavour = look.chain.kernel[1]
    new = [str(k["name"]) for k in look.kinds if k["blackwell"]]
    if new and not open_flavour:
        return fail(f"the closed kernel module does not run {', '.join(new)}")
    return ok("open kernel module" if open_flavour else "closed kernel module, allowed on this GPU")


def drv_03(look: Look) -> Outcome:
    """An upgrade of the user space under a loaded module: everything fails until a reboot."""
    chain = look.chain
    if chain.wsl:
        return skip("WSL: two driver numbers are normal there")
    for key in ("smi", "smi_list"):
        ran = chain.ran(key)
        if ran is not None and "Driver/library version mismatch" in ran.said:
            return fail("NVML: driver and library differ; loaded " + (chain.driver or "not read"))
    rows = {r["driver_version"] for r in chain.rows or () if "driver_version" in r}
    kernel = chain.kernel[0] if chain.kernel else None
    seen = {**chain.user_versions, **{f"nvidia-smi ({v})": v for v in rows}}
    if kernel is None or not seen:
        return unknown("the versions of module and libraries were not both read")
    other = {k: v for k, v in seen.items() if v != kernel}
    if other:
        words = ", ".join(f"{k} {v}" if v not in k else k for k, v in sorted(other.items()))
        return fail(f"kernel module {kernel}, but {words}")
    if chain.cuda is not None and chain.cuda.init == 803:
        return fail("cuInit: 803, module and libcuda do not belong together")
    return ok(f"module and libraries are {kernel}")


def drv_04(look: Look) -> Outcome:
    if look.chain.wsl:
        return skip("WSL: the number is Windows'")
    if look.kinds is None:
        return unknown(look.unknown_kind)
    if look.branch is None:
        return unknown(f"driver version not readable: {look.chain.driver}")
    floor = max(int(str(k["driver_floor"])) for k in look.kinds)
    advised = max(int(str(k.get("driver_advised", k["driver_floor"]))) for k in look.kinds)
    seen = f"driver {look.chain.driver}"
    if look.branch < floor:
        return fail(f"{seen}; these GPUs need branch {floor}", f"driver branch {advised} or newer")
    if look.branch < advised:
        return warn(f"{seen}; {advised} is the practical floor of these GPUs")
    return ok(seen)


def drv_05(look: Look) -> Outcome:
    """Minor-version compatibility: any 13.x runs on 580 and later, any 12.x on 525 and later."""
    chain = look.chain
    runtimes = {}
    if chain.torch and isinstance(chain.torch.get("cuda"), str):
        runtimes["torch"] = str(chain.torch["cuda"])
    for kit in (chain.toolkits or ())[:1]:
        if kit.version:
            runtimes["nvcc"] = kit.version
    if not runtimes:
        return skip("no CUDA runtime is installed that could be asked")
    if look.branch is None:
        return unknown(f"driver version not readable: {chain.driver}")
    driver_cuda = tables.cuda_of_driver(look.branch)
    if chain.cuda is not None and chain.cuda.driver and not _compat_in_use(look):
        driver_cuda = f"{chain.cuda.driver // 1000}.{chain.cuda.driver % 1000 // 10}"
    if driver_cuda is None:
        return unknown(tables.table("drivers").ends(f"driver {chain.driver}"))
    notes = []
    for name, version in sorted(runtimes.items()):
        have, can = minor(version), minor(driver_cuda)
        if have is None or can is None:
            return unknown(f"{name}: CUDA version not readable: {version}")
        floor = tables.table("drivers").data["floors"].get(str(have[0]))
        if floor is None:
            return unknown(tables.table("drivers").ends(f"CUDA {version}"))
        if look.branch < int(floor) and not _compat_allowed(look):
            seen = f"{name} is CUDA {version}; driver {chain.driver} runs up to {driver_cuda}"
            return fail(seen, f"driver branch {floor} or newer, or a build for CUDA {can[0]}")
        if have > can:
            notes.append(
                f"{name} {version} is newer than the driver's {driver_cuda}: no PTX from it"
            )
    seen = ", ".join(f"{k} {v}" for k, v in sorted(runtimes.items()))
    return warn("; ".join(notes)) if notes else ok(f"{seen}; the driver brings {driver_cuda}")


def _compat_in_use(look: Look) -> bool:
    cuda = look.chain.cuda
    return cuda is not None and cuda.path is not None and is_compat(cuda.path)


def _compat_allowed(look: Look) -> bool:
    return _compat_in_use(look) and all(
        k["forward_compat"] for k in look.kinds or [{"forward_compat": False}]
    )


def drv_06(look: Look) -> Outcome:
    """A forward-compatibility libcuda that wins on a GPU that may not use it: error 804."""
    cuda = look.chain.cuda
    if cuda is None:
        return unknown("libcuda was not loaded by the probe")
    if cuda.path is None:
        if "cannot open shared object" in cuda.why:
            return fail(f"no libcuda.so.1 on the loader's path: {cuda.why}",
                        "install the driver's user space; in a container, inject it")  # fmt: skip
        return unknown(f"libcuda was not loaded: {cuda.why or 'no reason given'}")
    if cuda.init == 804 or (is_compat(cuda.path) and look.kinds is not None
                            and not all(k["forward_compat"] for k in look.kinds)):  # fmt: skip
        return fail(f"{cuda.path} wins, and these GPUs allow no forward compatibility")
    if not is_compat(cuda.path):
        return ok(f"{cuda.path} wins")
    if look.kinds is None:
        return unknown(f"{cuda.path} wins; {look.unknown_kind}")
    bundled = branch(cuda.path.rpartition(".so.")[2])
    if bundled is not None and look.branch is not None and bundled <= look.branch:
        return fail(
            f"{cuda.path} is no newer than the driver {look.chain.driver}: useless, and may break"
        )
    return warn(f"{cuda.path} wins; allowed on these GPUs")


def drv_07(look: Look) -> Outcome:
    cuda = look.chain.cuda
    if cuda is None:
        return unknown("cuInit was not tried")
    if cuda.init is None:
        if "hangs" in cuda.why:
            return fail("cuInit hangs", "restart Fabric Manager, or reset the GPUs")
        return (
            fail(f"cuInit could not be called: {cuda.why}")
            if "cannot open" in cuda.why
            else unknown(f"cuInit was not reached: {cuda.why}")
        )
    if cuda.init != 0:
        known = tables.row("errors", cuda.init)
        meaning = (
            f": {known['meaning']} ({known['check']})" if known else ", a code not in the table"
        )
        return fail(f"cuInit answers {cuda.init}{meaning}")
    expected = len(look.facts.gpus or ())
    visible = (look.chain.environ or {}).get("CUDA_VISIBLE_DEVICES")
    if cuda.count is None:
        return unknown("cuInit works; the devices were not counted")
    if cuda.count != expected and visible is None:
        return fail(f"CUDA sees {cuda.count} GPUs, nvidia-smi {expected}")
    return ok(f"cuInit works, {cuda.count} GPUs")


def drv_08(look: Look) -> Outcome:
    if look.chain.wsl:
        return skip("WSL uses /dev/dxg")
    nodes = look.chain.probes.get("devices")
    if not isinstance(nodes, dict):
        return unknown("device nodes were not looked at")
    need = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    need += [f"/dev/nvidia{g.index}" for g in look.facts.gpus or ()]
    absent = [n for n in need if n not in nodes]
    if look.facts.gpus is None and not nodes:
        return fail("no NVIDIA device node is there")
    if absent:
        return fail(f"missing: {', '.join(absent)}")
    closed = [n for n in need if nodes[n] is not True]
    if closed:
        return fail(f"this user cannot open {', '.join(closed)}")
    return ok(f"{len(need)} device nodes can be opened")


def drv_09(look: Look) -> Outcome:
    """cuInit 3 with a healthy nvidia-smi on open modules: the HMM fault."""
    cuda, chain = look.chain.cuda, look.chain
    if cuda is None or chain.kernel is None:
        return unknown("cuInit or the module's flavour is not known")
    setting = chain.file("sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    off = setting in ("Y", "1")
    if cuda.init == 3 and chain.kernel[1] and look.facts.gpus and not off:
        return fail("cuInit answers 3 while nvidia-smi is fine, HMM is on")
    return ok("HMM is off" if off else "not that combination")
