"""Parsers of what programs print. Pure; unknown, cut or translated text gives None, never a crash.

None always means "it does not say"; an empty tuple means "it says that there is none".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: What `nvidia-smi` prints in place of a value it does not have.
NONE_WORDS = frozenset(
    {"n/a", "none", "not supported", "requested functionality has been deprecated"}
)
_WELL = frozenset({"n/a", "no", "none", "false", "healthy", "not supported"})
TOPO_WORDS = frozenset({"X", "SYS", "NODE", "PHB", "PXB", "PIX"})


def plain(text: str) -> str:
    """Without terminal escapes."""
    return _ANSI.sub("", text)


@dataclass(frozen=True, slots=True)
class Banner:
    """The head of nvidia-smi's table. `tool` differs from `driver` only on WSL."""

    tool: str | None
    driver: str | None
    cuda: str | None


def parse_banner(text: str) -> Banner | None:
    """Both wordings: `Driver Version`/`CUDA Version`, and from R610 `KMD`/`CUDA UMD`."""
    tool = re.search(r"NVIDIA-SMI\s+(\d+\.\d[\d.]*)", text)
    driver = re.search(r"(?:Driver|KMD) Version:\s*(\d+\.\d[\d.]*)", text)
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", text)
    if not (tool or driver):
        return None
    return Banner(*(m.group(1) if m else None for m in (tool, driver, cuda)))


def parse_proc_version(text: str) -> tuple[str, bool] | None:
    """Version and whether it is the open flavour, of /proc/driver/nvidia/version."""
    line = next((li for li in text.splitlines() if "NVRM" in li or "Kernel Module" in li), "")
    found = re.search(r"Module\b.*?\s(\d{3,4}\.\d+(?:\.\d+)?)", line)
    return (found.group(1), "Open Kernel Module" in line) if found else None


@dataclass(frozen=True, slots=True)
class GpuDetail:
    """One GPU of `nvidia-smi -q`; texts as printed, None for what it does not have."""

    bus: str
    bar1_mib: int | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    fabric_health: tuple[str, ...] = ()
    recovery: str | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None


def parse_q(text: str) -> tuple[GpuDetail, ...] | None:
    """The GPUs of `nvidia-smi -q`."""
    return tuple(_detail(bus, block) for bus, block in q_blocks(text)) or None


