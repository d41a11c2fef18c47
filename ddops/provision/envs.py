"""Engine environments: what each kind is built from, gathered in one folder with one digest."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddops import __version__
from ddops.config.files import read_text
from ddops.errors import RefusedError
from ddops.transport.files import tree_digest

Lookup = Callable[[str], Path]

#: The package that SGLang loads; part of the wheel of ddops, and of every engine environment.
PLUGIN = "sglang_ddtree"


#: The environment of SGLang's router: no engine is in it.
ROUTER = "router"


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

    @property
    def engine(self) -> str:
        """What `patches/` is looked up by: `sglang-0.5.23`, of the stand-in `sim-0.5.23`."""
        if self.has("engine.lock"):
            name, where, form = "sglang", self.folder / "engine.lock", r"^sglang==([0-9][\w.+-]*)"
        else:
            where, form = self.folder / "trees/sglang/version.py", r'^__version__ = "([^"]+)"'
            name = "sim"
        text = read_text(where) if where.is_file() else ""
        found = re.search(form, text, re.MULTILINE)
        return f"{name}-{found.group(1)}" if found else name

    @property
    def plugin(self) -> str:
        """Digest of the engine's plugin as it is installed; empty where there is none."""
        package = self.folder / "trees" / PLUGIN
        return tree_digest(package) if package.is_dir() else ""


def env_recipe(kind: str, lookup: Lookup, workdir: Path) -> EnvRecipe:
    """Gather the inputs of an environment `kind` below `workdir`."""
    folder = workdir / kind
    if kind == "sim":
        _copy_tree(lookup("lab/engine_sim/sglang"), folder / "trees" / "sglang")
    elif kind == "sglang-cpu":
        _copy(lookup("requirements/engine-cpu.lock"), folder / "engine.lock")
        _copy(lookup("requirements/engine-cpu-torch.txt"), folder / "torch.txt")
        _copy_tree(lookup("lab/engine_cpu"), folder / "dists" / "ddops-sglang-cpu")
        _plugin(folder / "trees")
    elif kind == ROUTER:
        _copy(lookup("requirements/router.lock"), folder / "engine.lock")
    else:
        _copy(lookup("requirements/engine-cuda.lock"), folder / "engine.lock")
        _plugin(folder / "trees")
    return EnvRecipe(kind, folder, tree_digest(folder))


def _plugin(trees: Path) -> None:
    """The engine's plugin, as an installed distribution: its package and what names it to SGLang.

    Found, never imported: the control plane does without the engine.
    """
    spec = importlib.util.find_spec(PLUGIN)
    if spec is None or spec.origin is None:
        raise RefusedError(
            f"{PLUGIN} is not beside ddops",
            why="one wheel holds both, and an engine environment needs it for DDTREE",
            next="install ddops anew",
        )
    package, info = trees / PLUGIN, trees / f"{PLUGIN}-{__version__}.dist-info"
    _copy_tree(Path(spec.origin).parent, package)
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: {__version__}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    entry = f"[sglang.srt.plugins]\nddtree = {PLUGIN}:register\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    files = sorted(p for p in package.rglob("*") if p.is_file())
    rows = [f"{p.relative_to(trees)},{_record_hash(p)},{p.stat().st_size}\n" for p in files]
    (info / "RECORD").write_text("".join(rows), encoding="utf-8")


def _record_hash(path: Path) -> str:
    """A file's hash as a RECORD spells it."""
    raw = hashlib.sha256(path.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy what is installed; tests and build leftovers would change the digest for nothing."""
    ignore = shutil.ignore_patterns(
        "__pycache__", "tests", "build", "*.egg-info", ".pytest_cache", "README.md"
    )
    shutil.copytree(source, target, ignore=ignore)
