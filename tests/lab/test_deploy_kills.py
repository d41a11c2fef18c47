"""A deploy killed at each of its transitions, and cut off at each of them; then once more.

One row a state of the machine, and each table has all of them: a new transition is in both without
a word here. Whatever happens, the old release serves or nothing is claimed, and the same command
again ends as it would have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from ddops.deploy.machine import STATES, WAYS_OUT
from tests.lab.harness import Done, HostView, Project, Running
from tests.lab.test_network import _start_again

ROWS = (*STATES, *WAYS_OUT)
#: Nothing that serves is touched before this one is done.
STOP = STATES.index("stopped")
UNTOUCHED = (*STATES[:STOP], "failed")
ENV = {"DDOPS_CONNECT_TIMEOUT_S": "2", "DDOPS_READY_QUIET_S": "0", "DDOPS_LOAD_BUDGET_S": "10"}
#: What a deploy that is to reach a way out is made to fail by.
BAD = {"failed": "misspelt", "rolling_back": "wrong", "restored": "wrong", "stuck": "wrong"}
#: How the same command ends when nothing happens to it.
ENDS = {"failed": 4, "rolling_back": 5, "restored": 5, "stuck": 5}


@dataclass(frozen=True)
class Row:
    """What was seen: before, after what happened, and after the same command once more."""

    before: str | None
    pids: list[int]
    first: Done
    reached: str
    served: str | None
    pids_after: list[int]
    again: Done
    serves: str | None
    current: str | None
    committed: str | None
    engines: int
    locked: bool


Table = Mapping[str, Row | BaseException]


@pytest.fixture(scope="module")
def tables(make_project: Callable[[str], Project]) -> Iterator[Mapping[str, Table]]:
    """Both tables, side by side, each on a host of its own."""
    project = make_project("kt")
    project.ok("lab", "up", "--engine", "sim", "--hosts", "2")
    project.ok("provision", "lab")
    for name in ("one", "two"):
        project.profile(name, "commit=2", {"N": name})
    project.profile("wrong", "garbage")
    project.profile("misspelt")
    file = project.root / "inventory/profiles/misspelt.toml"
    file.write_text(file.read_text().replace("[launch]\n", "[launch]\nno-such-option = 4\n"))
    project.ok("deploy", "lab1", "lab2", "--profile", "two", env=ENV)
    with ThreadPoolExecutor(2) as pool:
        made = {
            "kill": pool.submit(table, project, project.host("lab1"), "kill"),
            "cut": pool.submit(table, project, project.host("lab2"), "cut"),
        }
        yield {kind: future.result() for kind, future in made.items()}
    project.ok("lab", "down")


def table(project: Project, host: HostView, kind: str) -> Table:
    out: dict[str, Row | BaseException] = {}
    for n, state in enumerate(ROWS):
        try:
            out[state] = row(project, host, kind, state, BAD.get(state) or ("one", "two")[n % 2])
        except BaseException as error:
            out[state] = error  # told by the test of its state; the others are tried all the same
    return out


def row(project: Project, host: HostView, kind: str, state: str, profile: str) -> Row:
    before, pids = host.serves(), host.pids()
    words = ("deploy", host.name, "--profile", profile)
    what = kind if kind == "kill" else f"cut:{host.dir / 'sshd.pid'}"
    host.fault(**({"garbage": True} if state == "stuck" else {}))
    try:
        first = hit(project, state, what, *words)
    finally:
        host.fault()
        if kind == "cut":
            _start_again(project, host.name)
    reached, served, after = next(reversed(host.states()), ""), host.serves(), host.pids()
    again = project.run(*words, env=ENV)
    return Row(
        before, pids, first, reached, served, after, again, host.serves(), host.current,
        host.committed, len(host.pids()), host.locked,
    )  # fmt: skip


def hit(project: Project, *words: str) -> Done:
    made = subprocess.Popen(
        [sys.executable, "-m", "tests.lab.deploydriver", *words],
        cwd=project.root, env=project.env(ENV), text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return Running(made).end()


@pytest.mark.parametrize("seconds", ["86400", "-86400"])
def test_a_clock_that_jumps_while_the_engine_loads_ends_nothing(
    lab: Project, serving: HostView, seconds: str
) -> None:
    """Budgets, deadlines and the lock's heart are of a clock that nobody sets."""
    before = serving.serves()
    name = lab.profile(f"clock{seconds}", "load_s=2")
    done = hit(lab, "switched", f"clock:{seconds}", "deploy", serving.name, "--profile", name)
    assert done.rc == 0, done
    assert serving.serves() == serving.committed != before
    assert not serving.locked
    assert "unchanged" in lab.ok("deploy", serving.name, "--profile", name).out
    assert lab.ok("status", serving.name).out.count("up") >= 1


def found(tables: Mapping[str, Table], kind: str, state: str) -> Row:
    seen = tables[kind][state]
    if isinstance(seen, BaseException):
        raise seen
    return seen


def ends_as_it_would_have(seen: Row, state: str) -> None:
    assert seen.again.rc == ENDS.get(state, 0), seen.again
    assert seen.serves == seen.current == seen.committed
    assert (seen.serves == seen.before) == (state in BAD)
    assert seen.engines == 1
    assert not seen.locked


@pytest.mark.parametrize("state", ROWS)
def test_killed_at_any_transition_the_next_run_recovers(
    tables: Mapping[str, Table], state: str
) -> None:
    seen = found(tables, "kill", state)
    assert seen.first.rc == -9, seen.first
    assert seen.reached == state
    if state in UNTOUCHED:
        assert (seen.served, seen.pids_after) == (seen.before, seen.pids)
    ends_as_it_would_have(seen, state)


@pytest.mark.parametrize("state", ROWS)
def test_with_the_network_lost_at_any_transition_nothing_is_claimed(
    tables: Mapping[str, Table], state: str
) -> None:
    seen = found(tables, "cut", state)
    # Where the outcome was certain by then, it is what is told; else it is unknown.
    assert seen.first.rc == {"failed": 4, "restored": 5, "stuck": 6}.get(state, 3), seen.first
    if state in UNTOUCHED:
        assert (seen.served, seen.pids_after) == (seen.before, seen.pids)
    elif state in STATES[:-1]:
        assert seen.reached == "rolling_back"
        assert "unknown" in seen.first.err
    ends_as_it_would_have(seen, state)