def q_blocks(text: str) -> list[tuple[str, Mapping[tuple[str, ...], str]]]:
    """Bus and values of each GPU of `nvidia-smi -q`; keys repeat, so their headings count too."""
    out: list[tuple[str, Mapping[tuple[str, ...], str]]] = []
    block: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        head = re.match(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$", line)
        if head:
            block, path = {}, []
            out.append((head.group(1), block))
            continue
        if not out or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        path = [p for p in path if p[0] < depth]
        key, colon, value = (part.strip() for part in line.partition(" :"))
        path.append((depth, key))
        if colon:
            block[tuple(p[1] for p in path)] = value
    return out


def _detail(bus: str, block: Mapping[tuple[str, ...], str]) -> GpuDetail:
    def get(*path: str) -> str | None:
        value = block.get(path)
        return None if value is None or value.lower() in NONE_WORDS - {"none"} else value

    bar = re.match(r"^(\d+) MiB$", get("BAR1 Memory Usage", "Total") or "")
    health = tuple(
        f"{key[-1]}: {value}"
        for key, value in block.items()
        if key[:2] == ("Fabric", "Health") and value.lower() not in _WELL
    )  # fmt: skip
    yes = {"Yes": True, "No": False}
    return GpuDetail(
        bus,
        int(bar.group(1)) if bar else None,
        get("Fabric", "State"),
        get("Fabric", "Status"),
        health,
        get("GPU Recovery Action"),
        yes.get(get("Remapped Rows", "Pending") or ""),
        yes.get(get("Remapped Rows", "Remapping Failure Occurred") or ""),
    )


def parse_list(text: str) -> tuple[int, int] | None:
    """GPUs and MIG devices of `nvidia-smi -L`."""
    gpus = len(re.findall(r"^GPU \d+: .*\(UUID: GPU-", text, re.MULTILINE))
    migs = len(re.findall(r"^\s+MIG ", text, re.MULTILINE))
    if gpus or re.search(r"^No devices", text, re.MULTILINE):
        return gpus, migs
    return None


def parse_topo(text: str) -> Mapping[tuple[str, str], str] | None:
    """The matrix of `nvidia-smi topo -m` between GPUs; None when a word in it is not known."""
    lines = plain(text).splitlines()
    head = next((li.split() for li in lines if re.match(r"^\s*GPU0\b.*", li)), None)
    if head is None:
        return None
    names = [w for w in head if re.fullmatch(r"GPU\d+", w)]
    out: dict[tuple[str, str], str] = {}
    for line in lines[lines.index(next(li for li in lines if re.match(r"^\s*GPU0\b.*", li))) + 1 :]:
        words = line.split()
        if not words:
            break
        if words[0] not in names:
            continue
        for name, word in zip(names, words[1:], strict=False):
            if word not in TOPO_WORDS and not re.fullmatch(r"NV\d+", word):
                return None
            out[words[0], name] = word
    return out if len(out) == len(names) ** 2 else None


def parse_p2p(text: str) -> Mapping[tuple[str, str], str] | None:
    """The matrix of `nvidia-smi topo -p2p`: OK, NS, CNS, GNS, TNS, DR, U."""
    lines = [li.split() for li in plain(text).splitlines()]
    head = next(
        (w for w in lines if w[:1] == ["GPU0"] and all(x.startswith("GPU") for x in w)), None
    )
    if head is None:
        return None
    out = {
        (words[0], name): word
        for words in lines
        if len(words) == len(head) + 1 and words[0] in head
        for name, word in zip(head, words[1:], strict=True)
    }
    known = {"X", "OK", "NS", "CNS", "GNS", "TNS", "DR", "U"}
    return out if len(out) == len(head) ** 2 and set(out.values()) <= known else None


def parse_nvlink(text: str) -> tuple[tuple[float, ...], ...] | None:
    """Speeds in GB/s of the active links of each GPU, from `nvidia-smi nvlink -s`."""
    out: list[list[float]] = []
    for line in text.splitlines():
        if re.match(r"^GPU \d+:", line):
            out.append([])
        found = re.match(r"^\s+Link \d+:\s*([\d.]+) GB/s", line)
        if found and out and re.fullmatch(r"\d+(?:\.\d+)?", found.group(1)):
            out[-1].append(float(found.group(1)))
    return tuple(tuple(links) for links in out) or None


def parse_nvcc(text: str | None) -> str | None:
    """`13.0.88` of `nvcc --version` or `ptxas --version`; `13.0` where the build is not told."""
    found = re.search(r"release (\d{1,3}\.\d{1,3})(?:, V(\d{1,3}\.\d{1,3}\.\d{1,5}))?", text or "")
    return (found.group(2) or found.group(1)) if found else None


@dataclass(frozen=True, slots=True)
class PciRow:
    """A PCI function of `lspci -Dvvvnn`. `acs` is None where its state could not be read."""

    bdf: str
    klass: str
    nvidia: bool
    denied: bool
    acs: Mapping[str, bool] | None
    bar_mib: int | None


def parse_lspci(text: str) -> Mapping[str, PciRow] | None:
    """By address. Without root, capabilities are `<access denied>`."""
    out: dict[str, PciRow] = {}
    for block in re.split(r"\n(?=\S)", plain(text)):
        head = re.match(
            r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) .*?\[([0-9a-f]{4})\]: (.*)",
            block,
        )
        if not head:
            continue
        control = re.search(r"ACSCtl:\s*(.*)", block)
        acs = None
        if control:
            acs = {
                m.group(1): m.group(2) == "+" for m in re.finditer(r"(\w+)([+-])", control.group(1))
            }
        sizes = [
            int(n) * {"M": 1, "G": 1024}[unit]
            for n, unit in re.findall(r"prefetchable\) \[size=(\d{1,6})([MG])\]", block)
        ]
        bdf = head.group(1) if head.group(1).count(":") == 2 else f"0000:{head.group(1)}"
        out[bdf] = PciRow(
            bdf, head.group(2), "[10de:" in head.group(3), "<access denied>" in block, acs,
            max(sizes, default=None),
        )  # fmt: skip
    return out or None


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid of the kernel log; `rest` is its text."""

    code: int
    bus: str
    rest: str


def parse_xids(text: str) -> tuple[Xid, ...]:
    """`NVRM: Xid (PCI:0000:c1:00): 79, ...`; the pid part may be absent or quoted."""
    return tuple(
        Xid(int(m.group(2)), m.group(1), m.group(3).strip())
        for m in re.finditer(r"Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,4}),?([^\n]*)", text)
    )


def parse_unit(text: str) -> Mapping[str, str]:
    """`Key=value` lines of `systemctl show`."""
    return dict(li.split("=", 1) for li in text.splitlines() if re.match(r"^\w+=", li))


def parse_ldconfig(text: str, library: str) -> tuple[str, ...]:
    """Paths of a library in the loader's order."""
    return tuple(
        m.group(1)
        for m in re.finditer(rf"^\s*{re.escape(library)} \([^)]*\) => (\S+)", text, re.MULTILINE)
    )


def parse_assignments(texts: Iterable[str | None]) -> dict[str, str]:
    """`NAME=value` lines of NCCL's configuration files; comments and blanks are left out."""
    out: dict[str, str] = {}
    for text in texts:
        for line in (text or "").splitlines():
            name, sign, value = line.strip().partition("=")
            if sign and re.fullmatch(r"[A-Z][A-Z0-9_]*", name.strip()):
                out[name.strip()] = value.strip()
    return out


def first_version(text: str | None) -> str | None:
    """The first dotted number in a text."""
    found = re.search(r"\d+\.\d+(?:\.\d+)*", text or "")
    return found.group(0) if found else None
