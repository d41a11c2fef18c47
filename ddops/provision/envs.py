"""Engine environments: what each kind is built from, gathered in one folder with one digest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddops.errors import RefusedError
from ddops.transport.files import tree_digest

Lookup = Callable[[str], Path]


@dataclass(frozen=True, slots=True)
class EnvRecipe:
    """Inputs of one environment. `folder` is local; its digest names the environment.

    Below `folder`: `engine.lock` and `torch.txt` (requirements), `dists/*` (source folders to
    install without dependencies), `trees/*` (packages to copy as they are).
    """

    kind: str
    folder: Path
    digest: str

    def parts(self, below: str) -> list[str]:
        """Names in one of the sub-folders, sorted."""
        folder = self.folder / below
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()


def env_recipe(kind: str, lookup: Lookup, workdir: Path) -> EnvRecipe:
    """Gather the inputs of an environment `kind` below `workdir`."""
    folder = workdir / kind
    if kind == "sglang-cpu":
        _copy(lookup("requirements/engine-cpu.lock"), folder / "engine.lock")
        _copy(lookup("requirements/engine-cpu-torch.txt"), folder / "torch.txt")
        _copy_tree(lookup("lab/engine_cpu"), folder / "dists" / "ddops-sglang-cpu")
    elif kind == "sim":
        _copy_tree(lookup("lab/engine_sim/sglang"), folder / "trees" / "sglang")
    else:
        raise RefusedError(
            "no lock for a CUDA engine environment is shipped yet",
            why="an environment is built from hashed locks alone, and ddops has none for CUDA",
            next="try the same deploy in a lab: ddops lab up --gpu b300",
        )
    return EnvRecipe(kind, folder, tree_digest(folder))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy what is installed; tests and build leftovers would change the digest for nothing."""
    ignore = shutil.ignore_patterns(
        "__pycache__", "tests", "build", "*.egg-info", ".pytest_cache", "README.md"
    )
    shutil.copytree(source, target, ignore=ignore)
