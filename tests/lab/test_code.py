"""Patched engine code: named by the release, made by provision, held against it by drift."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project
from tests.lab.looking import files_below
from tests.unit.snapshot.conftest import git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
SERIES = "patches/sim-0.5.23"
MESSAGE = "Log: say it\n\nWhat: a comment\nWhy: to try\nUpstream: not sent\nTest: this one\n"
FILE = "sglang/_sim_log.py"


@pytest.fixture(scope="module")
def project(make_project: Callable[[str], Project]) -> Project:
    project = make_project("code")
    project.ok("lab", "up", "--engine", "sim")
    project.ok("provision", "lab1")
    return project


@pytest.fixture
def host(project: Project) -> Iterator[HostView]:
    host = project.host("lab1")
    yield host
    shutil.rmtree(project.root / "patches", ignore_errors=True)
    shutil.rmtree(Path(host.layout.engine_dir) / "code", ignore_errors=True)


def installed(host: HostView) -> Path:
    return next(Path(host.layout.engine_dir).glob("env/*/lib/python3*/site-packages"))


def write_patch(project: Project, host: HostView, work: Path, old: str = "") -> None:
    """A patch that puts a line in front of a file; made on `old` before it, where that is given."""
    git("init", "-q", str(work))
    shutil.copytree(installed(host) / "sglang", work / "sglang",
                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    target = work / FILE
    target.write_text(old + target.read_text())
    git("add", "-A", cwd=work)
    git("commit", "-qm", "upstream", cwd=work)
    target.write_text("# patched\n" + target.read_text())
    git("commit", "-qam", MESSAGE, cwd=work)
    made = git("format-patch", "-1", "--stdout", "--full-index", cwd=work).decode()
    project.write(f"{SERIES}/0001-log.patch", made)
    project.write(f"{SERIES}/series", "0001-log.patch\n")


def code_dirs(host: HostView) -> list[Path]:
    folder = Path(host.layout.engine_dir) / "code"
    return sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


def content(host: HostView) -> dict[str, object]:
    value: dict[str, object] = json.loads((Path(host.service.current) / "release.json").read_text())
    return value


def quiet(host: HostView) -> dict[str, str]:
    """The host's files but for logs, which the supervisor writes when it likes."""
    found = files_below(Path(host.layout.engine_dir))
    return {path: mark for path, mark in found.items() if not path.endswith(".log")}


def test_a_series_makes_another_release_and_goes_back(
    project: Project, host: HostView, tmp_path: Path
) -> None:
    project.ok("deploy", "lab1")
    plain = host.serves()
    assert content(host)["series"] == ""
    write_patch(project, host, tmp_path / "work")
    refused = project.run("deploy", "lab1")
    assert refused.rc == 4, refused
    assert "not as provision leaves it: engine code" in refused.err
    assert host.serves() == plain
    before = quiet(host)
    shown = project.ok("provision", "lab1", "--dry-run", "--diff")
    assert "apply 0001-log.patch: Log: say it" in shown.out
    assert "+# patched" in shown.out
    assert quiet(host) == before
    project.ok("provision", "lab1")
    assert "nothing to do" in project.ok("provision", "lab1").err
    (code,) = code_dirs(host)
    assert (code / FILE).read_text().startswith("# patched\n")
    assert not (installed(host) / FILE).read_text().startswith("# patched\n")
    project.ok("deploy", "lab1")
    patched = host.serves()
    assert patched not in (None, plain)
    launch = host.launch()
    assert launch is not None
    words = Path(f"/proc/{launch['pid']}/environ").read_text().split("\0")
    assert f"PYTHONPATH={code}" in words
    assert len(str(content(host)["series"])) == 64
    assert "no drift" in project.ok("drift", "lab1").out
    project.ok("rollback", "lab1")
    assert host.serves() == plain
    host.forget()


def test_an_edit_by_hand_is_drift_and_is_put_back(
    project: Project, host: HostView, tmp_path: Path
) -> None:
    write_patch(project, host, tmp_path / "work")
    project.ok("provision", "lab1")
    project.ok("deploy", "lab1")
    (code,) = code_dirs(host)
    right = (code / FILE).read_text()
    (code / FILE).write_text(right + "# by hand\n")
    (code / "sglang/extra.py").write_text("x = 1\n")
    drifted = project.run("drift", "lab1")
    assert drifted.rc == 8, drifted
    assert f"changed by hand: {FILE}" in drifted.out
    refused = project.run("deploy", "lab1", "--profile", project.profile("other"))
    assert (refused.rc, "engine code" in refused.err) == (4, True), refused
    (code / "sglang/_sim_args.py").unlink()
    shown = project.ok("provision", "lab1", "--dry-run", "--diff")
    assert "+# by hand" in shown.out
    assert "extra by hand: sglang/extra.py" in shown.out
    project.ok("provision", "lab1")
    assert (code / FILE).read_text() == right
    assert not (code / "sglang/extra.py").exists()
    assert (code / "sglang/_sim_args.py").exists()
    assert "no drift" in project.ok("drift", "lab1").out
    kept = git("for-each-ref", "--format=%(refname)", "refs/ddops/edited", cwd=code).decode()
    assert "# by hand" in git("show", f"{kept.split()[0]}:{FILE}", cwd=code).decode()
    host.forget()


def test_a_series_that_does_not_fit_leaves_nothing(
    project: Project, host: HostView, tmp_path: Path
) -> None:
    write_patch(project, host, tmp_path / "work", old="another = 'upstream'\n")
    refused = project.run("provision", "lab1")
    assert refused.rc == 4, refused
    assert "0001-log.patch" in refused.err
    assert f"{FILE} hunk 1" in refused.err
    assert code_dirs(host) == [p for p in code_dirs(host) if p.name.endswith(".new")]
    project.write(f"{SERIES}/series", "")
    assert "nothing to do" in project.ok("provision", "lab1").err


def test_a_half_made_folder_is_made_anew(project: Project, host: HostView, tmp_path: Path) -> None:
    write_patch(project, host, tmp_path / "work")
    project.ok("provision", "lab1")
    (code,) = code_dirs(host)
    half = code.with_name(f"{code.name}.new")
    code.rename(half)  # as a kill just before the last rename leaves it
    (half / FILE).write_text("cut sh")
    project.ok("provision", "lab1")
    assert code_dirs(host) == [code]
    assert (code / FILE).read_text().startswith("# patched\n")
