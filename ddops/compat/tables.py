"""The data tables: what is known of GPUs, toolkits, drivers, wheels, releases and their options.

TOML under `data/`, each with `as_of`, `end` (the newest thing it knows) and `sources`. A question
about something newer gets a `Beyond`: the caller answers UNKNOWN, never PASS.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ddops.errors import DdopsError
from ddops.probe.version import minor, parse

NAMES = ("gpus", "toolkits", "drivers", "torch", "triton", "sglang", "kernels", "backends",
         "errors", "xid", "nccl", "checks", "beside")  # fmt: skip
_CHECK_KEYS = ("id", "group", "severity", "tier", "title", "probe", "rule", "mend", "sources")
_ROW_KEYS = {
    "gpus": ("cc", "name", "family", "host_class", "fabric", "first_ctk", "driver_floor",
             "blackwell", "forward_compat"),
    "toolkits": ("ctk",),
    "drivers": ("branch", "cuda"),
    "torch": ("version", "cuda", "triton"),
    "triton": ("version", "ptxas"),
    "sglang": ("version", "torch", "kernel", "kernel_name", "flashinfer", "dflash", "python"),
    "kernels": ("name", "version", "cuda_major", "common_ops", "flashmla", "flash_ops", "ptx"),
    "errors": ("code", "meaning", "check"),
    "checks": _CHECK_KEYS,
    "beside": _CHECK_KEYS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """One file. `end` is the newest thing the table knows of."""

    name: str
    as_of: str
    end: str
    sources: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    data: Mapping[str, Any]

    def ends(self, seen: str) -> str:
        """What to say of something the table does not know."""
        return f"{seen}: table ends at {self.end} ({self.name}, {self.as_of})"

    def beyond(self, text: str) -> bool:
        """Whether a version is newer than the table, or unreadable."""
        have, end = parse(text), parse(self.end)
        return have is None or end is None or have > end


def load(name: str, text: str) -> Table:
    """Parse and validate one table; a fault in it is a fault of the package."""
    raw = tomllib.loads(text)
    for key in ("as_of", "end", "sources"):
        if not raw.get(key):
            raise DdopsError(f"data table {name}: no {key}")
    rows = tuple(raw.get("row", ()))
    for n, row in enumerate(rows, 1):
        missing = [k for k in _ROW_KEYS.get(name, ()) if k not in row]
        if missing:
            raise DdopsError(f"data table {name}: row {n} has no {', '.join(missing)}")
    first = _ROW_KEYS.get(name, ("",))[0]
    keys = [str(row[first]) for row in rows if name != "kernels"]
    twice = {k for k in keys if keys.count(k) > 1}
    if twice:
        raise DdopsError(f"data table {name}: {', '.join(sorted(twice))} stands there twice")
    return Table(name, str(raw["as_of"]), str(raw["end"]), tuple(raw["sources"]), rows, raw)


@cache
def table(name: str) -> Table:
    """The table `name` of this package."""
    return load(name, _read(f"{name}.toml"))


def row(name: str, value: object) -> Mapping[str, Any] | None:
    """The row whose first key equals `value`."""
    key = _ROW_KEYS[name][0]
    return next((r for r in table(name).rows if r[key] == value), None)


@dataclass(frozen=True, slots=True)
class Flags:
    """The options of one engine release. `choices` only where they are fixed."""

    version: str
    options: frozenset[str]
    switches: frozenset[str]
    deprecated: frozenset[str]
    choices: Mapping[str, tuple[str, ...]]


@cache
def flags(version: str) -> Flags | None:
    """The options of an engine release; None where no table was made of it."""
    try:
        raw = tomllib.loads(_read(f"flags/sglang-{version}.toml"))
    except FileNotFoundError:
        return None
    return Flags(
        raw["version"],
        frozenset(raw["options"]),
        frozenset(raw["switches"]),
        frozenset(raw["deprecated"]),
        {k: tuple(v) for k, v in raw["choices"].items()},
    )


def flag_versions() -> list[str]:
    """The releases that have an option table."""
    folder = resources.files(__package__) / "data" / "flags"
    names = [f.name.removeprefix("sglang-").removesuffix(".toml") for f in folder.iterdir()]
    return sorted(names, key=lambda v: parse(v) or ((), 0, 0))


def cuda_of_driver(branch: int) -> str | None:
    """The CUDA version a driver branch brings. A branch between two rows has the older one's."""
    t = table("drivers")
    if branch > int(t.end):
        return None
    known = [r for r in t.rows if int(r["branch"]) <= branch]
    return str(max(known, key=lambda r: int(r["branch"]))["cuda"]) if known else None


def ptx_of_cuda(cuda: str) -> tuple[int, int] | None:
    """The newest PTX that CUDA version knows."""
    found = minor(cuda)
    match = next((r for r in table("toolkits").rows if minor(r["ctk"]) == found), None)
    return minor(match["ptx"]) if match and "ptx" in match else None


def ptx_of_driver(branch: int | None) -> tuple[int, int] | None:
    """The newest PTX a driver's compiler understands; None when the tables do not say."""
    cuda = cuda_of_driver(branch) if branch is not None else None
    return ptx_of_cuda(cuda) if cuda else None


def _read(name: str) -> str:
    return (resources.files(__package__) / "data" / name).read_text(encoding="utf-8")
