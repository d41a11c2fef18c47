"""`ddops runbook`: ordered steps, journaled; list, show, run, resume, approve, abort, log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, complete_targets, confirm, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.ledger import JournalEntry, Ledger, StoredRun
    from ddops.runbook.bind import Bound
    from ddops.runbook.model import Runbook


def complete_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of runbooks, from local files alone; a broken place completes nothing."""
    from pathlib import Path

    from ddops.config import find_project
    from ddops.errors import DdopsError
    from ddops.runbook.find import runbook_names

    try:
        return [n for n in runbook_names(find_project(Path())) if n.startswith(incomplete)]
    except DdopsError:
        return []


_NAME = click.argument("name", shell_complete=complete_names)
_RUN = click.argument("run_id", metavar="RUN")


@click.group()
def runbook() -> None:
    """Ordered steps that the product does itself, each journaled, verified and resumable.

    \b
    ddops runbook list
    ddops runbook run new-host --host lab1 --dry-run
    """


@runbook.command("list")
@as_json
@click.pass_obj
def list_(app: App, as_json: bool) -> None:
    """Runbooks there are, and runs that are not over.

    \b
    ddops runbook list
    """
    from ddops.cli.output import emit_json, emit_table
    from ddops.errors import DdopsError
    from ddops.runbook.find import find_runbook, runbook_names

    rows = []
    for name, origin in runbook_names(app.project).items():
        try:
            title = find_runbook(app.project, name).table.title
        except DdopsError as error:
            title = f"cannot be read: {error.what}"
        rows.append((name, origin, title))
    runs = _open_runs(app)
    if as_json:
        keys = ("name", "from", "title")
        books = [dict(zip(keys, r, strict=True)) for r in rows]
        emit_json("runbooks", {"runbooks": books, "open": [r[1] for r in runs]})
        return
    emit_table(("RUNBOOK", "FROM", "TITLE"), rows)
    if runs:
        emit_table(("RUN", "RUNBOOK", "STATE", "BY"), [r[0] for r in runs])


def _open_runs(app: App) -> list[tuple[tuple[str, ...], dict[str, object]]]:
    if not app.settings.ledger_path.exists():
        return []
    with app.ledger(readonly=True) as book:
        out: list[tuple[tuple[str, ...], dict[str, object]]] = []
        for run in book.runbook_runs(open_only=True):
            state = _state(app, run, book.runbook_events(run.id))
            data: dict[str, object] = {
                "run": run.id, "runbook": run.runbook, "state": state, "by": run.by,
                "hosts": list(run.hosts),
            }  # fmt: skip
            out.append(((run.id, run.runbook, state, run.by), data))
    return out


def _state(app: App, run: StoredRun, events: list[JournalEntry]) -> str:
    """`running`, `waiting`, `failed`, `cut short`, `completed` or `aborted`."""
    from ddops.runbook.hold import holder
    from ddops.runbook.story import RunState, read_story

    story = read_story(events, [])
    if story.run is RunState.OPEN:
        return "running" if holder(app.project.state, run.id) else "cut short"
    return story.run.value


@runbook.command()
@_NAME
@as_json
@click.pass_obj
def show(app: App, name: str, as_json: bool) -> None:
    """A runbook's parameters and steps, with their conditions.

    \b
    ddops runbook show new-host
    """
    from ddops.cli.output import emit_json, emit_line
    from ddops.cli.runbook_show import book_lines
    from ddops.runbook.find import find_runbook

    book = find_runbook(app.project, name)
    if as_json:
        emit_json("runbook", {"name": name, **book.as_json()})
        return
    for line in book_lines(book):
        emit_line(line)


@runbook.command()
@_NAME
@click.option(
    "--host", "hosts", multiple=True, metavar="TARGET", shell_complete=complete_targets,
    help="Hosts it is about: hosts, groups, services.",
)  # fmt: skip
@click.option(
    "--set", "values", multiple=True, metavar="NAME=VALUE",
    help="A parameter; a secret as env:NAME, file:PATH or cmd:WORDS.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Evaluate and show the conditions; write nothing.")
