"""The wheel holds all it needs: built offline, installed elsewhere, used in an empty folder.

To see it fail: take a line out of `force-include` in pyproject.toml.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.guards.source import ROOT, python, tracked

#: Folders of the repository, each with a file that must arrive, below ddops/_data.
SHIPPED = {
    "templates": "templates/unit.service.j2",
    "inventory": "inventory/hosts.toml",
    "suites": "suites/concurrency.toml",
    "patches": "patches/sglang-0.5.23/series",
    "runbooks": "runbooks/README.md",
    "lab": "lab/engine_sim/sglang/launch_server.py",
    "requirements": "requirements/engine-cpu.lock",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = python("-m", "hatchling", "build", "-t", "wheel", "-d", str(out), timeout_s=120)
    assert done.returncode == 0, done.stderr
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.parametrize("folder", SHIPPED)
def test_the_defaults_are_inside(names: list[str], folder: str) -> None:
    assert f"ddops/_data/{SHIPPED[folder]}" in names
    here = {n for n in tracked() if n.startswith(f"{folder}/") and "/tests/" not in n}
    missing = here - {n.removeprefix("ddops/_data/") for n in names}
    assert not {n for n in missing if not n.rpartition("/")[2].startswith(".")}


def test_both_packages_and_their_entry_points_are_inside(wheel: Path, names: list[str]) -> None:
    assert {"ddops/cli/root.py", "ddops/hostside/guard.py", "sglang_ddtree/__init__.py"} <= {*names}
    (entry,) = [n for n in names if n.endswith(".dist-info/entry_points.txt")]
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(entry).decode()
    assert "[console_scripts]\nddops = ddops.cli:main" in text
    assert "[sglang.srt.plugins]\nddtree = sglang_ddtree:register" in text


def test_nothing_else_is_inside(names: list[str]) -> None:
    assert not [n for n in names if "__pycache__" in n or n.endswith(".pyc")]
    # force-include knows no exclusions: name the folders of lab/ one by one.
    assert not [n for n in names if "/tests/" in n or n.startswith("tests/")]
    tops = {n.split("/")[0] for n in names if ".dist-info" not in n}
    assert tops == {"ddops", "sglang_ddtree"}


class Installed:
    """The wheel in a folder of its own; what it depends on comes from this environment."""

    def __init__(self, site: Path, empty: Path) -> None:
        self.site, self.empty = site, empty

    def __call__(self, *argv: str) -> CompletedProcess[str]:
        """`python -m ddops ...` in the empty folder, the checkout out of sight."""
        # -S: no site-packages, so that the editable install of the checkout is not found.
        rest = [p for p in sys.path if p.endswith("site-packages")]
        env = {
            "PYTHONPATH": os.pathsep.join([str(self.site), *rest]),
            "HOME": str(self.empty.parent),
            "COLUMNS": "100",
        }
        return python("-S", "-m", "ddops", *argv, cwd=self.empty, env=env)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("installed")
    site, empty = base / "site", base / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:  # a pure wheel is installed by unpacking it
        archive.extractall(site)
    return Installed(site, empty)


def test_it_is_the_wheel_that_runs(installed: Installed) -> None:
    done = installed("config", "paths", "--json")
    assert done.returncode == 0, done.stderr
    assert str(installed.site / "ddops" / "_data") in done.stdout
    assert str(ROOT) not in done.stdout


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--version"], "ddops, version"),
        (["--help"], "Commands:"),
        (["host", "list"], "b300.example"),
        (["config", "show", "--origin"], "default"),
        (["config", "schema", "hosts"], "HostsFile"),
        (["deploy", "b300", "--dry-run"], "--speculative-algorithm DDTREE"),
        (["deploy", "pcie", "--dry-run"], "Description=SGLang service k26-pcie"),
        (["completion", "bash"], "_DDOPS_COMPLETE"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_it_works_in_an_empty_folder(installed: Installed, argv: list[str], says: str) -> None:
    done = installed(*argv)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert not list(installed.empty.iterdir()), "looking writes nothing"


def test_the_lab_hosts_files_can_be_run(wheel: Path) -> None:
    """The stand-in commands of recorded hosts keep their executable bit."""
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo("ddops/_data/lab/hosts/bin/nvidia-smi")
    assert (info.external_attr >> 16) & 0o111
