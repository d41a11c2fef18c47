"""Snapshot, destruction, restore: on real SSH, with the lab's own backup place.

To see them fail: let restore stage a release of today's project, or drop `differing` from
hostside/snap_lay.py.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project, Running, together
from tests.lab.looking import until

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or shutil.which("restic") is None, reason="needs git and restic"
)
EDIT = "# tuned by hand, never committed\n"


@pytest.fixture(scope="module")
def lab(make_project: Callable[[str], Project]) -> Project:  # another lab than the tier's own
    project = make_project("snap")
    project.ok("lab", "up", "--engine", "sim", "--hosts", "2")
    project.ok("provision", "lab")
    project.ok("deploy", "lab1")
    return project


@pytest.fixture
def host(lab: Project) -> HostView:
    return lab.host("lab1")


def package(host: HostView) -> Path:
    return next(Path(host.layout.engine_dir).glob("env/*/lib/python3*/site-packages/sglang"))


def newest(lab: Project) -> dict[str, object]:
    rows = lab.ok("snapshot", "list", "lab1", "--json").json
    assert isinstance(rows, list)
    row: dict[str, object] = rows[0]
    return row


def destroy(host: HostView) -> None:
    """What a lost disk leaves: an empty folder and nothing that runs."""
    pids = list(Path(host.layout.state).glob("supervisor/*.pid"))
    for path in pids:
        os.kill(int(path.read_text()), signal.SIGTERM)
    until(lambda: not host.pids(), what="the end of the engine")
    engine = Path(host.layout.engine_dir)
    shutil.rmtree(engine)
    engine.mkdir(mode=0o700)


def gates(lab: Project) -> list[tuple[str, str]]:
    with lab.ledger() as ledger:
        deployment = ledger.deployments(host="lab1", limit=1)[0]
        return [(g.name, g.verdict.value) for g in ledger.deployment_gates(deployment.op_id)]


@pytest.fixture(scope="module")
def rescued(lab: Project) -> Iterator[dict[str, object]]:
    """The whole story once; the tests look at its parts."""
    host = lab.host("lab1")
    edited = package(host) / "_sim_text.py"
    edited.write_text(edited.read_text() + EDIT)
    (package(host) / "untracked notes.txt").write_text("keep me\n")
    before = {"serves": host.serves(), "gates": gates(lab)}
    taken = lab.ok("snapshot", "lab1", "--json").json
    assert isinstance(taken, list)
    row = taken[0]
    full = lab.run("restore", str(row["id"]), "--to", "lab1")
    destroy(host)
    bare = lab.run("status", "lab1", "--json")
    done = lab.run("restore", str(row["id"])[:12], "--to", "lab1")
    yield {"before": before, "row": row, "full": full, "bare": bare, "done": done}


def test_the_destroyed_host_serves_the_same_release_gated(
    lab: Project, host: HostView, rescued: dict[str, object]
) -> None:
    done = rescued["done"]
    assert getattr(done, "rc") == 0, done  # noqa: B009 - a fixture of many kinds
    before = rescued["before"]
    assert isinstance(before, dict)
    assert host.serves() == before["serves"]
    assert gates(lab) == before["gates"]
    assert {v for name, v in gates(lab) if name not in ("G5", "G6")} == {"PASS"}
    row = rescued["row"]
    assert isinstance(row, dict)
    assert row["release"] == before["serves"]
    assert set(row["copies"].values()) == {"verified"}
    assert lab.ok("deploy", "lab1").out.count("unchanged") == 1, "today's project is that release"


def test_the_edits_and_what_was_never_committed_are_back(
    host: HostView, rescued: dict[str, object]
) -> None:
    assert (package(host) / "_sim_text.py").read_text().endswith(EDIT)
    assert (package(host) / "untracked notes.txt").read_text() == "keep me\n"


def test_a_host_that_is_not_empty_is_refused_untouched(rescued: dict[str, object]) -> None:
    full = rescued["full"]
    assert getattr(full, "rc") == 4, full  # noqa: B009
    assert "--force" in str(full)


def test_again_nothing_is_new_and_restic_is_not_asked(
    lab: Project, rescued: dict[str, object]
) -> None:
    lab.ok("snapshot", "lab1")  # the host's facts are others since it was rebuilt
    taken = newest(lab)
    done = lab.ok("snapshot", "lab1", "--json")
    assert isinstance(done.json, list)
    row = done.json[0]
    assert (row["fresh"], row["id"]) == (False, taken["id"])
    assert "nothing new" in done.err


def test_force_keeps_the_old_beside(
    lab: Project, host: HostView, rescued: dict[str, object]
) -> None:
    row = rescued["row"]
    assert isinstance(row, dict)
    spoiled = package(host) / "_sim_text.py"
    spoiled.write_text("raise SystemExit('spoiled')\n")
    assert lab.run("restore", row["id"], "--to", "lab1").rc == 4
    done = lab.ok("restore", row["id"], "--to", "lab1", "--force")
    assert done.out.count("is kept at") == 2
    kept = list(package(host).parent.glob("sglang.before-*"))
    assert [(k / "_sim_text.py").read_text() for k in kept] == ["raise SystemExit('spoiled')\n"]
    assert package(host).joinpath("_sim_text.py").read_text().endswith(EDIT)
    assert host.serves() == row["release"]
    for path in kept:
        shutil.rmtree(path)


def test_single_files_come_back_alone(
    lab: Project, host: HostView, rescued: dict[str, object]
) -> None:
    row = rescued["row"]
    assert isinstance(row, dict)
    serving = host.launch()
    target = package(host) / "_sim_text.py"
    whole = target.read_text()
    target.unlink()
    (package(host) / "_sim_log.py").write_text("broken\n")
    lab.ok("restore", row["id"], "--to", "lab1", "--path", "_sim_text.py")
    assert target.read_text() == whole
    refused = lab.run("restore", row["id"], "--to", "lab1", "--path", "_sim_log.py")
    assert (refused.rc, (package(host) / "_sim_log.py").read_text()) == (4, "broken\n")
    done = lab.ok("restore", row["id"], "--to", "lab1", "--path", "_sim_log.py", "--force")
    assert "/_sim_log.py.before-" in done.out
    [old] = package(host).glob("_sim_log.py.before-*")
    assert old.read_text() == "broken\n"
    old.unlink()
    assert host.launch() == serving, "nothing is started for a file"
    assert lab.run("restore", row["id"], "--to", "lab1", "--path", "no/such").rc == 4


def test_another_host_takes_over(lab: Project, rescued: dict[str, object]) -> None:
    row = rescued["row"]
    assert isinstance(row, dict)
    other = lab.host("lab2")
    assert other.serves() is None
    edited = package(other)
    shutil.rmtree(edited)
    lab.ok("restore", row["id"], "--to", "lab2")
    assert other.serves() == row["release"]
    assert (package(other) / "_sim_text.py").read_text().endswith(EDIT)


def test_a_lost_project_store_is_fetched_from_the_place(
    lab: Project, host: HostView, rescued: dict[str, object]
) -> None:
    row = rescued["row"]
    assert isinstance(row, dict)
    store = lab.root / ".ddops/snapshots"
    store.rename(store.with_suffix(".gone"))
    try:
        done = lab.ok("restore", str(row["id"])[:10], "--to", "lab1", "--path", "_sim_text.py")
        assert "fetching" in done.err
    finally:
        shutil.rmtree(store)
        store.with_suffix(".gone").rename(store)


def test_secrets_and_a_wrong_target_are_refused_before_anything_leaves(
    lab: Project, host: HostView
) -> None:
    place = lab.lab.host("lab-backup") / "snapshots.git"
    before = sorted(p.name for p in place.glob("objects/pack/*.pack"))
    leak = package(host) / "conf.py"
    value = f"{secrets.token_urlsafe(24)}7q"
    leak.write_text(f'api_key = "{value}"\n')
    try:
        done = lab.run("snapshot", "lab1")
        assert done.rc == 4, done
        assert "conf.py:1 (named-secret)" in done.err
        assert value not in done.out + done.err
        assert sorted(p.name for p in place.glob("objects/pack/*.pack")) == before
        assert lab.run("snapshot", "lab1", "--tree", "/nowhere").rc == 4
        assert lab.run("snapshot", "nobody").rc == 2
    finally:
        leak.unlink()


def test_a_link_that_dies_in_the_middle_is_unknown_and_the_next_run_goes_on(
    lab: Project, host: HostView, rescued: dict[str, object]
) -> None:
    """A `git` at the place that ends its own sshd session while the pack comes in."""
    wrapper = lab.lab.host("lab-backup") / "bin" / "git"
    wrapper.write_text(
        "#!/bin/sh\n"
        'case "$*" in index-pack*) head -c 64 >/dev/null; at=$PPID\n'
        '  while ! tr "\\0" " " </proc/$at/cmdline | grep -q "^sshd"; do\n'
        "    at=$(sed 's/.*) . //; s/ .*//' /proc/$at/stat); done\n"
        "  kill -9 $at; exit 1;; esac\n"
        'exec /usr/bin/git "$@"\n'
    )
    wrapper.chmod(0o755)
    note = package(host) / "more.txt"
    note.write_text("more\n" * 50)
    try:
        done = lab.run("snapshot", "lab1")
        assert done.rc in (3, 9), done
        assert "broke" in done.err
        assert {c["state"] for c in _copies(lab) if c["place"].startswith("git")} == {"failed"}
    finally:
        wrapper.unlink()
    again = lab.ok("snapshot", "lab1", "--json").json
    assert isinstance(again, list)
    assert set(again[0]["copies"].values()) == {"verified"}
    note.unlink()


def _copies(lab: Project) -> list[dict[str, str]]:
    rows = newest(lab)["copies"]
    assert isinstance(rows, list)
    return rows


def test_two_snapshots_at_once_are_one(lab: Project, host: HostView) -> None:
    (package(host) / "at-once.txt").write_text("x\n")
    done = together([lab.spawn("snapshot", "lab1", "--json") for _ in range(2)])
    assert [d.rc for d in done] == [0, 0], done
    trees = {row["tree"] for d in done if isinstance(d.json, list) for row in d.json}
    assert len(trees) == 1
    lab.ok("snapshot", "verify")
    (package(host) / "at-once.txt").unlink()


def test_the_drill_proves_both_places_and_is_on_record(lab: Project) -> None:
    rows = lab.ok("snapshot", "drill", "--json").json
    assert isinstance(rows, list)
    assert [r["verdict"] for r in rows] == ["PASS", "PASS"]
    with lab.ledger() as ledger:
        assert {d.place.partition(":")[0] for d in ledger.drills()} >= {"git", "restic", "host"}
        assert ledger.verify() == []


def _reached(mark: Callable[[], bool], run: Running) -> bool:
    return mark() or run.process.poll() is not None


def test_a_restore_that_was_killed_goes_on_without_force(
    lab: Project, host: HostView, rescued: dict[str, object]
) -> None:
    """At several moments of a restore onto an empty host; then once to its end."""
    row = rescued["row"]
    assert isinstance(row, dict)
    destroy(host)
    marks: tuple[Callable[[], bool], ...] = (
        lambda: Path(host.layout.state, "restoring").exists(),
        lambda: any(Path(host.layout.engine_dir).glob("env/*/env.json")),
        lambda: Path(host.layout.state, "incoming").exists(),
        lambda: host.current is not None,
    )
    for reached in marks:
        run = lab.spawn("restore", row["id"], "--to", "lab1")
        until(partial(_reached, reached, run), what="a step of the restore")
        run.kill()
    done = lab.run("restore", row["id"], "--to", "lab1", "--lock-wait", "30")
    assert done.rc == 0, done
    assert host.serves() == row["release"]
    assert not Path(host.layout.state, "restoring").exists()
    assert json.loads(Path(host.service.launch_record).read_text())["release"] == row["release"]


def test_an_engine_that_outlived_its_files_is_named_and_left_to_the_user(
    lab: Project, host: HostView, rescued: dict[str, object]
) -> None:
    """The how-to's own way to lose a host: the folder goes, and the engine runs on."""
    row = rescued["row"]
    assert isinstance(row, dict)
    pids = host.pids()
    assert pids
    subprocess.run(["rm", "-rf", host.layout.engine_dir], check=True)
    done = lab.run("restore", row["id"], "--to", "lab1")
    assert done.rc == 4, done
    assert "still runs there, from files that are gone" in done.err
    named = [int(w) for w in done.err.split("next: kill ")[1].split(" on ")[0].split()]
    assert named
    assert set(named) <= set(pids)
    for pid in named:
        os.kill(pid, signal.SIGKILL)
    lab.ok("restore", row["id"], "--to", "lab1")
    assert host.serves() == row["release"]
    # The daemon that lost its files would have started the engine a second time.
    conf = f"{host.layout.state}/supervisor/supervisord.conf"
    words = ["pgrep", "-f", f"supervisor.supervisord -c {conf}"]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert len(found) == 1
