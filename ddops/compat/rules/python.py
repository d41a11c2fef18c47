"""PY-*: the engine environment's packages, and the device code inside them."""

from __future__ import annotations

import re
from typing import Any

from ddops.compat import tables
from ddops.compat.coverage import Coverage, Image, covers, parse_image, parse_images
from ddops.compat.model import Look, Outcome, fail, ok, skip, unknown, warn
from ddops.probe.version import minor, older, parse, satisfies

#: Objects a launch cannot do without; others count when the launch asks for them.
_ALWAYS = "common_ops"
_BY_BACKEND = {"flashmla": "flashmla_ops", "fa3": "flash_ops"}


def py_01(look: Look) -> Outcome:
    if (early := look.no_engine()) is not None:
        return early
    env, version = look.chain.env or {}, look.chain.package("sglang")
    python = str(env.get("python") or "")
    if env.get("free_threaded") is True:
        return fail(
            f"Python {python} is the free-threaded build: no wheel of the chain is made for it"
        )
    if parse(python) is None:
        return unknown("the interpreter's version was not read")
    row = tables.row("sglang", version) if version else None
    floor = str(row["python"]) if row else "3.10"
    if older(python, floor):
        return fail(f"Python {python}; sglang {version} needs {floor}")
    if older(python, "3.14") is False:
        return fail(
            f"Python {python}: the kernel wheels are not built and tested for it",
            "Python 3.11 or 3.12",
        )
    if version and row is None:
        return unknown(tables.table("sglang").ends(f"sglang {version}"))
    return ok(f"Python {python}")


