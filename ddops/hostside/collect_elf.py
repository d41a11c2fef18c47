"""Reads device code targets and needed libraries out of ELF files, without any CUDA tool.

    collect_elf.py FILE ...      prints {FILE: {"targets": [...], "needed": [...], "error": null}}

A target is `sm_100a`, or `compute_120@9.0` for PTX of ISA 9.0. The layout of fat binaries is not
documented; it was read off fatbinary's own output (13.5) for plain, `a` and `f` targets: kind at 0,
header size at 4, payload size at 8, ISA at 24, architecture at 28, flags at 40 with bit 20 for `a`
and bit 21 for `f`. Anything that looks otherwise is reported as an error, never guessed.
"""

import json
import mmap
import struct
import sys
from typing import Any

MAGIC = 0xBA55ED50
ACCELERATED, FAMILY = 1 << 20, 1 << 21
#: Entries of one object file; big kernel libraries hold tens of thousands.
MOST = 400000


class Odd(Exception):
    """The file is not laid out as this reader knows it."""


def main(argv):
    json.dump({path: look(path) for path in argv}, sys.stdout)
    return 0


def look(path):
    out: dict[str, Any] = {"targets": None, "needed": None, "error": None}
    try:
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            sections = read_sections(data)
            out["needed"] = needed(data, sections)
            out["targets"] = targets(data, sections)
    except (OSError, ValueError, struct.error, Odd, IndexError, UnicodeDecodeError) as error:
        out["error"] = "%s: %s" % (type(error).__name__, error)
    return out


def read_sections(data):
    """{name: [(offset, size, link)]} of a 64-bit little-endian ELF file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise Odd("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    rows = []
    for i in range(count):
        name, kind, _, _, offset, length, link = struct.unpack_from(
            "<IIQQQQI", data, table + i * size
        )
        rows.append((name, kind, offset, length, link))
    strings = rows[names_at][2]
    out: dict[str, Any] = {}
    for name, kind, offset, length, link in rows:
        if kind != 8:  # NOBITS holds nothing in the file
            out.setdefault(text_at(data, strings + name), []).append((offset, length, link))
    return out


def text_at(data, at):
    end = data.find(b"\0", at, at + 4096)
    if end < 0:
        raise Odd("a name without an end")
    return data[at:end].decode("utf-8", "replace")


def needed(data, sections):
    """DT_NEEDED names."""
    out = []
    for offset, length, _ in sections.get(".dynamic", []):
        strings = sections.get(".dynstr", [(0, 0, 0)])[0][0]
        for at in range(offset, offset + length - 15, 16):
            tag, value = struct.unpack_from("<qQ", data, at)
            if tag == 0:
                break
            if tag == 1:
                out.append(text_at(data, strings + value))
    return out


def targets(data, sections):
    """Targets of all fat binaries in the file, sorted; an empty list when it has no device code."""
    found: set[str] = set()
    for name in (".nv_fatbin", "__nv_relfatbin"):
        for offset, length, _ in sections.get(name, []):
            read_fatbins(data, offset, offset + length, found)
    return sorted(found)


def read_fatbins(data, at, end, found):
    seen = 0
    while at + 16 <= end:
        magic, version, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic == 0:  # padding between two fat binaries
            at += 8 if at % 8 == 0 else 8 - at % 8
            continue
        if magic != MAGIC or version != 1 or header < 16:
            raise Odd("no fat binary at offset %d" % at)
        entry, stop = at + header, at + header + size
        if stop > end:
            raise Odd("a fat binary reaches beyond its section")
        while entry + 48 <= stop:
            target, entry = read_entry(data, entry, stop)
            found.add(target)
            seen += 1
            if seen > MOST:
                raise Odd("more than %d entries" % MOST)
        at = stop


def read_entry(data, at, stop):
    kind, version, header, size = struct.unpack_from("<HHIQ", data, at)
    minor, major, arch = struct.unpack_from("<HHI", data, at + 24)
    (flags,) = struct.unpack_from("<Q", data, at + 40)
    if version != 0x101 or header < 48 or at + header + size > stop:
        raise Odd("an entry of an unknown layout at offset %d" % at)
    if kind not in (1, 2) or not 30 <= arch <= 300:
        raise Odd("an entry of kind %d for architecture %d" % (kind, arch))
    suffix = "a" if flags & ACCELERATED else "f" if flags & FAMILY else ""
    if kind == 2:
        return "sm_%d%s" % (arch, suffix), at + header + size
    return "compute_%d%s@%d.%d" % (arch, suffix, major, minor), at + header + size


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
