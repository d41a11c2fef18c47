"""Settings and where each came from: flag, `DDOPS_*`, project, user, default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from ddops.config.backup import BackupTable
from ddops.config.project import Project
from ddops.config.schema import decode, problems
from ddops.config.toml import raise_all, read_toml
from ddops.config.words import kind, nearest, quote
from ddops.config.xdg import paths
from ddops.errors import Problem

Source = Literal["flag", "env", "project", "user", "default"]
Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]

#: Variables that are no settings. Some are set by ddops for its own children.
OTHER_ENV = (
    "DDOPS_DEBUG",
    "DDOPS_CPU_STUBS",
    "DDOPS_LAB",
    "DDOPS_LAB_HOST",
    "DDOPS_SERVICE",
    "DDOPS_LAUNCH",
    "DDOPS_RECORDED_SMI",
    "DDOPS_SIM",
    "DDOPS_SIM_FILE",
)


class SettingsTable(Struct, frozen=True, kw_only=True):
    """`[settings]` of ddops.toml and of the user's config.toml. Times are in seconds."""

    connect_timeout_s: Seconds = 10.0
    parallel: Count = 10
    connects: Count = 10
    load_budget_s: Seconds = 1800.0
    ready_quiet_s: Annotated[float, Meta(ge=0)] = 2.0
    gate_timeout_s: Seconds = 60.0
    keep_releases: Count = 5
    ledger: str = ""


class ProjectTable(Struct, frozen=True, kw_only=True):
    """ddops.toml, and the user's config.toml."""

    settings: SettingsTable = SettingsTable()
    backup: BackupTable = BackupTable()


class Place(Struct, frozen=True):
    """Where a value came from. `at` is a flag, a variable, or file and line."""

    source: Source
    at: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.at}".strip()


class Settings(SettingsTable, frozen=True, kw_only=True):
    """The values in force. `warnings` are for people, none of them fatal."""

    origins: Mapping[str, Place] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def ledger_path(self) -> Path:
        return Path(self.ledger)

    def show(self, *, origin: bool = False) -> dict[str, object]:
        """All settings as plain data; with `origin` each is `{value, source, at}`."""
        values: dict[str, object] = {n: getattr(self, n) for n in names()}
        if not origin:
            return values
        return {
            name: {"value": value, "source": self.origins[name].source, "at": self.origins[name].at}
            for name, value in values.items()
        }


def names() -> tuple[str, ...]:
    """All settings, in the order people see them."""
    return SettingsTable.__struct_fields__


def env_name(setting: str) -> str:
    """The variable that sets it."""
    return f"DDOPS_{setting.upper()}"


def load_settings(
    project: Project,
    *,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """Read all sources. `flags` maps settings to values; None there means not given.

    Raises ConfigError with the faults of all sources at once.
    """
    env = os.environ if env is None else env
    values: dict[str, object] = {}
    origins = {name: Place("default") for name in names()}
    bad: list[Problem] = []
    user_file = paths(env).config_file
    sources: tuple[tuple[Source, Path], ...] = (("user", user_file), ("project", project.file))
    for source, file in sources:
        if os.path.lexists(file):
            bad += _from_file(file, source, project, values, origins)
    bad += _from_env(env, values, origins)
    bad += _from_flags(flags or {}, values, origins)
    raise_all(bad)
    values["ledger"] = str(_ledger(project, values, origins))
    table = msgspec.convert(values, SettingsTable)
    fields = {name: getattr(table, name) for name in names()}
    return Settings(**fields, origins=origins, warnings=env_warnings(env))


def env_warnings(env: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each `DDOPS_*` variable that nothing reads."""
    known = [*(env_name(n) for n in names()), *OTHER_ENV]
    out = []
    for name in sorted(n for n in env if n.startswith("DDOPS_") and n not in known):
        # Compared without their common beginning, which would make any two alike.
        near = nearest(name[6:], [k[6:] for k in known])
        hint = f", nearest is `DDOPS_{near}`" if near else ""
        out.append(f"unknown variable `{name}`{hint}; it has no effect")
    return tuple(out)


def _from_file(
    file: Path,
    source: Source,
    project: Project,
    values: dict[str, object],
    origins: dict[str, Place],
) -> list[Problem]:
    base = project.root if source == "project" else None
    document = read_toml(file, base=base)
    decoded = decode(document.data, ProjectTable)
    if decoded.value is None or decoded.faults:
        return problems(document, decoded.faults)
    table = document.data.get("settings", {})
    for name in names():
        if isinstance(table, dict) and name in table:
            values[name] = table[name]
            line = document.lines.of(("settings", name))
            origins[name] = Place(source, f"{document.name}:{line}")
    return []


def _from_env(
    env: Mapping[str, str], values: dict[str, object], origins: dict[str, Place]
) -> list[Problem]:
    bad = []
    for name in names():
        text = env.get(env_name(name), "").strip()
        if text:  # set but empty is how a shell says "not set"
            wrong = _take(name, _parsed(name, text), values)
            origins[name] = Place("env", env_name(name))
            if wrong:
                wrong = wrong.replace(f", got {kind(text)}", f", got {quote(text)}")
                bad.append(Problem("environment", 0, env_name(name), wrong))
    return bad


def _from_flags(
    flags: Mapping[str, object], values: dict[str, object], origins: dict[str, Place]
) -> list[Problem]:
    bad = []
    for name, value in flags.items():
        if name not in names():
            raise KeyError(f"not a setting: {name}")
        if value is not None:
            flag = "--" + name.removesuffix("_s").replace("_", "-")
            wrong = _take(name, value, values)
            origins[name] = Place("flag", flag)
            if wrong:
                bad.append(Problem("command line", 0, flag, wrong))
    return bad


def _parsed(name: str, text: str) -> object:
    """A variable's text as the type of its setting; the text itself where it is none."""
    default = msgspec.structs.asdict(SettingsTable())[name]
    if isinstance(default, int | float):
        for convert in (int, float):
            try:
                return convert(text)
            except ValueError:
                continue
    return text


def _take(name: str, value: object, values: dict[str, object]) -> str:
    """Keep a value if it is right; else say what is wrong with it."""
    faults = decode({name: value}, SettingsTable).faults
    if not faults:
        values[name] = value
    return faults[0].message if faults else ""


def _ledger(project: Project, values: Mapping[str, object], origins: Mapping[str, Place]) -> Path:
    """Absolute. What a file says starts from the project, what a shell says from where it is."""
    text = str(values.get("ledger") or "")
    if not text:
        return project.ledger
    shell = origins["ledger"].source in ("flag", "env")
    return ((Path.cwd() if shell else project.root) / Path(text).expanduser()).absolute()
