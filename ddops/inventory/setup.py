"""`setup/*.toml`: what a kind of host needs besides what lies in ddops' own folder.

A host's file is `setup/<its setup>.toml`, without one that of its class; in the project first, in
the package second. Values may hold `${engine_dir}` and `${host}`; names and versions of packages
also `${driver}` and `${driver_branch}`, filled in on the host from the driver that is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, structs

from ddops.config.schema import Fault, decode, problems
from ddops.config.toml import raise_all, read_toml
from ddops.inventory.model import Host, Text

Lookup = Callable[[str], Path]
SetupPath = Annotated[
    str,
    Meta(pattern=r"^(/|\$\{engine_dir\}(/|$))[^\s]*$", description="an absolute path on the host"),
]
Mode = Annotated[str, Meta(pattern=r"^0[0-7]{3}$", description="a mode like 0644")]
Owner = Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_-]*$", description="a user's or group's name")]


class RequireTable(Struct, frozen=True, kw_only=True):
    """`[[require]]`: something that only people can bring; without it nothing is done."""

    path: SetupPath
    why: Text
    next: Text


class PackageTable(Struct, frozen=True, kw_only=True):
    """`[[package]]` of apt. `version` is a pattern; `keep_alternative` stays as it points."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9+.-]*(\$\{driver_branch\})?$")]
    version: Text | None = None
    keep_alternative: Text | None = None


class UserTable(Struct, frozen=True, kw_only=True):
    """`[[user]]`: a system user without a login, or groups for one that is there."""

    name: Owner
    groups: tuple[Owner, ...] = ()
    home: SetupPath = "/nonexistent"
    shell: SetupPath = "/usr/sbin/nologin"


class DirTable(Struct, frozen=True, kw_only=True):
    """`[[dir]]`."""

    path: SetupPath
    mode: Mode = "0755"
    owner: Owner | None = None


class FileTable(Struct, frozen=True, kw_only=True):
    """`[[file]]`: its text here, or a file or a template of the project."""

    path: SetupPath
    content: str | None = None
    source: Text | None = None
    template: Text | None = None
    mode: Mode = "0644"
    owner: Owner | None = None


class LineTable(Struct, frozen=True, kw_only=True):
    """`[[line]]` of a file; it takes the place of the first line that `match` finds."""

    path: SetupPath
    line: Text
    match: Text | None = None


class LinkTable(Struct, frozen=True, kw_only=True):
    """`[[link]]`; never in the place of what is no link."""

    path: SetupPath
    target: SetupPath


class SysctlTable(Struct, frozen=True, kw_only=True):
    """`[[sysctl]]`, now and after a boot."""

    key: Annotated[str, Meta(pattern=r"^[a-z0-9_]+(\.[A-Za-z0-9_-]+)+$")]
    value: Text


class ModuleTable(Struct, frozen=True, kw_only=True):
    """`[[module]]` of the kernel, now and after a boot."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9_]+$")]


class UnitTable(Struct, frozen=True, kw_only=True):
    """`[[unit]]`: enabled and running."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9@_.-]+\.(service|timer|socket)$")]


class AdviceTable(Struct, frozen=True, kw_only=True):
    """`[[advice]]`: a word of the kernel's command line. Shown where it is not, never set."""

    cmdline: Text
    why: Text


class SetupTable(Struct, frozen=True, kw_only=True):
    """One file. It is done in the order of these tables."""

    require: tuple[RequireTable, ...] = ()
    package: tuple[PackageTable, ...] = ()
    user: tuple[UserTable, ...] = ()
    dir: tuple[DirTable, ...] = ()
    file: tuple[FileTable, ...] = ()
    line: tuple[LineTable, ...] = ()
    link: tuple[LinkTable, ...] = ()
    sysctl: tuple[SysctlTable, ...] = ()
    module: tuple[ModuleTable, ...] = ()
    unit: tuple[UnitTable, ...] = ()
    advice: tuple[AdviceTable, ...] = ()


def table_values(table: Struct) -> dict[str, object]:
    """What a table holds, without what was left out."""
    return {k: v for k, v in structs.asdict(table).items() if v not in (None, ())}


def read_setup(host: Host, lookup: Lookup) -> SetupTable:
    """The host's file; `none` names no file. A recorded host has none, nor has one of a lab."""
    own = host.setup or ("none" if host.origin.kind == "lab" else host.host_class or "cpu")
    if host.simulated or own == "none":
        return SetupTable()
    return parse_setup(lookup(f"setup/{own}.toml"))


def parse_setup(path: Path) -> SetupTable:
    """Read and judge one file. Raises ConfigError with every fault in it."""
    seen = path.stat()
    return _parsed(path, seen.st_mtime_ns, seen.st_size)


@lru_cache(maxsize=8)
def _parsed(path: Path, _mtime_ns: int, _size: int) -> SetupTable:
    """Many hosts of one run have one file."""
    document = read_toml(path)
    decoded = decode(document.data, SetupTable)
    faults = [*decoded.faults]
    if decoded.value is not None:
        faults += _faults(decoded.value)
    raise_all(problems(document, faults))
    assert decoded.value is not None  # noqa: S101 - raise_all has ended otherwise
    return decoded.value


def _faults(setup: SetupTable) -> Iterator[Fault]:
    for i, file in enumerate(setup.file):
        if sum(x is not None for x in (file.content, file.source, file.template)) != 1:
            yield Fault(("file", i), "one of `content`, `source` and `template`")
    for kind in ("dir", "file", "line", "link"):
        seen: set[str] = set()
        for i, one in enumerate(getattr(setup, kind)):
            if ".." in one.path.split("/"):
                yield Fault((kind, i, "path"), "leads through '..'")
            if kind != "line" and one.path in seen:
                yield Fault((kind, i, "path"), "stands there twice")
            seen.add(one.path)
    for i, line in enumerate(setup.line):
        if "\n" in line.line:
            yield Fault(("line", i, "line"), "holds a line break")
