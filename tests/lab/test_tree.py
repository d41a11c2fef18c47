"""A managed tree through the command line: an engine runs from it, and status tells the truth."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project
from tests.unit.snapshot.conftest import git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
MESSAGE = "Log: say it\n\nWhat: a comment\nWhy: to try\nUpstream: not sent\nTest: this one\n"


@pytest.fixture
def host(lab: Project) -> Iterator[HostView]:
    host = lab.host("lab3")
    host.forget()
    yield host
    host.forget()
    shutil.rmtree(host.layout.tree, ignore_errors=True)
    shutil.rmtree(lab.root / "patches", ignore_errors=True)


def test_an_engine_from_a_patched_tree(lab: Project, host: HostView, tmp_path: Path) -> None:
    installed = next(Path(host.layout.engine_dir).glob("env/*/lib/python3*/site-packages/sglang"))
    # The shipped patches are for SGLang itself; the stand-in has a series of its own, empty so far.
    lab.write("patches/sglang-0.5.23/series", "")
    assert lab.run("tree", "status", "lab3").rc == 4, "there is none yet"
    lab.ok("tree", "init", "lab3", "--installed", str(installed))
    assert "unchanged" in lab.ok("tree", "init", "lab3", "--installed", str(installed)).err
    lab.profile("from-tree", env={"PYTHONPATH": "${engine_dir}/tree"})
    lab.ok("deploy", "lab3", "--profile", "from-tree")
    lab.ok("tree", "verify", "lab3")
    work = tmp_path / "work"
    git("clone", "-q", host.layout.tree, str(work))
    edited = work / "sglang/_sim_log.py"
    edited.write_text("# patched\n" + edited.read_text())
    git("commit", "-qam", MESSAGE, cwd=work)
    lab.write("patches/sglang-0.5.23/0001-log.patch",
              git("format-patch", "-1", "--stdout", cwd=work).decode())  # fmt: skip
    lab.write("patches/sglang-0.5.23/series", "0001-log.patch\n")
    assert lab.run("tree", "verify", "lab3").rc == 1, "not applied"
    assert "apply 0001-log.patch" in lab.ok("tree", "apply", "lab3", "--check").out
    assert not (Path(host.layout.tree) / "sglang/_sim_log.py").read_text().startswith("# patched")
    lab.ok("tree", "apply", "lab3")
    behind = lab.run("tree", "verify", "lab3")
    assert (behind.rc, "_sim_log.py" in behind.err) == (1, True), "the engine has the old code"
    assert "nothing to do" in lab.ok("tree", "apply", "lab3").err
    host.forget()
    lab.ok("deploy", "lab3", "--profile", "from-tree")
    lab.ok("tree", "verify", "lab3")
    seen = lab.ok("tree", "status", "lab3", "--json").json
    assert isinstance(seen, dict)
    assert seen["applied"] == ["0001-log.patch"]
    assert seen["running"]["tiny"]["equal"] is True
    other = Path(host.layout.tree) / "sglang/_sim_args.py"
    other.write_text(other.read_text() + "# by hand\n")
    by_hand = lab.run("tree", "verify", "lab3")
    assert (by_hand.rc, "sglang/_sim_args.py" in by_hand.err) == (1, True)
    drifted = lab.run("drift", "lab3")
    assert (drifted.rc, "edited by hand: sglang/_sim_args.py" in drifted.out) == (8, True), drifted
    lab.profile("again", env={"PYTHONPATH": "${engine_dir}/tree"})
    serving = host.serves()
    refused = lab.run("deploy", "lab3", "--profile", "again")
    assert refused.rc == 4, refused
    assert "managed tree: edited by hand: sglang/_sim_args.py: ddops tree export" in refused.err
    assert host.serves() == serving
    lab.ok("tree", "export", "lab3")
    series = (lab.root / "patches/sglang-0.5.23/series").read_text().split()
    assert series == ["0001-log.patch", "0002-Edits-made-by-hand.patch"]
    assert lab.ok("tree", "status", "lab3").out.count("not applied") == 1
    assert_it_comes_back(lab, host)


def assert_it_comes_back(lab: Project, host: HostView) -> None:
    """Tree and repository lost, restored: the same pin, commits and hand edits, and it runs."""
    before = lab.ok("tree", "status", "lab3", "--json").json
    taken = lab.ok("snapshot", "lab3", "--json").json
    assert isinstance(before, dict)
    assert isinstance(taken, list)
    host.forget()
    shutil.rmtree(host.layout.tree)
    lab.ok("restore", taken[0]["id"], "--to", "lab3")
    after = lab.ok("tree", "status", "lab3", "--json").json
    assert isinstance(after, dict)
    same = ("pin", "head", "tree", "applied", "pure", "commits", "dirty")
    assert {k: after[k] for k in same} == {k: before[k] for k in same}
    assert after["dirty"] == ["sglang/_sim_args.py"]
    assert after["running"]["tiny"]["differs"] == ["_sim_args.py"], "the edit by hand runs"
    shown = lab.ok("snapshot", "show", taken[0]["id"]).out
    assert "commits/0001-Log-say-it.patch" in shown
    assert "repository/objects.pack" in shown


def test_wrong_series_and_wrong_words_are_refused(lab: Project, host: HostView) -> None:
    installed = next(Path(host.layout.engine_dir).glob("env/*/lib/python3*/site-packages/sglang"))
    lab.ok("tree", "init", "lab3", "--installed", str(installed))
    lab.write("patches/sglang-0.5.23/series", "absent.patch\n../evil.patch\nbad.patch\n")
    lab.write("patches/sglang-0.5.23/bad.patch", "no patch at all\n")
    done = lab.run("tree", "status", "lab3")
    assert done.rc == 2
    assert "patches/sglang-0.5.23/series:1: absent.patch: no such file" in done.err
    assert "../evil.patch: not a patch's name" in done.err
    assert "is no file of `git format-patch`" in done.err
    assert lab.run("tree", "init", "lab3", "--git", "/x", "--commit", "main").rc == 2
    assert lab.run("tree", "init", "lab3").rc == 2
