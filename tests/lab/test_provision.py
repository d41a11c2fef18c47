"""`ddops provision` on real hosts: once, again, killed, and never by a dry run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project
from tests.lab.looking import below, files_below, until

Make = Callable[[str], Project]


@pytest.fixture(scope="module")
def bare(make_project: Make) -> Project:
    """A lab of two hosts; `lab2` stays as it came up."""
    project = make_project("p")
    project.ok("lab", "up", "--engine", "sim", "--hosts", "2")
    return project


@pytest.fixture
def host(bare: Project) -> Iterator[HostView]:
    view = bare.host("lab1")
    yield view


def _journal(host: HostView) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(host.layout.journal).read_text().splitlines()]


def test_a_dry_run_changes_nothing_anywhere(bare: Project) -> None:
    before = files_below(bare.root)
    done = bare.ok("provision", "lab2", "--dry-run")
    assert "steps pending" in done.out
    again = bare.run("provision", "lab2", "--dry-run", "--exit-code")
    assert again.rc == 8, again
    plan = bare.ok("provision", "lab2", "--dry-run", "--json")
    assert '"pending": 10' in plan.out
    after = files_below(bare.root)
    changed = {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)}
    # sshd writes its own log of the logins; nothing of ours may change.
    assert {p for p in changed if not p.endswith("sshd.log")} == set()
    assert not (bare.root / ".ddops" / "ledger.db").exists()
    deploy = bare.ok("deploy", "lab2", "--dry-run")
    assert "not provisioned" in deploy.out
    assert not (bare.root / ".ddops" / "ledger.db").exists()


def test_killed_at_any_step_it_goes_on_from_there(bare: Project, host: HostView) -> None:
    run = bare.spawn("provision", "lab1")
    until(lambda: (Path(host.layout.hostside) / "guard.py").exists(), what="the scripts")
    run.kill()
    assert host.locked  # nobody gave it back
    done = bare.ok("provision", "lab1")
    assert not host.locked
    assert "steps done" in done.err
    first = {(r["step"], r["state"]) for r in _journal(host)}
    assert ("hostside", "begin") in first
    assert ("supervisord", "done") in first
    assert "nothing to do" in bare.ok("provision", "lab1").err
    assert [p.name for p in below(Path(host.layout.engine_dir)) if ".partial." in p.name] == []


def test_again_there_is_nothing_to_do(bare: Project, host: HostView) -> None:
    bare.ok("provision", "lab1")
    before = files_below(Path(host.layout.engine_dir))
    done = bare.ok("provision", "lab1")
    assert "nothing to do" in done.err
    assert bare.run("provision", "lab1", "--dry-run", "--exit-code").rc == 0
    after = files_below(Path(host.layout.engine_dir))
    assert {p for p in before if before[p] != after.get(p)} == set()


def test_what_was_changed_by_hand_is_shown_and_mended(bare: Project, host: HostView) -> None:
    bare.ok("provision", "lab1")
    script = Path(host.layout.hostside) / "observe.py"
    right = script.read_text()
    script.write_text(right + "# touched\n")
    plan = bare.ok("provision", "lab1", "--dry-run")
    assert "~ host-side scripts" in plan.out
    refused = bare.run("deploy", "lab1")
    assert refused.rc == 4, refused
    assert "not as provision leaves it" in refused.err
    bare.ok("provision", "lab1")
    assert script.read_text() == right


def test_control_c_gives_the_lock_back(bare: Project, host: HostView) -> None:
    import shutil

    bare.ok("provision", "lab1")
    shutil.rmtree(host.layout.models)
    for entry in Path(host.layout.engine_dir, "env").glob("*/"):
        shutil.rmtree(entry)
    run = bare.spawn("provision", "lab1")
    until(lambda: host.locked, what="the lock")
    run.interrupt()
    done = run.end(60)
    assert done.rc == 130, done
    assert "stopped by the user" in done.err
    assert not host.locked
    bare.ok("provision", "lab1")
    assert "nothing to do" in bare.ok("provision", "lab1").err


def test_weights_that_must_be_there_and_are_not(bare: Project) -> None:
    """A real engine's weights that ddops does not bring: nothing is guessed."""
    bare.service(model_source='"lab/models/absent"')
    try:
        done = bare.run("provision", "lab2")
        assert done.rc == 2, done
        assert "lab/models/absent" in done.err
    finally:
        (bare.root / "inventory/services/tiny.toml").unlink()
    assert not (bare.host("lab2").dir / "engine" / ".ddops").exists()


def test_a_wrong_thing_in_the_way_is_named(bare: Project) -> None:
    host = bare.host("lab2")
    blocker = host.dir / "engine" / "models"
    blocker.write_text("a file")
    try:
        done = bare.run("provision", "lab2")
    finally:
        blocker.unlink()
    assert done.rc == 1, done
    assert f"{blocker} is in the way" in done.err
    assert not host.locked
