"""Reading `inventory/` folders and merging them: the project's over the lab's over the shipped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddops.config.project import Project, data_root
from ddops.config.toml import raise_all, shown
from ddops.config.words import unknown
from ddops.errors import Problem, UsageError
from ddops.inventory.checks import pair_faults
from ddops.inventory.model import Alias, Host, Origin, OriginKind, Profile, Service, Waiver
from ddops.inventory.reader import Reader


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything known by name. Hosts, groups, services and aliases share one namespace."""

    root: Path
    hosts: Mapping[str, Host] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    waivers: tuple[Waiver, ...] = ()
    #: Groups that have hosts right now, with their hosts in the order of their names.
    groups: Mapping[str, tuple[Host, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        out: dict[str, list[Host]] = {}
        for host in sorted(self.hosts.values(), key=lambda h: h.name):
            for group in dict.fromkeys(host.groups):
                out.setdefault(group, []).append(host)
        object.__setattr__(self, "groups", {name: tuple(hosts) for name, hosts in out.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """Everything a target may be called, sorted: for listings and completion."""
        return tuple(sorted({*self.hosts, *self.groups, *self.services, *self.aliases}))

    def profile_of(self, service: Service, name: str | None = None) -> Profile:
        """The service's own profile, or the one named instead. Raises UsageError on a misfit."""
        wanted = name or service.profile
        if wanted not in self.profiles:
            raise UsageError(unknown(wanted, self.profiles, "profile"), next="ddops config show")
        profile = self.profiles[wanted]
        for wrong in pair_faults(service, profile):
            raise UsageError(
                f"service {service.name} cannot run by profile {wanted}",
                why=wrong,
                next=f"change {shown(service.origin.file, self.root)}, or take another profile",
            )
        return profile


def load(project: Project, lab_dir: Path | None = None) -> Inventory:
    """All three origins, checked. `lab_dir` is the lab's inventory folder, which need not exist;
    by default that of the project's own lab.

    Raises ConfigError with the faults of all files at once.
    """
    shipped, own = data_root() / "inventory", project.inventory
    places: list[tuple[OriginKind, Path]] = [("shipped", shipped)]
    places.append(("lab", lab_dir or project.lab / "inventory"))
    if not _same(own, shipped):
        places.append(("project", own))
    reader = Reader(project.root)
    for kind, folder in places:
        if os.path.lexists(folder):
            reader.folder(kind, folder)
    inventory = Inventory(
        project.root,
        reader.hosts,
        reader.services,
        reader.profiles,
        reader.aliases,
        tuple(reader.waivers),
    )
    raise_all([*reader.problems, *_cross(inventory, reader.profile_lines)])
    return inventory


def _cross(inventory: Inventory, lines: Mapping[str, int]) -> Iterable[Problem]:
    """Names that mean two things, and services whose profile is not there or does not fit."""
    where: dict[str, tuple[str, Origin]] = {}
    entries = [
        *(("host", h.name, h.origin) for h in inventory.hosts.values()),
        *(("group", g, h[0].origin) for g, h in inventory.groups.items()),
        *(("service", s.name, s.origin) for s in inventory.services.values()),
        *(("alias", a.name, a.origin) for a in inventory.aliases.values()),
    ]
    for kind, name, origin in entries:
        if name in where:
            other, place = where[name]
            yield Problem(
                shown(origin.file, inventory.root),
                origin.line,
                "",
                f"{kind} `{name}` has the name of the {other} `{name}` of"
                f" {shown(place.file, inventory.root)}:{place.line}; rename one of them",
            )
        else:
            where[name] = (kind, origin)
    places = (*inventory.hosts, *inventory.groups)
    for waiver in inventory.waivers:
        for on in waiver.on:
            if on not in places:
                yield Problem(
                    shown(waiver.origin.file, inventory.root),
                    waiver.origin.line,
                    "waiver.on",
                    unknown(on, places, "host or group"),
                )
    for service in inventory.services.values():
        name = shown(service.origin.file, inventory.root)
        profile = inventory.profiles.get(service.profile)
        if profile is None:
            message = unknown(service.profile, inventory.profiles, "profile")
            yield Problem(name, lines[service.name], "profile", message)
            continue
        for wrong in pair_faults(service, profile):
            yield Problem(name, lines[service.name], "profile", wrong)


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False
