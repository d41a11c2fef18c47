"""Every shipped runbook but `new-host` (test_runbook.py), to its end on real hosts.

One lab; the tests go on from what the ones before left, as a team's days do, and each says what
it needs. To see them fail: leave `verify` out of a step that it is about.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.lab.harness import ROOT, HostView, Project
from tests.lab.test_bench import PACE, suite
from tests.lab.test_runbook import killed, runs, tasks

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or shutil.which("restic") is None, reason="needs git and restic"
)
ARMS = '\n[[arms]]\nprofile = "tiny-ar"\n\n[[arms]]\nprofile = "tiny-ddtree"\n'


@pytest.fixture(scope="module")
def lab(make_project: Callable[[str], Project]) -> Project:
    """Two hosts that serve, with an engine of the project's own that can be upgraded."""
    project = make_project("days")
    project.write("suites/tiny/smoke.toml", suite("smoke", levels="[1]"))
    project.write("suites/tiny/sweep.toml", suite("sweep", levels="[1]", arms=ARMS))
    shutil.copytree(ROOT / "lab/engine_sim", project.root / "lab/engine_sim")
    project.ok("lab", "up", "--engine", "sim", "--hosts", "2")
    for name in ("lab1", "lab2"):
        project.host(name).fault(**PACE)
    project.ok("provision", "lab")
    project.ok("deploy", "lab")
    return project


@pytest.fixture
def hosts(lab: Project) -> Iterator[list[HostView]]:
    yield [lab.host("lab1"), lab.host("lab2")]
    for run in runs(lab, open_only=True):
        lab.ok("runbook", "abort", run.id, "--yes")


def upgrade(lab: Project, words: str) -> None:
    """The project's engine moves on: another content, another environment."""
    path = lab.root / "lab/engine_sim/sglang/_sim_log.py"
    path.write_text(f"{path.read_text()}# {words}\n")


def valid(lab: Project, release: str) -> int:
    with lab.ledger() as book:
        rows = book.query("SELECT count(*) AS n FROM valid_run WHERE release = ?", [release])
    return int(str(rows[0]["n"]))


def completed(lab: Project) -> list[str]:
    """Steps of the newest run, all of which are completed."""
    found = tasks(lab, runs(lab)[0].id)
    assert {t.status for t in found.values()} == {"completed"}, found
    return list(found)


def test_restore_drill(lab: Project, hosts: list[HostView]) -> None:
    done = lab.spawn("runbook", "run", "restore-drill", "--host", "lab").end(300)
    assert done.rc == 0, done
    steps = completed(lab)
    assert [s.partition("@")[0] for s in steps] == ["snapshot", "drill"] * 2
    with lab.ledger() as book:
        drills = book.drills()
        assert book.verify() == []
    assert {d.verdict for d in drills} == {"PASS"}
    assert len(drills) == 4, "two hosts, two places"


def test_upgrade_sglang_stops_at_the_first_host_that_measures_wrong(
    lab: Project, hosts: list[HostView]
) -> None:
    """What can go wrong goes first: the host goes back, and the one behind it is not touched."""
    one, two = hosts
    old = (one.serves(), two.serves())
    upgrade(lab, "a step on the way")
    lab.write("suites/tiny/smoke.toml", suite("smoke", levels="[1]").replace("1.0", "0.0"))
    lab.write("suites/tiny/smoke.toml", (lab.root / "suites/tiny/smoke.toml").read_text()
              .replace("send_delay_ms = 500", "send_delay_ms = 0.000001"))  # fmt: skip
    done = lab.spawn("runbook", "run", "upgrade-sglang", "--host", "lab1,lab2").end(300)
    assert done.rc == 1, done
    assert "on_failure: rollback" in done.err
    assert (one.serves(), two.serves()) == old
    found = tasks(lab, runs(lab)[0].id)
    assert found["smoke@lab1"].status == "blocked"
    assert "do not count" in found["smoke@lab1"].evidence
    assert {t.status for s, t in found.items() if s.endswith("@lab2")} == {"pending"}


def test_upgrade_sglang(lab: Project, hosts: list[HostView]) -> None:
    old = [h.serves() for h in hosts]
    upgrade(lab, "the next one")
    lab.write("suites/tiny/smoke.toml", suite("smoke", levels="[1]"))
    done = lab.spawn("runbook", "run", "upgrade-sglang", "--host", "lab1,lab2").end(400)
    assert done.rc == 0, done
    words = ["check", "snapshot", "provision", "upgrade", "smoke"]
    assert completed(lab) == [f"{w}@{h.name}" for h in hosts for w in words]
    for host, before in zip(hosts, old, strict=True):
        assert host.serves() == host.committed
        assert host.serves() not in (None, before)
        assert not host.locked
    assert valid(lab, str(hosts[0].serves())) >= 2, "a smoke run of each host"


def test_retract_bad_tree_is_killed_in_the_rollback_and_goes_on(
    lab: Project, hosts: list[HostView]
) -> None:
    """The last upgrade is found to be wrong. A rollback done twice would come back to it."""
    one = hosts[0]
    bad = str(one.serves())
    assert valid(lab, bad) >= 2
    words = ["--host", "lab1", "--set", "scope=release", "--set", f"value={bad}",
             "--set", "reason=mask fault"]  # fmt: skip
    asked = lab.run("runbook", "run", "retract-bad-tree", *words)
    assert asked.rc == 8, asked
    assert valid(lab, bad) == 0, "withdrawn before anybody is asked"
    run = runs(lab)[0].id
    lab.ok("runbook", "approve", run, "--yes")
    killed(lab, "rollback@lab1", "done", "runbook", "resume", run)
    assert one.serves() not in (None, bad)
    done = lab.spawn("runbook", "resume", run).end(300)
    assert done.rc == 0, done
    assert completed(lab) == ["retract", "confirm", "rollback@lab1"]
    assert one.serves() == one.committed
    assert one.serves() not in (None, bad)
    with lab.ledger() as book:
        assert len(book.query("SELECT id FROM retraction")) == 1
        assert book.verify() == []


def test_ddtree_sweep(lab: Project, hosts: list[HostView]) -> None:
    done = lab.spawn("runbook", "run", "ddtree-sweep", "--host", "lab2",
                     "--set", "service=tiny").end(400)  # fmt: skip
    assert done.rc == 0, done
    assert completed(lab) == ["check", "deploy", "sweep", "recommend", "report"]
    assert "tiny-" in tasks(lab, runs(lab)[0].id)["recommend"].evidence
    assert "tiny-ar" in (lab.root / "findings.md").read_text()
    with lab.ledger() as book:
        [kept] = book.query("SELECT stands FROM conclusion WHERE kind = 'report'")
        rows = book.query(
            "SELECT DISTINCT c.label FROM valid_run r JOIN cell c ON c.key = r.cell"
            " WHERE c.suite = 'sweep'"
        )
    assert kept["stands"] == 1
    labels = " ".join(str(r["label"]) for r in rows)
    assert "tiny-ar" in labels
    assert "tiny-ddtree" in labels
    assert hosts[1].serves() == hosts[1].committed is not None