def py_02(look: Look) -> Outcome:
    """The release's own pins, of its metadata where it was read, of the table else."""
    if (early := look.no_engine()) is not None:
        return early
    version = look.chain.package("sglang")
    if version is None:
        return unknown("sglang is not installed, or not seen")
    env = {**(look.chain.environ or {}), **(look.launch.env if look.launch else {})}
    row = tables.row("sglang", version)
    bad, read = [], 0
    for spec in _pins(look, row):
        found = re.match(r"^([A-Za-z0-9._-]+)(.*)$", spec)
        have = look.chain.package(found.group(1).lower().replace("_", "-")) if found else None
        if not found or have is None:
            continue
        answer = satisfies(have, found.group(2)) if found.group(2) else True
        read += 1
        if answer is False:
            bad.append(f"{found.group(1)} is {have}, wanted {found.group(2)}")
    if row and "cudnn_min" in row:
        cudnn = look.chain.package("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
        if cudnn and older(cudnn, str(row["cudnn_min"])):
            bad.append(f"cuDNN {cudnn}; sglang {version} refuses below {row['cudnn_min']}")
    if bad:
        return fail("; ".join(bad[:5]))
    if env.get("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "0").lower() not in ("0", "false", ""):
        return warn("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK hides a kernel that is too old")
    return (
        ok(f"sglang {version}: {read} pins hold")
        if read
        else unknown(tables.table("sglang").ends(f"sglang {version}"))
    )


def _pins(look: Look, row: object) -> list[str]:
    found = (look.chain.env or {}).get("requires")
    if isinstance(found, list) and found:
        return [str(x) for x in found]
    if not isinstance(row, dict):
        return []
    pins = [f"torch=={row['torch']}", f"flashinfer-python=={row['flashinfer']}"]
    least = row.get("kernel_min")
    pins.append(
        f"{row['kernel_name']}>={least}" if least else f"{row['kernel_name']}=={row['kernel']}"
    )
    return pins


def py_03(look: Look) -> Outcome:
    """torch's own "not compatible" warning on 10.3 and 12.1 is wrong: 10.0 and 12.0 code runs."""
    if (early := look.no_engine()) is not None:
        return early
    torch = look.chain.torch
    if torch is None or "error" in torch:
        words = str((torch or {}).get("error") or "not asked")
        return unknown(
            f"torch did not answer: {words.strip().splitlines()[-1][:160] if words.strip() else ''}"
        )
    if not torch.get("cuda"):
        return fail(
            f"torch {torch.get('version')} is built without CUDA", "install a CUDA build of torch"
        )
    if look.caps is None:
        return unknown(look.unknown_kind)
    archs = torch.get("archs")
    if not isinstance(archs, list) or not archs:
        return unknown("torch did not list its architectures")
    cuda = minor(str(torch["cuda"]))
    images = parse_images(
        (str(a) for a in archs), tables.ptx_of_cuda(str(torch["cuda"])) if cuda else None
    )
    return _all(look, images, f"torch {torch.get('version')}")


def _all(look: Look, images: list[Image | None], what: str) -> Outcome:
    answers = [covers(images, cc, look.driver_isa) for cc in sorted(set(look.caps or ()))]
    return _worst(answers, what) or ok(f"{what}: " + "; ".join(a.why for a in answers))


def _worst(answers: list[Coverage], what: str) -> Outcome | None:
    for runs, say in ((False, fail), (None, unknown)):
        bad = [a.why for a in answers if a.runs is runs]
        if bad:
            return say(f"{what}: {'; '.join(bad)}")
    return None


def py_04(look: Look) -> Outcome:
    """A kernel wheel of another CUDA major than torch cannot find its libraries."""
    if (early := look.no_engine()) is not None:
        return early
    torch = minor(str((look.chain.torch or {}).get("cuda") or ""))
    tried = (look.chain.env or {}).get("kernel_import")
    words = str(tried.get("error", "")) if isinstance(tried, dict) else ""
    lost = re.search(
        r"(lib(?:cudart|nvrtc|cublas\w*|cudnn|nccl|cufft|cusparse)\.so\.\d+)[^\n]*cannot open",
        words,
    )
    if lost:
        return fail(f"the kernel wheel needs {lost.group(1)}, which is not there")
    majors = _majors(look)
    if majors is None:
        return unknown("the kernel wheel's libraries were not read")
    if torch is None:
        return unknown("torch's CUDA version is not known")
    other = sorted(m for m in majors if m != torch[0])
    if other:
        return fail(
            f"the kernel wheel links CUDA {other[0]}, torch is built for {torch[0]}.{torch[1]}"
        )
    return ok(f"kernel wheel and torch link CUDA {torch[0]}")


def _majors(look: Look) -> set[int] | None:
    """CUDA majors that the kernel wheel links; of the table where its files were not read."""
    found: set[int] = set()
    for value in (look.chain.objects or {}).values():
        needed = value.get("needed")
        for name in needed if isinstance(needed, list) else ():
            hit = re.fullmatch(r"lib(?:cudart|nvrtc|cublas)\.so\.(\d+)", str(name))
            if hit:
                found.add(int(hit.group(1)))
    if found:
        return found
    row = _kernel_row(look)
    return {int(str(row["cuda_major"]))} if row else None


def _kernel_row(look: Look) -> dict[str, Any] | None:
    for name in ("sglang-kernel", "sgl-kernel"):
        version = look.chain.package(name)
        for row in tables.table("kernels").rows:
            if row["name"] == name and row["version"] == version:
                return dict(row)
    return None


def py_05(look: Look) -> Outcome:
    if (early := look.no_engine()) is not None:
        return early
    found = (look.chain.env or {}).get("kernel_import")
    if not isinstance(found, dict):
        return unknown("the kernel wheel was not imported")
    words = str(found.get("error") or "")
    if not words:
        return ok("the kernel wheel imports")
    symbol = re.search(r"undefined symbol: (\S+)", words)
    if symbol:
        return fail(f"the kernel wheel was built against another torch: {symbol.group(1)[:60]}")
    if "No module named" in words:
        return fail("the kernel wheel is not installed")
    return unknown(f"the kernel wheel does not import: {words.strip().splitlines()[-1][:160]}")


def py_06(look: Look) -> Outcome:
    """Per object: what one file of a wheel covers says nothing about the next."""
    if (early := look.no_engine()) is not None:
        return early
    if look.caps is None:
        return unknown(look.unknown_kind)
    objects = _objects(look)
    name = look.chain.package("sglang-kernel", "sgl-kernel")
    if objects is None:
        if name is None:
            return unknown("no kernel wheel is installed, or it was not seen")
        return unknown(
            tables.table("kernels").ends(f"kernel wheel {name}, whose files were not read")
        )
    wanted = [_ALWAYS] + ([_BY_BACKEND[b] for b in _backends(look) if b in _BY_BACKEND])
    for part in wanted:
        mine = {k: v for k, v in objects.items() if part in k}
        if not mine:
            return unknown(f"no object called {part} was read in the kernel wheel")
        for cc in sorted(set(look.caps)):
            answers = [covers(images, cc, look.driver_isa) for images in mine.values()]
            if any(a.runs for a in answers):
                continue
            bad = _worst(answers, f"{part} of kernel wheel {name}")
            if bad is not None:
                return bad
    return ok(f"kernel wheel {name}: {', '.join(wanted)} cover every GPU")


def _backends(look: Look) -> set[str]:
    from ddops.compat.options import values_of

    return (
        {v for k, v in values_of(look.launch).items() if k.endswith("attention-backend")}
        if look.launch
        else set()
    )


def _objects(look: Look) -> dict[str, list[Image | None]] | None:
    read = {
        path: [_image(str(x)) for x in targets]
        for path, v in (look.chain.objects or {}).items()
        if isinstance(targets := v.get("targets"), list) and targets
    }
    if read:
        return read
    row = _kernel_row(look)
    if row is None:
        return None
    return {
        "common_ops": [parse_image(str(x)) for x in row["common_ops"]],
        "flashmla_ops": [parse_image(str(x)) for x in row["flashmla"]],
        "flash_ops": [parse_image(str(x)) for x in row["flash_ops"]],
    }


def _image(text: str) -> Image | None:
    """`compute_120@9.0` carries its ISA."""
    target, _, isa = text.partition("@")
    return parse_image(target, minor(isa))


def py_07(look: Look) -> Outcome:
    if (early := look.no_engine()) is not None:
        return early
    twice = [
        a for a, b in (("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
                       ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
                       ("sglang-kernel", "sgl-kernel"))
        if look.chain.package(a) and look.chain.package(b)
    ]  # fmt: skip
    if twice:
        return warn(f"installed twice under two names: {', '.join(twice)}")
    path = (look.chain.environ or {}).get("LD_LIBRARY_PATH", "")
    if "cuda" in path.lower() or "nccl" in path.lower():
        return warn(f"LD_LIBRARY_PATH may win over torch's own libraries: {path[:100]}")
    return ok("one of each") if look.chain.packages else skip("no package list")