@yes
@as_json
@click.pass_obj
def run(
    app: App, name: str, hosts: tuple[str, ...], values: tuple[str, ...], dry_run: bool, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run a runbook from its first step. Each step is a task that the team sees.

    What is done stays done: after a crash, `resume` goes on behind it. A second run of the same
    runbook on one of the hosts is refused while the first one is not over.

    \b
    ddops runbook run new-host --host lab1 --dry-run
    ddops runbook run new-host --host lab1
    """
    from ddops.runbook.bind import bind, parse_values
    from ddops.runbook.find import find_runbook

    book = find_runbook(app.project, name)
    bound = bind(book, parse_values(book, hosts, values), app.inventory)
    if dry_run:
        from ddops.cli.runbook_show import dry_run as look

        look(app, bound, as_json)
        return
    if any(app.inventory.hosts[h].origin.kind != "lab" for h in bound.hosts):
        confirm(f"Run {name} on {', '.join(bound.hosts)}?", yes)
    _begin(app, bound, as_json)


def _begin(app: App, bound: Bound, as_json: bool) -> None:
    import secrets

    from ddops.clock import SystemClock
    from ddops.ledger import NewTask
    from ddops.runbook.context import os_user

    run_id = f"{SystemClock().now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    by = os_user()
    tasks = [NewTask(step=s.key, content=s.content, priority=s.priority) for s in bound.steps]
    with app.ledger() as ledger:
        ledger.add_runbook_run(
            run_id, runbook=bound.runbook.name, source=bound.runbook.source,
            params=dict(bound.params), hosts=bound.hosts, by=by, tasks=tasks,
        )  # fmt: skip
    app.say(f"run {run_id} of {bound.runbook.name}, {len(tasks)} steps")
    _go(app, run_id, bound, by, as_json)


def _go(app: App, run_id: str, bound: Bound, by: str, as_json: bool) -> None:
    """Hold the run, go on with it, and show its tasks however it ends."""
    from ddops.cli.runbook_context import context_of
    from ddops.deploy import Stop, on_interrupt
    from ddops.runbook.hold import holding
    from ddops.runbook.run import Run

    stop = Stop()
    with holding(app.project.state, run_id, by), on_interrupt(stop, app.warn):
        try:
            Run(run_id, bound, context_of(app, stop), by).go()
        finally:
            _show_run(app, run_id, as_json)


def _show_run(app: App, run_id: str, as_json: bool) -> None:
    from ddops.cli.output import emit_json
    from ddops.cli.task import show_tasks, task_json

    with app.ledger(readonly=True) as book:
        tasks = book.tasks(run_id=run_id)
    if as_json:
        emit_json("runbook-run", {"run": run_id, "tasks": [task_json(t) for t in tasks]})
    else:
        show_tasks(tasks)


@runbook.command()
@_RUN
@click.option("--from", "start", metavar="STEP", help="Do this step and those behind it again.")
@yes
@as_json
@click.pass_obj
def resume(app: App, run_id: str, start: str | None, yes: bool, as_json: bool) -> None:
    """Go on with a run that was cut short, failed, or waited; by the text it began with.

    \b
    ddops runbook resume 20270131T0900
    ddops runbook resume 20270131T0900 --from deploy
    """
    from ddops.config.words import unknown
    from ddops.errors import UsageError
    from ddops.runbook.context import os_user
    from ddops.runbook.hold import holding

    with app.ledger() as ledger:
        stored = _stored(ledger, run_id)
        bound = _bound(app, stored)
        keys = [s.key for s in bound.steps]
        if start is not None and start not in keys:
            raise UsageError(unknown(start[:60], keys, "step"), next=f"ddops runbook log {run_id}")
        if any(app.inventory.hosts[h].origin.kind != "lab" for h in bound.hosts):
            confirm(f"Go on with {stored.runbook} on {', '.join(bound.hosts)}?", yes)
        by = os_user()
        with holding(app.project.state, stored.id, by):  # somebody at work is not disturbed
            evidence = {"from": start} if start is not None else {}
            ledger.add_runbook_event(stored.id, "", "resumed", by=by, evidence=evidence)
    _go(app, stored.id, bound, by, as_json)


@runbook.command()
@_RUN
@yes
@click.pass_obj
def approve(app: App, run_id: str, yes: bool) -> None:
    """Say yes to what a run waits for; the ledger keeps who did. Then resume it.

    The approval holds for what is shown, and for nothing else.

    \b
    ddops runbook approve 20270131T0900
    """
    from ddops.cli.output import emit_line
    from ddops.errors import RefusedError
    from ddops.runbook.context import os_user
    from ddops.runbook.story import read_story

    with app.ledger() as ledger:
        stored = _stored(ledger, run_id)
        story = read_story(ledger.runbook_events(stored.id), [])
        step = story.waiting
        if step is None:
            raise RefusedError(
                f"run {stored.id} waits for nobody", next=f"ddops runbook log {stored.id}"
            )
        asked, subject = story.asked[step]
        emit_line(f"{step}: {asked}")
        confirm("Approve this?", yes)
        evidence = {"asked": asked, "subject": subject}
        ledger.add_runbook_event(stored.id, step, "approved", by=os_user(), evidence=evidence)
    app.say(f"approved by {os_user()}; next: ddops runbook resume {stored.id}")


@runbook.command()
@_RUN
@click.option("--reason", default="", metavar="TEXT", help="Why; the journal keeps it.")
@yes
@click.pass_obj
def abort(app: App, run_id: str, reason: str, yes: bool) -> None:
    """End a run for good. What its steps did stays as it is.

    \b
    ddops runbook abort 20270131T0900 --reason "the host is being moved"
    """
    from ddops.runbook.context import os_user
    from ddops.runbook.hold import holding

    by = os_user()
    with app.ledger() as ledger:
        stored = _stored(ledger, run_id)
        confirm(f"Abort run {stored.id} of {stored.runbook}?", yes)
        with holding(app.project.state, stored.id, by):
            ledger.abort_runbook_run(stored.id, by=by, reason=reason)
    app.say(f"run {stored.id} is aborted; what was done stays")


@runbook.command()
@_RUN
@as_json
@click.pass_obj
def log(app: App, run_id: str, as_json: bool) -> None:
    """A run's tasks and its journal: who did what, when, with what evidence.

    \b
    ddops runbook log 20270131T0900
    """
    from ddops.cli.output import emit_json, emit_line
    from ddops.cli.runbook_show import event_line
    from ddops.cli.task import show_tasks, task_json

    with app.ledger(readonly=True) as book:
        stored = _stored(book, run_id, over=True)
        events, tasks = book.runbook_events(stored.id), book.tasks(run_id=stored.id)
    state = _state(app, stored, events)
    if as_json:
        emit_json(
            "runbook-log",
            {
                "run": stored.id, "runbook": stored.runbook, "state": state, "by": stored.by,
                "params": dict(stored.params), "hosts": list(stored.hosts),
                "tasks": [task_json(t) for t in tasks],
                "journal": [
                    {"n": e.n, "step": e.step, "state": e.state, "by": e.by,
                     "at": e.at.isoformat(), "evidence": dict(e.evidence)} for e in events
                ],
            },
        )  # fmt: skip
        return
    emit_line(f"{stored.runbook} {stored.id}, {state}, begun by {stored.by}")
    show_tasks(tasks)
    for event in events:
        emit_line(event_line(event))


def _stored(book: Ledger, prefix: str, *, over: bool = False) -> StoredRun:
    """The run that is meant. Raises RefusedError for one that is over, where that is no use."""
    from ddops.errors import RefusedError, UsageError
    from ddops.ledger.runbooks import OVER

    found = book.runbook_run(prefix)
    if found is None:
        raise UsageError(f"no run {prefix} here", next="ddops runbook list")
    ends = [e for e in book.runbook_events(found.id) if e.step == "" and e.state in OVER]
    if ends and not over:
        raise RefusedError(
            f"run {found.id} is {ends[-1].state}, by {ends[-1].by}",
            next=f"ddops runbook log {found.id}",
        )
    return found


def _bound(app: App, stored: StoredRun) -> Bound:
    """The run's steps, from the text and the parameters it began with."""
    from ddops.errors import RefusedError
    from ddops.model import digest
    from ddops.runbook.bind import bind
    from ddops.runbook.parse import parse_runbook

    if digest(stored.source) != stored.digest:
        raise RefusedError(
            f"the text of run {stored.id} is not what it began with", next="ddops ledger verify"
        )
    book: Runbook = parse_runbook(stored.source, stored.runbook)
    params = {k: v for k, v in stored.params.items() if isinstance(v, str | int | float | bool)}
    return bind(book, params, app.inventory)
