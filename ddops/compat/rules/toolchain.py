"""TOOL-*: the compilers that JIT kernels go through."""

from __future__ import annotations

from ddops.compat import tables
from ddops.compat.coverage import Coverage, compiler_covers, parse_images
from ddops.compat.model import Look, Outcome, fail, ok, skip, unknown, warn
from ddops.probe import Toolkit
from ddops.probe import text as t
from ddops.probe.version import minor, older

GIB = 1 << 30


def _jit(look: Look) -> Toolkit | None:
    """The toolkit that JIT compilers will use: the first in their order that has an nvcc."""
    return next((k for k in look.chain.toolkits or () if k.nvcc and k.where != "disk"), None)


def _prebuilt(look: Look) -> bool:
    return look.chain.package("flashinfer-jit-cache") is not None


def _stand_in(look: Look) -> Outcome | None:
    return None if look.has_engine else skip(f"the engine environment is {look.subject.engine_env}")


def tool_01(look: Look) -> Outcome:
    if (early := _stand_in(look)) is not None:
        return early
    kits, env = look.chain.toolkits, look.chain.environ
    if kits is None or env is None:
        return unknown("toolkits were not looked for")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        value = env.get(name, "")
        if ":" in value or " " in value:
            return fail(f"{name} holds ':' or a blank: {value!r}", f"set {name} to one folder")
    kit = _jit(look)
    if kit is None:
        wheel = t.parse_nvcc(str((look.chain.env or {}).get("nvcc") or ""))
        if wheel:
            return warn(f"nvcc {wheel} lies in a wheel only", "set CUDA_HOME to its folder")
        if _prebuilt(look):
            return warn("no nvcc; the flashinfer-jit-cache wheel covers FlashInfer's kernels")
        return fail("no nvcc that a JIT compiler would find")
    if kit.version is None:
        return unknown(f"nvcc of {kit.home} does not say its version")
    first = kits[0]
    if first.where in ("CUDA_HOME", "CUDA_PATH") and not first.nvcc:
        return fail(
            f"{first.where}={first.home} has no nvcc", f"unset {first.where}, or correct it"
        )
    return ok(f"nvcc {kit.version} by {kit.where} ({kit.real})")


def tool_02(look: Look) -> Outcome:
    if (early := _stand_in(look)) is not None:
        return early
    kit = _jit(look)
    version = kit.version if kit else t.parse_nvcc(str((look.chain.env or {}).get("nvcc") or ""))
    if version is None:
        if look.chain.toolkits is None:
            return unknown("toolkits were not looked for")
        return (
            skip("no nvcc; see TOOL-01")
            if kit is None
            else unknown("nvcc does not say its version")
        )
    if look.caps is None:
        return unknown(look.unknown_kind)
    answers = [compiler_covers(version, cc) for cc in sorted(set(look.caps))]
    if (bad := _worst(answers)) is not None:
        return bad
    arch = _arch_lists(look)
    if arch is not None:
        return arch
    deep = look.chain.package("sgl-deep-gemm", "deep-gemm")
    family = [compiler_covers(version, cc, family=True) for cc in sorted(set(look.caps))]
    if any(a.runs is False for a in family):
        words = f"nvcc {version} has no family target for these GPUs (from 12.9)"
        if deep and any(cc[0] == 10 for cc in look.caps):
            return fail(f"{words}; DeepGEMM compiles for sm_100f")
        return warn(f"{words}: FlashInfer falls back to the exact target")
    return ok(f"nvcc {version} targets every GPU")


def _worst(answers: list[Coverage]) -> Outcome | None:
    bad = [a.why for a in answers if a.runs is False]
    if bad:
        return fail("; ".join(bad))
    open_ = [a.why for a in answers if a.runs is None]
    return unknown("; ".join(open_)) if open_ else None


