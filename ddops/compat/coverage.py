"""Does this device code run on that GPU? One rule for torch, wheels, toolkits and ptxas alike.

Plain `sm_XY`: the same major and a minor of Y or more. `a`: exactly X.Y. `f`: the same family,
minor Y or more. Plain PTX: any later GPU, if the driver's compiler knows its ISA; PTX of an `a` or
`f` target goes no further than its cubin. Nothing of 10.x ever runs on 12.x but plain PTX.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ddops.compat import tables
from ddops.probe.version import minor

Cc = tuple[int, int]
#: Thor was 10.1 to CUDA 12 and is 11.0 since.
_RENAMED = {(10, 1): (11, 0)}
_SHAPE = re.compile(r"^(?:sm_|compute_|lto_)?(\d{2,3})([af]?)$")
_DOTTED = re.compile(r"^(\d{1,2})\.(\d)([af]?)$")


@dataclass(frozen=True, slots=True)
class Image:
    """One piece of device code. `isa` is the PTX version where it is known."""

    ptx: bool
    cc: Cc
    suffix: str = ""
    isa: Cc | None = None

    def __str__(self) -> str:
        kind = "compute" if self.ptx else "sm"
        return f"{kind}_{self.cc[0]}{self.cc[1]}{self.suffix}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """`runs` is None when it cannot be told; `why` is for people."""

    runs: bool | None
    why: str


def parse_cc(text: str | None) -> Cc | None:
    """`12.0` gives (12, 0)."""
    found = re.fullmatch(r"\s*(\d{1,2})\.(\d)\s*", text or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def parse_image(text: str, isa: Cc | None = None) -> Image | None:
    """`sm_100a`, `compute_120`, `120f`, `10.3a`, `12.0+PTX` (the PTX of it); None if unreadable."""
    word = text.strip().lower()
    ptx = word.startswith(("compute_", "ptx_")) or word.endswith("+ptx")
    word = word.removesuffix("+ptx").removeprefix("ptx_")
    dotted, plain = _DOTTED.match(word), _SHAPE.match(word)
    if dotted:
        cc, suffix = (int(dotted.group(1)), int(dotted.group(2))), dotted.group(3)
    elif plain:
        digits, suffix = plain.groups()
        cc = (int(digits[:-1]), int(digits[-1]))
    else:
        return None
    return Image(ptx, _RENAMED.get(cc, cc), suffix, isa)


def parse_images(texts: Iterable[str], isa: Cc | None = None) -> list[Image | None]:
    """`12.0+PTX` is both a cubin and its PTX, as torch writes it."""
    out: list[Image | None] = []
    for text in texts:
        if text.lower().endswith("+ptx"):
            out.append(parse_image(text[:-4], isa))
        out.append(parse_image(text, isa))
    return out


def covers(images: Iterable[Image | None], cc: Cc, driver_isa: Cc | None) -> Coverage:
    """Whether any of them runs on the GPU. None among the images is one that nobody could read."""
    seen = list(images)
    if not seen:
        return Coverage(None, "no device code was seen")
    unclear: str | None = None
    for image in seen:
        if image is None:
            unclear = unclear or "some device code could not be read"
            continue
        answer = _runs(image, cc, driver_isa)
        if answer:
            return Coverage(True, f"{image} runs on {_dot(cc)}")
        if answer is None:
            unclear = f"{image} would need a driver that compiles its PTX, which is not known"
    have = ", ".join(str(i) for i in seen if i is not None)
    if unclear:
        return Coverage(None, f"{unclear}; seen: {have or 'nothing'}")
    return Coverage(False, f"nothing in it runs on {_dot(cc)}: {have}")


def _runs(image: Image, cc: Cc, driver_isa: Cc | None) -> bool | None:
    fits = _fits(image, cc)
    if not image.ptx or not fits:
        return fits
    if image.isa is None or driver_isa is None:
        return None
    return image.isa <= driver_isa


def _fits(image: Image, cc: Cc) -> bool:
    if image.suffix == "a":
        return image.cc == cc
    same = image.cc[0] == cc[0] and image.cc[1] <= cc[1]
    if image.ptx and not image.suffix:
        return image.cc <= cc
    return same


def _dot(cc: Cc) -> str:
    return f"{cc[0]}.{cc[1]}"


def compiler_covers(version: str | None, cc: Cc, *, family: bool = False) -> Coverage:
    """Whether an nvcc or ptxas of that CUDA version can target the GPU's own code.

    `family` asks for the family target (`100f`, `120f`), which came with 12.9.
    """
    have, t = minor(version), tables.table("toolkits")
    gpu = tables.row("gpus", _dot(cc))
    if have is None:
        return Coverage(None, f"version not readable: {version}")
    if gpu is None:
        return Coverage(None, tables.table("gpus").ends(f"compute capability {_dot(cc)}"))
    key = "first_ctk_family" if family and "first_ctk_family" in gpu else "first_ctk"
    first = minor(gpu[key])
    if first is not None and have < first:
        return Coverage(False, f"{version} cannot target {_dot(cc)}: {gpu[key]} is the first")
    end = minor(t.end)
    if end is not None and have > end:
        return Coverage(None, t.ends(f"CUDA {version}"))
    lowest = next((r.get("min_cc") for r in t.rows if minor(r["ctk"]) == have), None)
    floor = parse_cc(lowest)
    if floor is not None and cc < floor:
        return Coverage(False, f"{version} has dropped {_dot(cc)}")
    return Coverage(True, f"{version} targets {_dot(cc)}")
