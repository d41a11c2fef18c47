"""Error counters of GPUs and of their NVLinks, as nvidia-smi prints them. Pure.

Two texts: `nvidia-smi -q` (driver 580's wording is in a recording of an H200) and
`nvidia-smi nvlink -e` (three counters a link up to Hopper, packet, recovery and BER counters with
NVLink 5). A line that is none of these is left out; nothing here judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddops.probe.text import plain, q_blocks

#: A count, a bit error rate, a flag, None where the GPU has no such counter, or the words that
#: stand in its place ("[Unknown Error]", "ERR!").
Value = int | float | bool | str | None

#: More digits are no counter: the widest is 64 bits.
_DIGITS = 20
_ABSENT = frozenset({"n/a", "[n/a]", "not supported", "[not supported]", "disabled", ""})
#: Under "ECC Errors": flags, not counts.
_ECC_FLAGS = ("SRAM Threshold Exceeded", "Channel Repair Pending", "TPC Repair Pending",
              "Unrepairable Memory")  # fmt: skip
_SECTIONS = ("ECC Errors", "Remapped Rows", "Retired Pages")
_LINK = re.compile(r"^\s*Link (\d{1,3}): ([A-Za-z][^:]{2,60}):\s*(\S[^\n]{0,60})$", re.ASCII)
_GPU = re.compile(r"^GPU (\d{1,4}):.*?(?:\(UUID: (\S{1,80})\))?\s*$", re.ASCII)
#: What nvidia-smi says under a GPU without NVLink, or whose links are all down.
_NO_LINKS = re.compile(r"all links are inactive|not supported", re.IGNORECASE)
_COMPLAINT = re.compile(
    r"unable|insufficient|unknown error|failed to|requires reset", re.IGNORECASE
)
#: Volume, and what a healthy NVLink 5 has plenty of before it corrects: no errors.
_NOISE = re.compile(r"^(FEC Errors|Raw |PLR |[TR]x (packets|bytes))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Counters:
    """`values` by place and name; `places` are all that were named, with or without a counter."""

    places: tuple[str, ...]
    values: Mapping[tuple[str, str], Value]


def memory_counters(text: str, uuids: Mapping[str, str]) -> Counters | None:
    """Memory errors, remapped rows and repairs of each GPU; None: no GPU in the text.

    By UUID where `uuids` has the GPU's bus, else by bus.
    """
    places: list[str] = []
    values: dict[tuple[str, str], Value] = {}
    for bus, block in q_blocks(text):
        gpu = uuids.get(bus, bus)
        places.append(gpu)
        for path, said in block.items():
            name = _memory_name(path)
            if name:
                values[gpu, name] = value_of(said)
    return Counters(tuple(places), values) if places else None


def _memory_name(path: tuple[str, ...]) -> str | None:
    """`volatile DRAM Correctable`; None for what is no error counter."""
    if path[:1] == ("ECC Errors",):
        if path[-1] in _ECC_FLAGS:
            return path[-1]
        if len(path) > 2 and path[1] in ("Volatile", "Aggregate"):
            return " ".join((path[1].lower(), *path[2:]))
    if len(path) == 1 and path[0] in _SECTIONS:  # the whole section is "N/A"
        return path[0]
    if path[:1] == ("Remapped Rows",) and len(path) == 2:
        return f"Remapped Rows {path[1]}"
    if path[:1] == ("Retired Pages",) and len(path) == 2:
        return f"Retired Pages {path[1]}"
    return None


def link_counters(text: str) -> Counters:
    """Counters of each link by `UUID link N`; a GPU of which no link is told is a place alone."""
    places: dict[str, None] = {}
    values: dict[tuple[str, str], Value] = {}
    for gpu, link, name, said in _link_lines(text):
        places.setdefault(gpu)
        if link is not None:
            places.setdefault(f"{gpu} link {link}")
            values[f"{gpu} link {link}", name] = value_of(said)
    return Counters(tuple(places), values)


def _link_lines(text: str) -> Iterator[tuple[str, str | None, str, str]]:
    gpu = ""
    for line in plain(text).splitlines():
        head = _GPU.match(line)
        if head:
            gpu = head.group(2) or f"GPU {head.group(1)}"
            yield gpu, None, "", ""
            continue
        found = _LINK.match(line.rstrip())
        if gpu and found and not _NOISE.match(found.group(2)):
            yield gpu, found.group(1), " ".join(found.group(2).split()), found.group(3)


def names_a_link(text: str) -> bool:
    """Whether some link that is up is told of, in whatever words."""
    return bool(re.search(r"\bLink [0-9]{1,3}\b(?!: <inactive>)", text))


def complaint(text: str) -> str:
    """The first line that says why counters are not told, other than that there are no links."""
    for line in plain(text).splitlines():
        if _COMPLAINT.search(line) and not says_no_links(line):
            return line.strip()[:120]
    return ""


def says_no_links(text: str) -> bool:
    """Whether nvidia-smi says so: an answer, even where it ends with an error for it."""
    return bool(_NO_LINKS.search(text))


def value_of(said: str) -> Value:
    """`3`, `15e-255`, `3072 bank(s)`, `Yes`, `N/A`; anything else stays as it was printed."""
    words = said.strip()
    if words.lower() in _ABSENT:
        return None
    if words in ("Yes", "No"):
        return words == "Yes"
    if words.isascii() and words.isdigit() and len(words) <= _DIGITS:
        return int(words)
    if re.fullmatch(r"\d{1,20}(\.\d{1,20})?[eE][-+]?\d{1,4}", words):
        return float(words)
    return words[:60]