def _arch_lists(look: Look) -> Outcome | None:
    """Arch lists people set by hand: on 12.x anything but the family target is suspect."""
    env = {**(look.chain.environ or {}), **(look.launch.env if look.launch else {})}
    text = env.get("FLASHINFER_CUDA_ARCH_LIST")
    if not text or not look.caps:
        return None
    images = parse_images(text.replace(",", " ").replace(";", " ").split())
    for cc in set(look.caps):
        fits = [i for i in images if i is not None and i.cc[0] == cc[0]]
        if not fits:
            return fail(f"FLASHINFER_CUDA_ARCH_LIST={text} leaves out {cc[0]}.{cc[1]}",
                        "unset it, or name this GPU")  # fmt: skip
        if cc[0] == 12 and not any(i.suffix == "f" for i in fits):
            return warn(f"FLASHINFER_CUDA_ARCH_LIST={text}: 12.x kernels want the family target",
                        "FLASHINFER_CUDA_ARCH_LIST=12.0f")  # fmt: skip
    return None


def tool_03(look: Look) -> Outcome:
    if (early := _stand_in(look)) is not None:
        return early
    kit = _jit(look)
    if kit is None or kit.version is None:
        return (
            skip("no nvcc; see TOOL-01")
            if look.chain.toolkits is not None
            else unknown("not looked for")
        )
    have = minor(kit.version)
    if kit.header is None:
        return fail(f"{kit.home} has nvcc but no cuda_runtime_api.h")
    header = (kit.header // 1000, kit.header % 1000 // 10)
    if have is not None and header != have:
        return fail(f"nvcc {kit.version}, headers {header[0]}.{header[1]} in {kit.home}")
    torch = str((look.chain.torch or {}).get("cuda") or "")
    major = minor(torch)
    if major is not None and have is not None and major[0] != have[0]:
        return fail(f"nvcc {kit.version}, torch is built for CUDA {torch}")
    if not kit.curand:
        return fail(f"{kit.home} lacks curand's headers, which FlashInfer includes",
                    "install the curand headers of that CUDA release")  # fmt: skip
    return ok(f"nvcc and headers {header[0]}.{header[1]}")


def tool_04(look: Look) -> Outcome:
    if (early := _stand_in(look)) is not None:
        return early
    kit, gcc = (
        _jit(look),
        t.first_version(look.chain.out("gcc")) or (look.chain.out("gcc") or "").strip(),
    )
    if kit is None or kit.version is None:
        return (
            skip("no nvcc; see TOOL-01")
            if look.chain.toolkits is not None
            else unknown("not looked for")
        )
    if (look.chain.environ or {}).get("NVCC_CCBIN"):
        return unknown("NVCC_CCBIN chooses another compiler, which was not asked")
    ran = look.chain.ran("gcc")
    if ran is not None and ran.rc is None and ran.why.startswith("no gcc"):
        return fail("no host compiler: gcc is not on PATH")
    if not gcc or not gcc.split(".")[0].isdigit():
        return unknown("gcc's version was not read")
    row = next(
        (r for r in tables.table("toolkits").rows if minor(r["ctk"]) == minor(kit.version)), None
    )
    if row is None:
        return unknown(tables.table("toolkits").ends(f"CUDA {kit.version}"))
    if "gcc_max" not in row:
        return unknown(f"the limit of CUDA {row['ctk']} is not in the table; gcc is {gcc}")
    if int(gcc.split(".")[0]) > row["gcc_max"]:
        return fail(f"gcc {gcc}; CUDA {row['ctk']} takes up to {row['gcc_max']}")
    return ok(f"gcc {gcc} with CUDA {row['ctk']}")


def tool_05(look: Look) -> Outcome:
    """glibc 2.41 declares C23 functions that older CUDA headers declare otherwise."""
    if (early := _stand_in(look)) is not None:
        return early
    proof = (look.chain.proved or {}).get("nvcc")
    words = str((proof or {}).get("error") or "")
    if any(name in words for name in ("cospi", "sinpi", "rsqrt")):
        return fail("a compile probe fails on cospi, sinpi or rsqrt")
    if proof is not None and proof.get("ok") is True:
        return ok("a compile probe succeeds")
    kit, libc = _jit(look), minor(look.facts.glibc)
    if kit is None:
        return (
            skip("no nvcc; see TOOL-01")
            if look.chain.toolkits is not None
            else unknown("not looked for")
        )
    if libc is None or minor(kit.version) is None:
        return unknown("glibc or the toolkit does not say its version")
    if libc >= (2, 41) and older(kit.version, "13.3"):
        return warn(
            f"glibc {look.facts.glibc} with CUDA {kit.version} headers; --prove compiles to see"
        )
    return ok(f"glibc {look.facts.glibc} with CUDA {kit.version}")


def tool_06(look: Look) -> Outcome:
    """Triton compiles the exact `a` target, on 10.0 and above with a second ptxas from 3.6 on."""
    if (early := look.no_engine()) is not None:
        return early
    if look.caps is None:
        return unknown(look.unknown_kind)
    triton = look.chain.package("triton")
    if triton is None:
        return unknown("Triton is not installed, or not seen")
    table = tables.table("triton")
    split = older(triton, str(table.data["split_from"])) is False
    binaries = (look.chain.env or {}).get("ptxas")
    seen = (
        {k: t.parse_nvcc(str(v)) for k, v in binaries.items()} if isinstance(binaries, dict) else {}
    )
    row = tables.row("triton", triton) or {}
    answers = []
    for cc in sorted(set(look.caps)):
        new = split and cc[0] >= 10
        override = "TRITON_PTXAS_BLACKWELL_PATH" if new else "TRITON_PTXAS_PATH"
        name = override if override in seen else "ptxas-blackwell" if new else "ptxas"
        version = seen.get(name) or row.get("ptxas_blackwell" if new else "ptxas")
        if version is None:
            return unknown(table.ends(f"Triton {triton}, whose {name} was not asked"))
        one = compiler_covers(str(version), cc)
        answers.append(Coverage(one.runs, f"{name} {one.why}"))
    wrong = "TRITON_PTXAS_PATH" in seen and split and any(cc[0] >= 10 for cc in look.caps)
    bad = _worst(answers)
    note = (
        "; TRITON_PTXAS_PATH does nothing here, TRITON_PTXAS_BLACKWELL_PATH would" if wrong else ""
    )
    if bad is not None:
        return Outcome(bad.verdict, bad.seen + note, "Triton 3.6 or newer, or "
                       + ("TRITON_PTXAS_BLACKWELL_PATH" if split else "TRITON_PTXAS_PATH")
                       + " to a ptxas of 12.9 or newer")  # fmt: skip
    return warn(answers[0].why + note) if wrong else ok("; ".join(a.why for a in answers))


def tool_07(look: Look) -> Outcome:
    if (early := look.no_engine()) is not None:
        return early
    missing = []
    if (look.chain.env or {}).get("python_h") is False:
        missing.append("Python.h (python3-dev)")
    for key, what in (("gcc", "a C compiler"), ("ninja", "ninja")):
        ran = look.chain.ran(key)
        if ran is not None and ran.rc is None and ran.why.startswith("no "):
            missing.append(what)
    cache = look.chain.out("ldconfig")
    if cache is not None and not t.parse_ldconfig(cache, "libcuda.so.1"):
        missing.append("libcuda.so.1 in the loader's cache")
    if missing:
        return fail(f"missing: {', '.join(missing)}")
    if "python_h" not in (look.chain.env or {}) or cache is None or look.chain.out("gcc") is None:
        return unknown("not all ingredients could be looked for")
    return ok("Python.h, a compiler, ninja and libcuda are there")


def tool_08(look: Look) -> Outcome:
    if (early := look.no_engine()) is not None:
        return early
    found = look.chain.probes.get("caches")
    if not isinstance(found, dict):
        return unknown("cache folders were not looked at")
    bad = []
    for name, raw in sorted(found.items()):
        one = raw if isinstance(raw, dict) else {}
        free = one.get("free_bytes")
        if one.get("writable") is False:
            bad.append(f"{name} is not writable")
        if isinstance(free, int) and free < 20 * GIB:
            bad.append(f"{name}: {free / GIB:.0f} GiB free")
        if "flashinfer" in name:
            mine = look.chain.package("flashinfer-python")
            versions = one.get("versions")
            old = [v for v in versions if v != mine] if isinstance(versions, list) else []
            if mine and old:
                bad.append(
                    f"{name} holds kernels of {', '.join(map(str, old[:3]))}, installed is {mine}"
                )
    return warn("; ".join(bad)) if bad else ok("writable, with room")
