"""The CUDA chain of one host as the checks see it: typed, lazy, out of a collection's raw text.

A property is None when the collection does not say. Nothing here judges, and nothing raises on odd
input: a collection comes from a host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from ddops.probe import text as t
from ddops.probe.facts import Facts

Obj = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command answered; `rc` is None when it did not run or did not end."""

    rc: int | None
    out: str
    err: str
    why: str

    @property
    def said(self) -> str:
        return self.out + "\n" + self.err


#: What journalctl says to somebody who does not see the system's journal.
_HIDDEN = ("not seeing messages from other users", "insufficient permissions")


@dataclass(frozen=True, slots=True)
class CudaInit:
    """cuInit in a child. `init` is None when it did not come to that; `why` tells."""

    init: int | None
    driver: int | None
    count: int | None
    path: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Toolkit:
    """One nvcc and its headers. `where` is how a JIT compiler would find it."""

    where: str
    home: str
    real: str
    nvcc: bool
    version: str | None
    header: int | None
    curand: bool


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's folder: bytes of its weight files, and the numbers of its config.json."""

    bytes: int | None
    sizes: Mapping[str, int]


class Chain:
    """Everything below reads `facts.raw` and parses when asked, once."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._commands = _map(facts.raw.get("commands"))
        self._files = _map(facts.raw.get("files"))
        self.probes = _map(facts.raw.get("probes"))

    def ran(self, key: str) -> Ran | None:
        """A command's answer, or None when the collection does not hold it."""
        one = self._commands.get(key)
        if not isinstance(one, dict):
            return None
        rc = one.get("rc")
        return Ran(
            rc if isinstance(rc, int) else None, _str(one.get("out")), _str(one.get("err")),
            _str(one.get("why")),
        )  # fmt: skip

    def out(self, key: str) -> str | None:
        """stdout of a command that ended well."""
        ran = self.ran(key)
        return ran.out if ran is not None and ran.rc == 0 else None

    def file(self, path: str) -> str | None:
        value = self._files.get(path)
        return value if isinstance(value, str) else None

    @cached_property
    def environ(self) -> Mapping[str, str] | None:
        found = self.probes.get("environ")
        return {k: _str(v) for k, v in found.items()} if isinstance(found, dict) else None

    @cached_property
    def rows(self) -> list[Mapping[str, str]] | None:
        """Rows of --query-gpu as collected; a missing value is left out."""
        rows = self.facts.raw.get("gpus")
        if not isinstance(rows, list):
            return None
        return [{k: v for k, v in _map(r).items() if isinstance(v, str)} for r in rows]

    @cached_property
    def wsl(self) -> bool:
        text = (self.file("proc/version") or "").lower()
        return "microsoft" in text or "wsl" in (self.facts.raw_text("os", "kernel") or "").lower()

    @cached_property
    def where(self) -> str:
        """wsl, container, the hypervisor's name, none (bare metal) or unknown."""
        if self.wsl:
            return "wsl"
        if _map(self.facts.raw.get("identity")).get("container") is True:
            return "container"
        ran = self.ran("virt")
        return ran.out.strip() or "unknown" if ran is not None and ran.out.strip() else "unknown"

    @cached_property
    def kernel(self) -> tuple[str, bool] | None:
        """Loaded driver version, and whether it is the open flavour."""
        text = self.file("proc/driver/nvidia/version") or _str(
            _map(self.facts.raw.get("driver")).get("raw")
        )
        return t.parse_proc_version(text)

    @cached_property
    def driver(self) -> str | None:
        """The driver version: of the loaded module, else of nvidia-smi."""
        if self.kernel:
            return self.kernel[0]
        versions = {r.get("driver_version") for r in self.rows or ()}
        one = versions.pop() if len(versions) == 1 else None
        if one:
            return one
        return self.banner.driver if self.banner else None

    @cached_property
    def banner(self) -> t.Banner | None:
        ran = self.ran("smi")
        return t.parse_banner(ran.out) if ran is not None else None

    @cached_property
    def modules(self) -> frozenset[str] | None:
        text = self.file("proc/modules")
        return frozenset(li.split()[0] for li in text.splitlines() if li.strip()) if text else None

    @cached_property
    def user_versions(self) -> Mapping[str, str]:
        """Driver version in the real names of libcuda and libnvidia-ml; compat ones left out."""
        out = {}
        for path, real in _map(self.probes.get("libs")).items():
            found = re.search(r"\.so\.(\d{3,4}\.\d+(?:\.\d+)?)$", _str(real))
            if found and not is_compat(path) and not is_compat(_str(real)):
                out[path] = found.group(1)
        return out

    @cached_property
    def cuda(self) -> CudaInit | None:
        one = self.probes.get("cuda")
        if not isinstance(one, dict):
            return None
        return CudaInit(
            _int(one.get("init")), _int(one.get("driver")), _int(one.get("count")),
            one.get("path") if isinstance(one.get("path"), str) else None, _str(one.get("why")),
        )  # fmt: skip

    @cached_property
    def details(self) -> tuple[t.GpuDetail, ...] | None:
        text = self.out("smi_q")
        return t.parse_q(text) if text else None

    @cached_property
    def pci(self) -> list[Mapping[str, object]] | None:
        """NVIDIA display functions in sysfs: bdf, virtual, driver, iommu, above."""
        found = self.probes.get("pci")
        return [_map(r) for r in found] if isinstance(found, list) else None

    @cached_property
    def lspci(self) -> Mapping[str, t.PciRow] | None:
        text = self.out("lspci")
        return t.parse_lspci(text) if text else None

    def log(self, name: str) -> str | None:
        """`dmesg` or `journal`, the kernel's log; None when it could not be read.

        To whom it may not be shown, journalctl ends well, with no line and a hint.
        """
        ran = self.ran(name)
        hidden = ran is not None and any(words in ran.err for words in _HIDDEN)
        return None if hidden else self.out(name)

    @cached_property
    def kernel_log(self) -> str | None:
        """dmesg and the journal of this boot; None when neither could be read."""
        texts = [x for x in (self.log("dmesg"), self.log("journal")) if x is not None]
        return "\n".join(texts) if texts else None

    @cached_property
    def toolkits(self) -> list[Toolkit] | None:
        found = self.probes.get("toolkits")
        if not isinstance(found, list):
            return None
        out = []
        for raw in found:
            one = _map(raw)
            out.append(
                Toolkit(
                    _str(one.get("where")), _str(one.get("home")), _str(one.get("real")),
                    one.get("nvcc") is True, t.parse_nvcc(_str(one.get("version"))),
                    _int(one.get("header")), one.get("curand") is True,
                )
            )  # fmt: skip
        return out

    @cached_property
    def env(self) -> Obj | None:
        """What the engine's own interpreter said; None without an environment."""
        found = self.probes.get("env")
        return found if isinstance(found, dict) else None

    @cached_property
    def packages(self) -> Mapping[str, str]:
        return {k: _str(v) for k, v in _map((self.env or {}).get("packages")).items()}

    def package(self, *names: str) -> str | None:
        """The version of the first of these distributions that is installed."""
        return next((self.packages[n] for n in names if n in self.packages), None)

    @cached_property
    def torch(self) -> Obj | None:
        found = (self.env or {}).get("torch")
        return found if isinstance(found, dict) else None

    @cached_property
    def objects(self) -> Mapping[str, Obj] | None:
        """Shared objects of the kernel wheel: targets, needed, error."""
        found = (self.env or {}).get("objects")
        if not isinstance(found, dict) or isinstance(found.get("error"), str):
            return None
        return {k: _map(v) for k, v in found.items()}

    @cached_property
    def proved(self) -> Mapping[str, Obj] | None:
        """Results of the last `--prove`, by name; None without one of this very chain.

        A proof names the digest of the facts it was made for: a new driver or wheel ends it.
        """
        kept = _map(self.probes.get("proved"))
        if _str(kept.get("digest")) not in ("", self.facts.chain_digest):
            return None
        found = kept.get("results")
        return {k: _map(v) for k, v in found.items()} if isinstance(found, dict) else None

    @property
    def models(self) -> Mapping[str, Weights] | None:
        """Weights on the host by their folder; None when the collection does not say."""
        found = self.probes.get("models")
        if not isinstance(found, dict):
            return None
        out = {}
        for path, one in found.items():
            sizes = {k: n for k, v in _map(_map(one).get("config")).items() if (n := _int(v))}
            out[path] = Weights(_int(_map(one).get("bytes")), sizes)
        return out


def is_compat(path: str) -> bool:
    """Whether a library lies in a forward-compatibility folder."""
    return "compat" in PurePosixPath(path).parts or "cuda-compat" in path


def _map(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
