"""A run step by step: conditions, the journal, remedies, time limits, approvals, resuming.

To see them fail: let `together` take UNKNOWN for HOLDS, or note `done` before `_do` in run.py.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ddops.clock import SystemClock
from ddops.command import Cmd
from ddops.deploy import Stop
from ddops.errors import (
    DdopsError,
    DeadlineExceeded,
    Interrupted,
    LockHeldError,
    PendingError,
    RefusedError,
    TransportLost,
    UsageError,
)
from ddops.model import Result
from ddops.runbook.hold import holder, holding
from ddops.runbook.run import task_line
from ddops.runbook.timed import Overdue, in_time
from tests.ledgers import make_ledger
from tests.unit.runbook.support import Bench, shell

THERE = 'require = [{ file = "flag.txt" }]'


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def answer(code: int = 0, effect: Callable[[], object] = lambda: None) -> Callable[[Cmd], Result]:
    def run(_command: Cmd) -> Result:
        effect()
        return Result(code, b"said", b"why", 0.0)

    return run


def test_steps_in_order_each_journaled_before_and_after(bench: Bench) -> None:
    seen: list[list[str]] = []
    for word in ("one", "two"):
        bench.hosts["box"].on(word, answer(effect=lambda: seen.append(bench.states())))
    bench.begin(bench.bound(shell("one") + shell("two"))).go()
    assert seen == [
        ["started", "one begun"],
        ["started", "one begun", "one done", "two begun"],
    ]
    assert bench.states()[-2:] == ["two done", "completed"]
    assert [t.status for t in bench.tasks()] == ["completed", "completed"]
    with bench.ledger() as book:
        assert book.verify() == []


def test_a_condition_that_fails_refuses_and_nothing_is_done(bench: Bench) -> None:
    bound = bench.bound(shell("one", THERE))
    with pytest.raises(RefusedError, match=r"one is not done: here: flag.txt exists"):
        bench.begin(bound).go()
    assert bench.hosts["box"].calls == []
    (task,) = bench.tasks()
    assert task.status == "blocked"
    assert "flag.txt exists: does not hold (missing)" in task.evidence
    bench.write("flag.txt", "")
    bench.hosts["box"].on("one", answer())
    bench.again(bound).go()
    assert bench.states()[-1] == "completed"


@pytest.mark.parametrize("which", ["require", "skip_if"])
def test_what_is_not_known_stops_the_run(bench: Bench, which: str) -> None:
    bench.hosts["box"].unreachable()
    text = shell("one", f'{which} = [{{ file = "/etc/x", host = "box" }}]')
    with pytest.raises(RefusedError, match=f"{which} is not known"):
        bench.begin(bench.bound(text)).go()
    assert [c for c in bench.hosts["box"].calls if c.argv == ("one",)] == []
    assert bench.states() == ["started", "one failed", "failed"]


def test_a_condition_that_certainly_fails_decides_beside_one_that_is_not_known(
    bench: Bench,
) -> None:
    bench.hosts["box"].unreachable()
    skip = 'skip_if = [{ file = "/x", host = "box" }, { file = "flag.txt" }]'
    bench.hosts["bay"].on("one", answer())
    bench.begin(bench.bound(shell("one", skip, host="bay"))).go()
    assert bench.states()[-1] == "completed"


def test_a_step_that_is_as_it_should_be_is_skipped(bench: Bench) -> None:
    bench.write("flag.txt", "")
    bench.begin(bench.bound(shell("one", 'skip_if = [{ file = "flag.txt" }]'))).go()
    assert bench.states() == ["started", "one skipped", "completed"]
    assert bench.tasks()[0].evidence.startswith("skipped: here: flag.txt exists: holds")


def test_done_but_not_as_verified_is_a_failure_with_its_remedy(bench: Bench) -> None:
    remedy = 'on_failure = [{ step = "shell", host = "bay", argv = ["mend"], effects = ["none"] }]'
    bench.hosts["box"].on("one", answer())
    bench.hosts["bay"].on("mend", answer())
    text = shell("one", 'verify = [{ file = "flag.txt" }]', remedy)
    with pytest.raises(DdopsError, match="done, but not as it should be"):
        bench.begin(bench.bound(text + shell("two"))).go()
    assert bench.states() == ["started", "one begun", "one failed", "one remedied", "failed"]
    assert [t.status for t in bench.tasks()] == ["blocked", "pending"]


def test_a_remedy_that_fails_is_told_and_hides_nothing(bench: Bench) -> None:
    remedy = 'on_failure = [{ step = "shell", host = "bay", argv = ["mend"], effects = ["none"] }]'
    bench.hosts["box"].on("one", answer(3))
    bench.hosts["bay"].on("mend", answer(4))
    with pytest.raises(DdopsError, match="one ended with status 3") as caught:
        bench.begin(bench.bound(shell("one", remedy))).go()
    assert any("mend ended with status 4" in n for n in caught.value.__notes__)


def test_a_host_that_vanishes_in_the_step_leaves_it_unknown(bench: Bench) -> None:
    def lost(_command: Cmd) -> Result:
        bench.hosts["box"].unreachable()
        raise TransportLost("box: the connection broke")

    effects = shell("one", 'verify = [{ file = "flag.txt" }]', effects="files")
    bound = bench.bound(effects)
    bench.hosts["box"].on("one", lost)
    bench.hosts["box"].on("sh", answer())  # the host's lock
    with pytest.raises(DdopsError):
        bench.begin(bound).go()
    failed = next(e for e in bench.journal() if e.state == "failed" and e.step)
    assert failed.evidence["unknown"] is True
    with pytest.raises(RefusedError, match="what it did is not known"):
        bench.again(bound).go()
    bench.write("flag.txt", "")
    bench.again(bound).go()
    assert bench.states()[-1] == "completed"


def test_a_step_cut_short_is_not_done_twice_when_it_was_done(bench: Bench) -> None:
    bound = bench.bound(shell("one", 'verify = [{ file = "flag.txt" }]', effects="files"))
    bench.begin(bound)
    with bench.ledger() as book:
        book.add_runbook_event("r1", "one", "begun", by="ann@here")
    with pytest.raises(RefusedError, match="cut short"):
        bench.again(bound).go()
    bench.write("flag.txt", "")
    bench.again(bound).go()
    assert bench.hosts["box"].calls == []
    assert bench.journal()[-2].evidence["words"] == "was done when it was cut short"


def test_resuming_from_a_step_does_it_and_the_rest_again(bench: Bench) -> None:
    done: list[str] = []
    for word in ("one", "two", "three"):
        bench.hosts["box"].on(word, answer(effect=partial(done.append, word)))
    bound = bench.bound(shell("one") + shell("two") + shell("three"))
    bench.begin(bound).go()
    with bench.ledger() as book:
        book.add_runbook_event("r1", "", "resumed", by="ann@here", evidence={"from": "two"})
    bench.again(bound).go()
    assert done == ["one", "two", "three", "two", "three"]


PROMPT = '[[steps]]\nid = "ask"\ncontent = "c"\ndo = { step = "prompt", ask = "Reboot it?" }\n'


def test_a_prompt_waits_for_a_person(bench: Bench) -> None:
    bound = bench.bound(PROMPT)
    with pytest.raises(PendingError, match="waits for a person: Reboot it"):
        bench.begin(bound).go()
    assert bench.states() == ["started", "ask begun", "ask waiting", "waiting"]
    with bench.ledger() as book:
        wrong = {"asked": "another", "subject": "other"}
        book.add_runbook_event("r1", "ask", "approved", by="bob@here", evidence=wrong)
    with pytest.raises(PendingError):
        bench.again(bound).go()
    waiting = next(e for e in bench.journal() if e.state == "waiting" and e.step)
    with bench.ledger() as book:
        right = dict(waiting.evidence)
        book.add_runbook_event("r1", "ask", "approved", by="bob@here", evidence=right)
    bench.again(bound).go()
    assert bench.states()[-1] == "completed"


@pytest.mark.parametrize("yes", [True, False])
def test_at_a_terminal_the_person_is_asked_at_once(bench: Bench, yes: bool) -> None:
    bench.answer = yes
    run = bench.begin(bench.bound(PROMPT))
    if not yes:
        with pytest.raises(PendingError):
            run.go()
    else:
        run.go()
        assert [e.by for e in bench.journal() if e.state == "approved"] == ["ann@here"]
    assert bench.asked == ["Reboot it?"]


WAIT = '[[steps]]\nid = "w"\ncontent = "c"\ndo = { step = "wait", every_s = 0.05 }\n'


def test_a_wait_asks_until_it_holds(bench: Bench) -> None:
    bound = bench.bound(WAIT + 'verify = [{ file = "flag.txt" }]\n')
    timer = threading.Timer(0.2, lambda: bench.write("flag.txt", ""))
    timer.start()
    bench.begin(bound).go()
    timer.join()
    assert bench.states()[-1] == "completed"


def test_a_wait_past_its_time_ends(bench: Bench) -> None:
    text = WAIT + 'time_limit_s = 0.3\nverify = [{ file = "flag.txt" }]\n'
    with pytest.raises(Overdue, match=r"not done within 0\.3 s"):
        bench.begin(bench.bound(text)).go()
    assert bench.states()[-1] == "failed"


def test_a_step_that_hangs_is_left_and_no_remedy_runs_beside_it() -> None:
    hang = threading.Event()
    stop = Stop()
    with pytest.raises(Overdue) as caught:
        in_time(hang.wait, limit_s=0.05, whole=Stop(), stop=stop, clock=SystemClock(), what="s",
                grace_s=0.05)  # fmt: skip
    hang.set()
    assert caught.value.left
    assert stop.asked
    assert "what it did is not known" in caught.value.why
    assert isinstance(caught.value, DeadlineExceeded)


def test_the_wish_to_stop_ends_between_steps(bench: Bench) -> None:
    bench.hosts["box"].on("one", answer(effect=bench.stop.ask))
    bound = bench.bound(shell("one") + shell("two"))
    with pytest.raises(Interrupted):
        bench.begin(bound).go()
    assert bench.states() == ["started", "one begun", "one done", "failed"]


def test_a_secret_goes_to_stdin_and_nowhere_else(bench: Bench) -> None:
    got: list[bytes | None] = []

    def take(command: Cmd) -> Result:
        got.append(command.stdin_bytes())
        return Result(0, b"it is hunter2-TOKEN", b"", 0.0)

    bench.hosts["box"].on("one", take)
    text = shell("one").replace('argv = ["one"]', 'argv = ["one"], stdin = "${token}"')
    text += '[params.token]\ntype = "secret"\nabout = "t"\n'
    bench.begin(bench.bound(text, "token=env:TOKEN")).go()
    assert got == [b"hunter2-TOKEN"]
    whole = b"".join(p.read_bytes() for p in (bench.root / ".ddops").glob("ledger.db*"))
    assert b"hunter2" not in whole
    with bench.ledger() as book:
        assert book.runbook_runs()[0].params == {"token": "env:TOKEN"}


def test_a_second_run_is_refused_by_the_name_of_the_first_ones_owner(bench: Bench) -> None:
    loop = shell("one", 'each = "hosts"', host="${host}")
    loop += '[params.hosts]\ntype = "hosts"\nabout = "h"\n'
    bench.begin(bench.bound(loop, hosts=["box"]), "r1", "ann@here")
    with pytest.raises(LockHeldError, match="book on box is run by ann@here, as r1"):
        bench.begin(bench.bound(loop, hosts=["pair"]), "r2", "bob@there")
    bench.begin(bench.bound(loop, hosts=["bay"]), "r3", "bob@there")
    with bench.ledger() as book:
        before = [t.runbook_run for t in book.tasks()]
        book.abort_runbook_run("r1", by="ann@here", reason="moved")
        assert [t.runbook_run for t in book.tasks()] == [r for r in before if r != "r1"]
    assert [(t.status, t.evidence) for t in bench.tasks("r1")] == [
        ("blocked", "the run was aborted by ann@here: moved")
    ]
    bench.begin(bench.bound(loop, hosts=["box"]), "r4", "bob@there")


def test_who_is_at_work_is_named_and_gone_with_its_block(tmp_path: Path) -> None:
    with holding(tmp_path, "r1", "ann@here"):
        assert str(holder(tmp_path, "r1")).startswith("ann@here pid ")
        with (
            pytest.raises(LockHeldError, match="worked on by ann@here pid"),
            holding(tmp_path, "r1", "bob@there"),
        ):
            raise AssertionError
    assert holder(tmp_path, "r1") is None


def test_a_text_with_a_secret_in_it_is_not_taken(bench: Bench) -> None:
    text = shell("one", 'x-note = "--api-key abcdefgh12345678"')
    with pytest.raises(UsageError, match="looks like a secret"):
        bench.begin(bench.bound(text))
    assert bench.tasks() == []


def test_lines_of_progress_fit_80_columns() -> None:
    line = task_line("Deploy the service of " + "x" * 200, "high", "in_progress", "y" * 200)
    assert max(map(len, line.splitlines())) <= 80


REPORT = '[[steps]]\nid = "tell"\ncontent = "tell"\ndo = { step = "report", out = "OUT" }\n'


def test_a_report_is_written_whole_and_put_on_record(bench: Bench) -> None:
    make_ledger(bench.root / ".ddops" / "ledger.db", runs=12, samples=120)
    bench.begin(bench.bound(REPORT.replace("OUT", "found.md"))).go()
    [done] = [e for e in bench.journal() if e.state == "done"]
    text = (bench.root / "found.md").read_bytes()
    with bench.ledger() as book:
        [row] = book.query("SELECT id, evidence FROM finding WHERE kind = 'report'")
    assert hashlib.sha256(text).hexdigest() in str(row["evidence"])
    assert str(row["id"]) in str(done.evidence)


def test_a_report_stays_in_the_project(bench: Bench) -> None:
    make_ledger(bench.root / ".ddops" / "ledger.db", runs=12, samples=120)
    with pytest.raises(RefusedError, match="outside the project"):
        bench.begin(bench.bound(REPORT.replace("OUT", "a/../../out.md"))).go()
    assert not (bench.root.parent / "out.md").exists()


def test_a_report_of_nothing_is_refused(bench: Bench) -> None:
    with pytest.raises(RefusedError, match="no run is there"):
        bench.begin(bench.bound(REPORT.replace("OUT", "found.md"))).go()
    assert not (bench.root / "found.md").exists()
