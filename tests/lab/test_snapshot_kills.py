"""A snapshot that is killed at any step, and the next one: it converges, nothing lies meanwhile.

The table is not written by hand: a first run counts the steps, then the process is ended after
each of them, and before the first: that is every point between two steps. To see it fail: set the
place's reference before the pack in gitplace._PUT, or record a copy as verified before `keep`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddops.snapshot.gitplace import GitPlace
from ddops.snapshot.verify import verify_here
from ddops.transport import LocalTransport
from tests.lab.harness import ROOT
from tests.lab.snapdriver import tools_in
from tests.unit.snapshot.conftest import fingerprint

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def work_in(folder: Path) -> Path:
    (folder / "tree/sglang/srt").mkdir(parents=True)
    (folder / "tree/sglang/__init__.py").write_text("__version__ = '1'\n")
    for i in range(20):
        (folder / f"tree/sglang/srt/{i}.py").write_text(f"print({i})\n" * 30)
    (folder / "engine").mkdir()
    return folder


def drive(
    work: Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.lab.snapdriver", str(work), *words], cwd=ROOT,
        env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip


def steps_of(work: Path) -> list[str]:
    return [line.split(" ")[1] for line in (work / "steps").read_text().splitlines()]


def honest(work: Path) -> None:
    """After a kill: what is called verified is whole, and what is published is whole."""
    tools = tools_in(work)
    place = GitPlace(LocalTransport("place"), str(work / "place.git"))
    published = place.ids()
    for snapshot_id, commit in published.items():
        place.check(tools.store.manifest(snapshot_id), commit)
    if (work / "ledger.db").exists():
        with tools.ledger() as ledger:
            for row in ledger.snapshots():
                for copy in ledger.copies(row.id):
                    assert copy.state != "verified" or row.id in published


def converged(work: Path, *words: str) -> None:
    done = drive(work, *words)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    tools = tools_in(work)
    assert list(tools.store.ids()) == [made["id"]], "one snapshot, however often it was begun"
    verify_here(tools.store, tools.store.manifest(made["id"]))
    place = GitPlace(LocalTransport("place"), str(work / "place.git"))
    assert list(place.ids()) == [made["id"]]
    place.check(tools.store.manifest(made["id"]), tools.store.ids()[made["id"]])
    with tools.ledger() as ledger:
        assert [r.id for r in ledger.snapshots()] == [made["id"]]
        assert {c.state for c in ledger.copies(made["id"])} == {"verified"}
        assert ledger.verify() == []


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    work = work_in(tmp_path_factory.mktemp("count"))
    done = drive(work)
    assert done.returncode == 0, done.stderr
    found = steps_of(work)
    assert found.count("call") == 4, "about, capture, look, put"
    assert found.count("row") == 3, "host, snapshot, copy"
    return found


def test_a_kill_at_every_step_converges(steps: list[str], tmp_path: Path) -> None:
    """Each kill in a world of its own."""
    table = [(1, "before"), *((n, "after") for n in range(1, len(steps) + 1))]
    assert len(table) >= 20

    def one(case: tuple[int, str]) -> str:
        number, when = case
        work = work_in(tmp_path / f"{number}-{when}")
        before = fingerprint(work / "tree")
        killed = drive(work, str(number), when)
        if killed.returncode != 137:
            return f"{case}: was not killed: {killed.returncode} {killed.stderr}"
        try:
            honest(work)
            converged(work)
        except Exception as error:
            return f"{case} ({steps[number - 1]}): {type(error).__name__}: {error}"
        return "" if fingerprint(work / "tree") == before else f"{case}: the tree was touched"

    with ThreadPoolExecutor(2) as pool:
        wrong = [w for w in pool.map(one, table) if w]
    assert not wrong


def test_the_hosts_own_script_killed_at_every_git_call(tmp_path: Path) -> None:
    """A `git` in the host's PATH that does its n-th call and kills the script above it.

    In a second snapshot, after an edit: what a killed run has done to the index is not taken for
    the snapshot before it.
    """
    real = shutil.which("git")
    number, most = 0, 30
    while number < most:
        number += 1
        work = work_in(tmp_path / str(number))
        assert drive(work).returncode == 0
        (work / "tree/sglang/__init__.py").write_text("__version__ = 'edited'\n")
        (work / "tree/new.py").write_text("new = 1\n")
        bin_dir = work / "bin"
        bin_dir.mkdir()
        wrapper = bin_dir / "git"
        wrapper.write_text(
            f"#!/bin/sh\n"
            f'case "$GIT_DIR" in */trees/*) echo x >> {work}/calls;; *) exec {real} "$@";; esac\n'
            f'if [ "$(wc -l < {work}/calls)" -eq {number} ] && [ ! -e {work}/killed ]; then\n'
            f'  {real} "$@"; touch {work}/killed; kill -9 $PPID; exit 1\nfi\n'
            f'exec {real} "$@"\n'
        )
        wrapper.chmod(0o755)
        killed = drive(work, env={"PATH": f"{bin_dir}:{os.environ['PATH']}"})
        if not (work / "killed").exists():
            assert killed.returncode == 0, killed.stderr
            break
        assert killed.returncode == 1, killed.stderr
        honest(work)
        done = drive(work)
        assert done.returncode == 0, done.stderr
        tools = tools_in(work)
        repo, tree = tools.store.repo, json.loads(done.stdout)["tree"]
        assert repo.blob(f"{tree}:sglang/__init__.py") == b"__version__ = 'edited'\n"
        assert repo.blob(f"{tree}:new.py") == b"new = 1\n"
        assert len(tools.store.ids()) == 2
        verify_here(tools.store, tools.store.manifests()[0])
        honest(work)
    assert 8 <= number < most, "the calls of one capture"


@pytest.mark.skipif(shutil.which("restic") is None, reason="restic is not installed")
def test_a_kill_at_every_restic_step_converges(tmp_path: Path) -> None:
    work = work_in(tmp_path / "count")
    done = drive(work, "--restic")
    assert done.returncode == 0, done.stderr
    found = steps_of(work)
    numbers = [n for n, label in enumerate(found, 1) if label == "restic"]
    assert len(numbers) == 7, "cat, init, snapshots, backup, check, manifest, read back"
    made = json.loads(done.stdout)
    assert set(made["copies"].values()) == {"verified"}

    def one(case: tuple[int, str]) -> str:
        fresh = work_in(tmp_path / f"{case[0]}-{case[1]}")
        killed = drive(fresh, str(case[0]), case[1], "--restic")
        if killed.returncode != 137:
            return f"{case}: was not killed: {killed.stderr}"
        tools = tools_in(fresh, restic=True)
        snapshot_id = next(iter(tools.store.ids()))
        with tools.ledger() as ledger:
            states = {c.place.partition(":")[0]: c.state for c in ledger.copies(snapshot_id)}
        if states != {"git": "verified"}:
            return f"{case}: {states}"
        try:
            converged(fresh, "--restic")
            for place in tools.places:
                place.check(tools.store, tools.store.manifest(snapshot_id))
        except Exception as error:
            return f"{case}: {type(error).__name__}: {error}"
        return ""

    with ThreadPoolExecutor(2) as pool:
        cases = [(n, "after") for n in numbers]
        wrong = [w for w in pool.map(one, cases) if w]
    assert not wrong
