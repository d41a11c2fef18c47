"""Tasks in the ledger: a view over rows that never change; and the command line about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddops.errors import UsageError
from ddops.ledger import Ledger
from tests.unit.cli_support import Run, runner
from tests.unit.runbook.support import Bench, shell


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(tmp_path, monkeypatch, capfd)


COLUMNS = ["id", "runbook_run", "content", "priority", "status", "owner", "evidence",
           "created_at", "updated_at"]  # fmt: skip


def test_the_view_has_the_newest_of_each_and_rows_stay(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.ledger() as book:
        number = book.add_task("Look at the PSU", priority="high", owner="ann@here")
        book.set_task(number, "blocked", evidence="no answer", owner="bob@there")
        assert (rows := book.query("SELECT * FROM task"))
        assert list(rows[0]) == COLUMNS
        assert (rows[0]["status"], rows[0]["owner"], len(rows)) == ("blocked", "bob@there", 1)
        assert str(rows[0]["created_at"]) < str(rows[0]["updated_at"])
        assert len(book.query("SELECT * FROM task_entry")) == 2
        assert book.verify() == []
        with pytest.raises(UsageError, match="no task 9"):
            book.set_task(9, "completed", evidence="", owner="ann")
        with pytest.raises(UsageError, match="not a status"):
            book.set_task(number, "finished", evidence="", owner="ann")


def test_a_task_of_a_run_changes_with_the_run_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.begin(bench.bound(shell("one")))
    with bench.ledger() as book, pytest.raises(UsageError, match="is a step of run r1"):
        book.set_task(1, "completed", evidence="", owner="ann")


def test_tasks_of_another_ledger_are_not_ours(tmp_path: Path) -> None:
    one, two = Bench(tmp_path / "one"), Bench(tmp_path / "two")
    with one.ledger() as book:
        book.add_task("theirs", priority="low", owner="bob")
    with two.ledger() as book:
        book.add_task("mine", priority="low", owner="ann")
        book.merge(tmp_path / "one/.ddops/ledger.db")
    with two.ledger() as book:
        assert [t.content for t in book.tasks()] == ["mine"]


def test_tasks_on_the_command_line(run: Run) -> None:
    assert run("task", "list").code == 0
    assert not Path(".ddops").exists(), "looking makes no ledger"
    assert run("task", "add", "Ask about  the PSU", "--priority", "high").out.strip() == "1"
    listed = run("task", "list")
    assert max(map(len, listed.out.splitlines())) <= 80
    assert "pending" in listed.out
    (row,) = run("task", "list", "--json").document["data"]
    assert (row["content"], row["priority"]) == ("Ask about the PSU", "high")
    assert run("task", "done", "1", "--evidence", "replaced").code == 0
    assert "no task is open" in run("task", "list").err
    (row,) = run("task", "list", "--all", "--json").document["data"]
    assert (row["status"], row["evidence"]) == ("completed", "replaced")


@pytest.mark.parametrize(
    ("words", "code"),
    [(("add", " "), 2), (("add", "x" * 501), 2), (("done", "7"), 2), (("done", "x"), 2)],
)
def test_wrong_words_are_refused(run: Run, words: tuple[str, ...], code: int) -> None:
    assert run("task", *words).code == code


def test_the_owner_is_who_the_system_says_not_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    run("task", "add", "x")
    with Ledger.open(Path(".ddops/ledger.db"), redactor=Bench(Path("b")).redactor) as book:
        assert not book.tasks()[0].owner.startswith("somebody-else")


def test_runbook_commands_without_a_run(run: Run) -> None:
    assert "new-host" in run("runbook", "list").out
    for words in (("resume", "2026"), ("approve", "2026"), ("abort", "2026"), ("log", "2026")):
        done = run("runbook", *words)
        assert done.code in (1, 2), done
    assert run("runbook", "show", "new-hots").code == 2
    assert run("runbook", "run", "new-host").code == 2
