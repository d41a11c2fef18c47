"""Where a project is, and where the shipped defaults are."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import ddops
from ddops.config.files import reason
from ddops.config.toml import fault
from ddops.errors import UsageError

PROJECT_FILE = "ddops.toml"


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with `ddops.toml`, or, when `explicit` is False, a folder taken for one."""

    root: Path
    explicit: bool = True

    @property
    def file(self) -> Path:
        return self.root / PROJECT_FILE

    @property
    def state(self) -> Path:
        """What ddops itself writes; made by who writes, mode 0700."""
        return self.root / ".ddops"

    @property
    def ledger(self) -> Path:
        """The ledger's default place; `Settings.ledger_path` is the one in force."""
        return self.state / "ledger.db"

    @property
    def lab(self) -> Path:
        """The lab's folder. It exists only while a lab is up."""
        return self.state / "lab"

    @property
    def inventory(self) -> Path:
        return self.root / "inventory"


def find_project(start: Path) -> Project:
    """The nearest folder at or above `start` that holds `ddops.toml`; else `start` itself."""
    try:
        here = start.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"no such folder: {str(start)!r}",
            why=reason(error),
            next="ddops --project <folder> ...",
        ) from None
    if not here.is_dir():
        raise UsageError(f"not a folder: {here}", next="ddops --project <folder> ...")
    for folder in (here, *here.parents):
        if os.path.lexists(folder / PROJECT_FILE):
            _refuse_planted(folder)
            return Project(folder)
    return Project(here, explicit=False)


def data_root() -> Path:
    """Where the shipped defaults lie: in the installed package, or around a source checkout."""
    package = Path(ddops.__file__).resolve().parent
    data = package / "_data"
    return data if data.is_dir() else package.parent


def lookup(project: Project, name: str) -> Path:
    """The file or folder `name`, such as `templates/x.j2`: of the project, else the shipped one.

    A name that leads out of the place it is looked up in is refused, also through a link.
    """
    pure = PurePosixPath(name)
    if not name or "\0" in name or pure.is_absolute() or ".." in pure.parts:
        raise UsageError(
            f"not a path inside the project: {name!r}",
            why="it is looked up in the project and in the package, and may not lead out of them",
            next="write it relative to the project's folder, without '..'",
        )
    for base in (project.root, data_root()):
        path = base / pure
        try:
            if not path.exists():
                continue
            inside = path.resolve().is_relative_to(base.resolve())
        except (OSError, RuntimeError) as error:
            raise UsageError(f"cannot look at {path}: {reason(error)}") from None
        if not inside:
            raise UsageError(
                f"{path} is a link out of {base}",
                why="what is sent to hosts must lie in the project itself",
                next=f"copy {path.resolve()} into the project",
            )
        return path
    raise UsageError(
        f"neither the project nor the package has {name}",
        why=f"looked in {project.root} and {data_root()}",
        next=f"write {project.root / pure}, or correct the name where it is asked for",
    )


def _refuse_planted(folder: Path) -> None:
    """In a folder anybody may write to, only one's own `ddops.toml` counts: it can run commands."""
    try:
        shared = folder.stat().st_mode & stat.S_IWOTH
        owner = (folder / PROJECT_FILE).lstat().st_uid
    except OSError as error:
        raise fault(str(folder / PROJECT_FILE), f"cannot be read: {reason(error)}") from None
    if shared and owner not in (0, os.geteuid()):
        raise fault(
            str(folder / PROJECT_FILE),
            f"belongs to another user (uid {owner}) in a folder anybody may write to",
            next="work in a folder of your own",
        )
