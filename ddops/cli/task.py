"""`ddops task`: what the team has to do; runbooks put their steps here by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.ledger import Task


@click.group()
def task() -> None:
    """The team's tasks: content, priority, status, owner, evidence.

    Those of a runbook change with its run. The others are yours to add and to end.

    \b
    ddops task list
    """


@task.command("list")
@click.option("--all", "everything", is_flag=True, help="Completed ones too.")
@as_json
@click.pass_obj
def list_(app: App, everything: bool, as_json: bool) -> None:
    """Tasks that are not completed, as they are now.

    \b
    ddops task list --all
    """
    from ddops.cli.output import emit_json

    found = []
    if app.settings.ledger_path.exists():
        with app.ledger(readonly=True) as book:
            found = [t for t in book.tasks() if everything or t.status != "completed"]
    if as_json:
        emit_json("tasks", [task_json(t) for t in found])
    elif found:
        show_tasks(found)
    else:
        app.say("no task is open")


@task.command()
@click.argument("content")
@click.option(
    "--priority",
    type=click.Choice(("high", "medium", "low")),
    default="medium",
    show_default=True,
    help="How much it matters.",
)
@click.pass_obj
def add(app: App, content: str, priority: str) -> None:
    """Add a task of your own.

    \b
    ddops task add "Ask the data centre about the PSU of b300" --priority high
    """
    from ddops.cli.output import emit_line
    from ddops.errors import UsageError
    from ddops.runbook.context import os_user

    text = " ".join(content.split())
    if not text or len(text) > 500:
        raise UsageError(
            "a task says what is to be done, in 1 to 500 characters", next="ddops task add 'TEXT'"
        )
    with app.ledger() as book:
        number = book.add_task(text, priority=priority, owner=os_user())
    emit_line(str(number))


@task.command()
@click.argument("number", type=click.IntRange(1, 2**63 - 1))
@click.option("--evidence", default="", metavar="TEXT", help="What shows that it is done.")
@click.pass_obj
def done(app: App, number: int, evidence: str) -> None:
    """A task of your own is completed. A runbook's steps complete by themselves.

    \b
    ddops task done 7 --evidence "replaced on Monday"
    """
    from ddops.runbook.context import os_user

    with app.ledger() as book:
        found = book.set_task(number, "completed", evidence=evidence, owner=os_user())
    app.say(f"task {found.id} is completed: {found.content}")


def show_tasks(tasks: Sequence[Task]) -> None:
    """The list as people see it: 80 columns do for content, priority and status."""
    from ddops.cli.output import emit_table

    rows = [(str(t.id), t.status, t.priority, t.content, t.evidence) for t in tasks]
    emit_table(("TASK", "STATUS", "PRIORITY", "CONTENT", "EVIDENCE"), rows, wrapping=2)


def task_json(t: Task) -> dict[str, object]:
    return {
        "id": t.id, "runbook_run": t.runbook_run, "content": t.content, "priority": t.priority,
        "status": t.status, "owner": t.owner, "evidence": t.evidence,
        "created_at": t.created_at.isoformat(), "updated_at": t.updated_at.isoformat(),
    }  # fmt: skip
