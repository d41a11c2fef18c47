"""An engine with a patch series applied: links into the installed one, but for what changes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.engine.ddtree_support import REPO

SERIES = REPO / "patches"


def names(engine: str) -> list[str]:
    """The patches of a series, in order."""
    lines = (SERIES / engine / "series").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def touched(patch: Path) -> set[str]:
    return set(re.findall(r"^diff --git a/\S+ b/(\S+)$", patch.read_text(), re.MULTILINE))


def git_apply(tree: Path, patch: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # No repository above may lend its rules: what is applied to is the folder alone.
    environ = {"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    return subprocess.run(
        ["git", "apply", "--whitespace=nowarn", *options, str(patch)],
        cwd=tree, env=environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def linked_tree(package: Path, tree: Path, engine: str) -> Path:
    """`tree`/sglang as links into the installed package; files that a patch touches are copies."""
    wanted = {f for name in names(engine) for f in touched(SERIES / engine / name)}
    for source in package.rglob("*"):
        if source.is_dir() or source.suffix == ".pyc":
            continue
        place = tree / "sglang" / source.relative_to(package)
        place.parent.mkdir(parents=True, exist_ok=True)
        if str(place.relative_to(tree)) in wanted:
            shutil.copyfile(source, place)
        else:
            place.symlink_to(source)
    return tree


def patched_tree(package: Path, tree: Path, engine: str = "sglang-0.5.23") -> Path:
    """The same with the whole series applied; for PYTHONPATH."""
    linked_tree(package, tree, engine)
    for name in names(engine):
        done = git_apply(tree, SERIES / engine / name)
        assert done.returncode == 0, f"{name}: {done.stderr}"
    return tree


def package_of(python: Path) -> Path:
    """Where that interpreter's sglang lies. Nothing of it is imported."""
    code = "import importlib.util as u; print(u.find_spec('sglang').submodule_search_locations[0])"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())
