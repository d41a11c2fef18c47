"""A ledger that knows nothing of what is there: it was lost, or it is another operator's.

What serves, what is staged and what snapshots hold was written down elsewhere. A deploy makes the
rows that its own refer to, and a way back needs none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project


@pytest.fixture
def lose(lab: Project, serving: HostView, tmp_path: Path) -> Iterator[None]:
    """The ledger is gone; it comes back behind the test."""
    files = list((lab.root / ".ddops").glob("ledger.db*"))
    for file in files:
        file.rename(tmp_path / file.name)
    yield
    for file in (lab.root / ".ddops").glob("ledger.db*"):
        file.unlink()
    for file in files:
        (tmp_path / file.name).rename(file)


def lost(lab: Project) -> None:
    for file in (lab.root / ".ddops").glob("ledger.db*"):
        file.unlink()


@pytest.mark.usefixtures("lose")
def test_a_snapshot_that_is_required_is_on_record_again(lab: Project, serving: HostView) -> None:
    lab.profile("unknown-a", "commit=3")
    lab.service(require_snapshot="true")
    try:
        done = lab.ok("deploy", serving.name, "--profile", "unknown-a")
    finally:
        lab.service()
    assert "no snapshot" not in done.err
    found = next(t.evidence for t in serving.story() if t.state == "snapshotted")
    copies = found["copies"]
    assert isinstance(copies, dict)
    assert set(copies.values()) == {"verified"}
    with lab.ledger() as ledger:
        rows = ledger.copies(str(found["snapshot"]))
        assert {c.place: c.state for c in rows} == copies
        assert ledger.verify() == []


@pytest.mark.usefixtures("lose")
def test_a_deploy_that_fails_goes_back_to_what_the_ledger_never_knew(
    lab: Project, serving: HostView
) -> None:
    before = serving.serves()
    assert before is not None
    lab.profile("unknown-bad", "garbage")
    done = lab.run("deploy", serving.name, "--profile", "unknown-bad")
    assert done.rc == 5, done
    assert serving.serves() == before
    with lab.ledger() as ledger:
        launches = ledger.launches(serving.name)
        assert before in {x.release for x in launches}, "its start is on record"
        known = ledger.release(before)
        assert known is not None
        assert known.service == "tiny"
    # The way back of a person, from a ledger that knows neither of the two.
    lab.profile("unknown-b", "commit=4")
    lab.ok("deploy", serving.name, "--profile", "unknown-b")
    lost(lab)
    lab.ok("rollback", serving.name)
    assert serving.serves() == before
