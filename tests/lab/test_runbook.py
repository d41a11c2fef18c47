"""Runbooks on real hosts: to their end, killed at every step, met by a second person.

To see them fail: write `done` before the work in ddops/runbook/run.py, or let `doubtful` be False
there: a rollback is then done twice, and comes back to where it was.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from ddops.ledger import StoredRun, Task
from tests.lab.harness import Done, HostView, Project, Running
from tests.lab.test_bench import PACE, suite

STEPS = ("trust", "probe", "check", "provision", "deploy", "smoke")


@pytest.fixture(scope="module")
def lab(make_project: Callable[[str], Project]) -> Project:
    """A lab of its own: one host, not provisioned, and whose key nobody has pinned."""
    project = make_project("book")
    project.write("suites/tiny/smoke.toml", suite("smoke", levels="[1]"))
    project.ok("lab", "up", "--engine", "sim", "--hosts", "1")
    project.host("lab1").fault(**PACE)
    return project


@pytest.fixture
def host(lab: Project) -> Iterator[HostView]:
    host = lab.host("lab1")
    yield host
    for run in runs(lab, open_only=True):
        lab.ok("runbook", "abort", run.id, "--yes")
    host.fault(**PACE)


def runs(lab: Project, *, open_only: bool = False) -> list[StoredRun]:
    with lab.ledger() as book:
        return book.runbook_runs(open_only=open_only)


def tasks(lab: Project, run: str) -> dict[str, Task]:
    """Tasks of a run by the step they stand for."""
    with lab.ledger() as book:
        steps = book.query("SELECT id, step FROM task_entry WHERE runbook_run = ? AND n = 1", [run])
        names = {str(r["id"]): str(r["step"]) for r in steps}
        return {names[str(t.id)]: t for t in book.tasks(run_id=run)}


def killed(lab: Project, step: str, state: str, *words: str) -> None:
    """Run a command line that is killed at a word of the journal."""
    command = [sys.executable, "-m", "tests.lab.killing", step, state, "--", *words]
    process = subprocess.Popen(
        command, cwd=lab.root, env=lab.env(), text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    done = Running(process).end()
    assert done.rc == -signal.SIGKILL, done


def ended(lab: Project, host: HostView, done: Done) -> str:
    """The one right end of new-host, whatever came between. Answers the run's id."""
    assert done.rc == 0, done
    run = runs(lab)[0]
    found = tasks(lab, run.id)
    assert tuple(found) == STEPS
    assert {t.status for t in found.values()} == {"completed"}
    assert host.serves() == host.current == host.committed is not None
    assert len(host.pids()) == 1
    assert not host.locked
    with lab.ledger() as book:
        assert book.verify() == []
        last = [e.state for e in book.runbook_events(run.id)]
    assert last[-1] == "completed"
    assert last.count("completed") == 1
    return run.id


def test_new_host_from_an_unknown_key_to_its_first_run(lab: Project, host: HostView) -> None:
    """Asks for the key, is approved, is killed while provisioning, and comes to its end."""
    known = lab.lab.known_hosts
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(lines[1:]))  # the first is lab1's
    asked = lab.run("runbook", "run", "new-host", "--host", "lab1")
    assert asked.rc == 8, asked
    shown = lines[0].split()[2]
    assert "waits for a person: lab1 (" in asked.err
    run = runs(lab)[0].id
    assert tasks(lab, run)["trust"].status == "blocked"
    second = lab.run("runbook", "run", "new-host", "--host", "lab1")
    assert second.rc == 7, second
    assert f"is run by {runs(lab)[0].by}, as {run}" in second.err
    assert lab.run("runbook", "resume", run).rc == 8, "nobody has approved it"
    assert lab.run("runbook", "approve", run).rc == 2, "no terminal, and no --yes"
    lab.ok("runbook", "approve", run, "--yes")
    assert lab.run("runbook", "approve", run, "--yes").rc == 4, "it waits for nobody any more"
    killed(lab, "trust", "done", "runbook", "resume", run)
    assert shown in known.read_text(), "pinned, and nothing says so"
    killed(lab, "provision", "begun", "runbook", "resume", run)
    killed(lab, "provision", "done", "runbook", "resume", run)
    done = lab.run("runbook", "resume", run)
    assert ended(lab, host, done) == run
    with lab.ledger() as book:
        events = book.runbook_events(run)
    (approved,) = [e for e in events if e.state == "approved"]
    assert (approved.step, approved.by) == ("trust", runs(lab)[0].by)
    assert str(approved.evidence["subject"]).startswith("SHA256:")
    ends = {e.step: e.state for e in events if e.state in ("done", "skipped")}
    assert ends["trust"] == ends["provision"] == "skipped", "done, and nothing had said so"


@pytest.mark.parametrize(
    ("step", "state"),
    [
        ("trust", "skipped"), ("probe", "begun"), ("check", "done"), ("provision", "skipped"),
        ("deploy", "begun"), ("deploy", "done"), ("smoke", "done"),
    ],
)  # fmt: skip
def test_killed_at_a_step_it_resumes_to_the_same_end(
    lab: Project, host: HostView, step: str, state: str
) -> None:
    if step in STEPS[:5]:
        host.forget()
        host.fault(**PACE)
    killed(lab, step, state, "runbook", "run", "new-host", "--host", "lab1")
    run = runs(lab)[0]
    behind = STEPS[STEPS.index(step) + 1 :]
    assert {tasks(lab, run.id)[s].status for s in behind} <= {"pending"}
    listed = lab.ok("runbook", "list").out
    assert f"{run.id}" in listed
    assert "cut short" in listed
    assert ended(lab, host, lab.run("runbook", "resume", run.id)) == run.id
    assert lab.run("runbook", "resume", run.id).rc == 4, "it is over"


VANISH = """
title = "A host that stops answering"
about = "Of a test: the first step freezes the host that the second one needs."
[params.host]
type = "host"
about = "h"
[[steps]]
id = "freeze"
content = "Freeze ${{host}}"
do = {{ step = "shell", effects = ["none"], argv = [
  "{python}", "-m", "ddops", "lab", "fault", "${{host}}", "freeze",
] }}
[[steps]]
id = "ask"
content = "Ask ${{host}} something"
priority = "high"
do = {{ step = "shell", host = "${{host}}", argv = ["uname", "-n"], effects = ["none"] }}
time_limit_s = 3
[[steps]]
id = "serve"
content = "See that ${{host}} is not locked"
require = [{{ state = "unlocked" }}]
do = {{ step = "prompt", ask = "Go on?" }}
"""


def test_a_host_that_vanishes_in_a_step_is_unknown_and_comes_back(
    lab: Project, host: HostView
) -> None:
    lab.write("runbooks/vanish.toml", VANISH.format(python=sys.executable))
    try:
        quick = {"DDOPS_CONNECT_TIMEOUT_S": "1"}
        done = lab.run("runbook", "run", "vanish", "--host", "lab1", env=quick)
        assert done.rc == 3, done
        assert "ask: not done within 3 s" in done.err
    finally:
        lab.ok("lab", "heal", "lab1")
    run = runs(lab)[0].id
    assert {s: t.status for s, t in tasks(lab, run).items()} == {
        "freeze": "completed", "ask": "blocked", "serve": "pending",
    }  # fmt: skip
    with lab.ledger() as book:
        failed = next(e for e in book.runbook_events(run) if (e.step, e.state) == ("ask", "failed"))
    assert failed.evidence["unknown"] is True
    again = lab.run("runbook", "resume", run)
    assert again.rc == 8, again
    assert tasks(lab, run)["ask"].status == "completed"
