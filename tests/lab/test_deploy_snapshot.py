"""The snapshot that a deploy takes: the running tree is at its places before anything stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project


@pytest.fixture
def edited(serving: HostView) -> Iterator[Path]:
    """A file that somebody adds to the tree that runs."""
    (package,) = Path(serving.layout.engine_dir).glob("env/*/lib/python*/site-packages/sglang")
    file = package / "by_hand.py"
    yield file
    file.unlink(missing_ok=True)


def evidence(host: HostView) -> Mapping[str, object]:
    return next(t.evidence for t in host.story() if t.state == "snapshotted")


def test_what_was_edited_by_hand_is_kept_before_the_old_engine_stops(
    lab: Project, serving: HostView, edited: Path
) -> None:
    lab.profile("snap-a", "commit=3")
    lab.profile("snap-b", "commit=4")
    edited.write_text("MASK = 1\n")
    lab.ok("deploy", serving.name, "--profile", "snap-a")
    first = evidence(serving)
    assert first["fresh"] is True
    copies = first["copies"]
    assert isinstance(copies, dict)
    assert list(copies.values()) == ["verified"]
    assert [x.partition(":")[0] for x in copies] == ["git"]
    later = first["later"]
    assert isinstance(later, list)
    assert [str(x).partition(":")[0] for x in later] == ["restic"]
    shown = lab.ok("snapshot", "show", str(first["snapshot"])[:12]).out
    assert str(first["tree"])[:12] in shown
    # Another release of the same tree: nothing new is kept, and no second snapshot made.
    lab.ok("deploy", serving.name, "--profile", "snap-b")
    second = evidence(serving)
    assert (second["fresh"], second["snapshot"]) == (False, first["snapshot"])
    assert "later" not in second


def test_a_place_that_is_down_is_said_and_the_deploy_goes_on_unless_it_is_required(
    lab: Project, serving: HostView, edited: Path
) -> None:
    place = lab.lab.dir / "backup.toml"
    text = place.read_text()
    lab.profile("snap-c", "commit=5")
    lab.profile("snap-d", "commit=6")
    place.write_text(text.replace("snapshots.git", "../../ssh_config"))
    before, pids = serving.serves(), serving.pids()
    try:
        edited.write_text("MASK = 2\n")
        lab.service(require_snapshot="true")
        refused = lab.run("deploy", serving.name, "--profile", "snap-c")
        assert refused.rc != 0, refused
        assert "git:" in refused.err
        assert serving.states()["snapshotted"] == "fail"
        assert not {"staged", "stopped"} & set(serving.states())
        assert (serving.serves(), serving.pids()) == (before, pids)
        assert not serving.locked
        lab.service()
        done = lab.ok("deploy", serving.name, "--profile", "snap-d")
    finally:
        place.write_text(text)
        lab.service()
    assert "no snapshot" in done.err
    assert serving.states()["snapshotted"] == "skip"
    assert serving.serves() == serving.committed != before
