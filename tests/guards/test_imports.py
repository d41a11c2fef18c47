"""Who may import what (DESIGN.md section 3, contracts in pyproject.toml).

To see it fail: write `import paramiko` into ddops/plan.py, or `from ddops.deploy import Stop`
into ddops/lock.py, and run `lint-imports`. `test_each_contract_can_fail` does so in a copy.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.guards.source import ROOT, imports, modules, tree

LINT = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as l; l()"]
LAYER_0 = ("errors", "model", "command", "events", "clock", "layout")
#: What hostside/coding.py finds on the host, beside itself.
ON_HOST = ("coding_box",)


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LINT, "--no-cache"], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )


def contracts() -> list[str]:
    parsed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [c["name"] for c in parsed["tool"]["importlinter"]["contracts"]]


def test_every_contract_is_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"{len(contracts())} kept, 0 broken" in done.stdout


PLANTED = {
    "Layers of the control plane (docs/explanation/layers.md)": (
        "ddops/lock.py",
        "from ddops.deploy import Stop",
    ),
    "Only the command line imports click": ("ddops/lab/spec.py", "import click"),
    "Only the board imports textual": ("ddops/cli/status.py", "import textual"),
    "Only the SSH transport imports fabric, invoke and paramiko": (
        "ddops/transport/local.py",
        "import paramiko",
    ),
    "Only the ledger imports sqlite_utils and sqlite3": ("ddops/cli/status.py", "import sqlite3"),
    "Only render imports jinja2": ("ddops/deploy/release.py", "import jinja2"),
    "Only render imports yaml": ("ddops/supervise/kubernetes.py", "import yaml"),
    "Only the readers of files people write import msgspec": ("ddops/plan.py", "import msgspec"),
    "Only the report's plots import matplotlib": ("ddops/report/html.py", "import matplotlib"),
    "The controller never imports the engine": ("ddops/engines/sglang.py", "import sglang"),
    "The engine's plugin never imports the control plane": (
        "sglang_ddtree/__init__.py",
        "import ddops.model",
    ),
}


def test_each_contract_has_a_proof_that_it_can_fail() -> None:
    assert list(PLANTED) == contracts()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copy")
    for package in ("ddops", "sglang_ddtree"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=ignore)
    shutil.copy2(ROOT / "pyproject.toml", root)
    return root


@pytest.mark.parametrize("contract", PLANTED)
def test_each_contract_can_fail(copy: Path, contract: str) -> None:
    name, line = PLANTED[contract]
    file = copy / name
    before = file.read_text(encoding="utf-8")
    # Inside a function: a lazy import counts as much as one at the top.
    file.write_text(f"{before}\n\ndef _planted() -> None:\n    {line}\n", encoding="utf-8")
    try:
        done = lint(copy)
    finally:
        file.write_text(before, encoding="utf-8")
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"{contract} BROKEN" in " ".join(done.stdout.split())


def test_a_module_without_a_layer_breaks_the_contract(copy: Path) -> None:
    file = copy / "ddops" / "misc.py"
    file.write_text('"""Homeless."""\n', encoding="utf-8")
    try:
        done = lint(copy)
    finally:
        file.unlink()
    assert done.returncode == 1
    assert "ddops.misc" in done.stdout


def test_layer_0_imports_the_standard_library_only() -> None:
    paths = [p for p in modules("ddops") if p.parent.name == "ddops" and p.stem in LAYER_0]
    assert len(paths) == len(LAYER_0)
    found = [
        f"{path}:{line}: {name}"
        for path in paths
        for line, name in imports(tree(path))
        if name.split(".")[0] not in sys.stdlib_module_names
        and not (name.startswith("ddops.") and name.split(".")[1] in LAYER_0)
    ]
    assert not found


def test_scripts_for_hosts_import_the_standard_library_only() -> None:
    """They run on hosts that have no ddops and no package of ours."""
    found = [
        f"{path}:{line}: {name}"
        for path in modules("ddops/hostside")
        for line, name in imports(tree(path))
        if name.split(".")[0] not in sys.stdlib_module_names
        and name not in ON_HOST
        # Scripts of several files are joined into one on their way (`hostside.joined`).
        and not name.startswith("ddops.hostside.")
    ]
    assert not found


def test_nothing_is_imported_that_is_no_declared_dependency() -> None:
    """The contracts name packages; this is for the ones that nobody has thought of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(d for extra in extras for d in extra)]
    known = {
        "ddops": {re.split(r"[<>=~ ]", d)[0].replace("-", "_") for d in declared}
        | {*ON_HOST, "yaml"},  # of pyyaml
        "sglang_ddtree": {"sglang", "torch", "triton"},  # what the engine it runs in has
    }
    found = [
        f"{path}:{line}: {name}"
        for package, others in known.items()
        for path in modules(package)
        for line, name in imports(tree(path))
        if (top := name.split(".")[0]) not in sys.stdlib_module_names
        and top not in {*others, package}
    ]
    assert not found


def test_scripts_for_hosts_parse_as_python_3_9() -> None:
    for path in modules("ddops/hostside"):
        source = (ROOT / path).read_text(encoding="utf-8")
        ast.parse(source, str(path), feature_version=(3, 9))
