"""`ddops ledger`: reading what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ddops.cli.given import COUNT
from ddops.cli.ledger_files import backup, export, import_, merge
from ddops.cli.options import as_json, confirm, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.ledger import Scope, Withdrawal


@click.group()
def ledger() -> None:
    """What was deployed, with what evidence. One SQLite file, only ever added to."""


@ledger.command(short_help="Deployments, runs, cells, conclusions, or one by its id.")
@click.argument("what", default="deployments")
@click.option("--limit", type=COUNT, default=20, show_default=True, help="How many at most.")
@as_json
@click.pass_obj
def show(app: App, what: str, limit: int, as_json: bool) -> None:
    """The last deployments, runs, cells, conclusions or retractions; or one run or cell by its id.

    Lists of runs hold those that do not count, too, and say so.

    \b
    ddops ledger show --limit 5
    ddops ledger show runs
    ddops ledger show 6f1f0cb2
    """
    from ddops.cli.ledger_show import LISTS, one
    from ddops.cli.output import emit_json, emit_table
    from ddops.model import short

    with app.ledger(readonly=True) as book:
        if what not in LISTS:
            found = one(book, what)
            if as_json:
                emit_json("ledger-entry", found)
            else:
                emit_table(("WHAT", ""), [(k, _text(v)) for k, v in found.items()])
            return
        rows = LISTS[what](book, limit)
    if as_json:
        emit_json(what, rows)
    elif rows:
        header = [k.upper().replace("_", " ") for k in rows[0]]
        emit_table(header, [[_cell(k, v, short) for k, v in r.items()] for r in rows], wrapping=2)
    else:
        app.say("no cell has a valid run" if what == "cells" else f"no {what} recorded")


def _cell(key: str, value: object, short: Callable[[str], str]) -> str:
    """A value as people read it: times to the second, digests short."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    if key in ("at", "started"):
        return text[:19].replace("T", " ")
    if key == "run":
        return short(text)
    return short(text) if key in ("release", "value") and len(text) == 64 else text


def _text(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, default=str)


@ledger.command()
@click.argument("sql")
@as_json
@click.pass_obj
def query(app: App, sql: str, as_json: bool) -> None:
    """The rows of one SELECT. It cannot write.

    \b
    ddops ledger query 'SELECT state, verdict FROM transition ORDER BY seq DESC LIMIT 5'
    """
    from ddops.cli.output import emit_json, emit_table

    with app.ledger(readonly=True) as book:
        rows = book.query(sql)
    if as_json:
        emit_json("query", rows)
    elif rows:
        emit_table(list(rows[0]), [[str(v) for v in row.values()] for row in rows])


@ledger.command(short_help="Check pages, triggers, keys and the hash chain.")
@click.pass_obj
def verify(app: App) -> None:
    """Check pages, triggers, foreign keys and the hash chain; exit 1 names what is wrong.

    \b
    ddops ledger verify
    """
    from ddops.errors import DdopsError

    with app.ledger(readonly=True) as book:
        wrong = book.verify()
    if wrong:
        raise DdopsError(
            f"the ledger is not what was written: {wrong[0]}",
            why="; ".join(wrong[1:]),
            next=f"copy {app.settings.ledger_path} aside, then restore the last backup",
        )
    app.say("the ledger is whole")


@ledger.command(short_help="Withdraw numbers, and what was concluded from them.")
@click.option("--tree", metavar="DIGEST", help="All numbers of this tree, series or plugin.")
@click.option("--release", metavar="DIGEST", help="All numbers of this release.")
@click.option("--run", metavar="ID", help="One run.")
@click.option("--where", metavar="SQL", help="Runs that meet a condition on the columns of `run`.")
@click.option("--reason", required=True, help="What was wrong; every later reader sees it.")
@click.option("--dry-run", is_flag=True, help="Show what would fall; write nothing.")
@yes
@as_json
@click.pass_obj
def retract(
    app: App,
    tree: str | None,
    release: str | None,
    run: str | None,
    where: str | None,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Withdraw numbers, and with them every conclusion drawn from them.

    Nothing is deleted: a row says what was withdrawn, why and by whom, and from then on no view, no
    report and no recommendation counts these runs.

    \b
    ddops ledger retract --tree 3f9c2a --reason "mask fault" --dry-run
    ddops ledger retract --run 6f1f0cb2 --reason "another job on the GPU"
    ddops ledger retract --where "concurrency = 128" --reason "slots ran out"
    """
    import getpass
    import socket

    scope, value = _meant(tree, release, run, where)
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    if dry_run or not yes:
        with app.ledger(readonly=True) as book:
            seen = book.retract(scope, value, reason=reason, by=by, dry_run=True)
        if dry_run:
            _show_withdrawal(seen, as_json)
            return
        counted = sum(r.counted for r in seen.runs)
        falls = sum(f.stood for f in seen.findings)
        confirm(f"Withdraw {counted} valid runs and {falls} conclusions?", yes)
    with app.ledger() as book:
        done = book.retract(scope, value, reason=reason, by=by)
    _show_withdrawal(done, as_json)
    app.say(f"withdrawn by retraction {done.id}; nothing was deleted")


def _meant(
    tree: str | None, release: str | None, run: str | None, where: str | None
) -> tuple[Scope, str]:
    from ddops.errors import UsageError
    from ddops.ledger import Scope

    given = [
        (scope, value)
        for scope, value in (
            (Scope.TREE, tree),
            (Scope.RELEASE, release),
            (Scope.RUN, run),
            (Scope.WHERE, where),
        )
        if value is not None
    ]
    if len(given) == 1:
        return given[0]
    raise UsageError(
        "say what to withdraw, in one way",
        why=f"{len(given)} of --tree, --release, --run and --where are given",
        next="ddops ledger retract --tree DIGEST --reason WHY --dry-run",
    )


def _show_withdrawal(found: Withdrawal, as_json: bool) -> None:
    """Every run and every conclusion: this list is what people act on."""
    from dataclasses import asdict

    from ddops.cli.output import emit_json, emit_line, emit_table

    if as_json:
        emit_json("retraction", asdict(found))
        return
    counted = sum(r.counted for r in found.runs)
    emit_line(f"{len(found.runs)} runs, {counted} of them valid until now")
    if found.runs:
        rows = [
            (r.id, r.started[:19].replace("T", " "), "yes" if r.counted else "no", r.label)
            for r in found.runs
        ]
        emit_table(("RUN", "STARTED", "COUNTED", "WHAT"), rows)
    emit_line(f"{len(found.findings)} conclusions, {sum(f.stood for f in found.findings)} stood")
    if found.findings:
        lines = [
            (f.id, f.kind, "yes" if f.stood else "no", f.subject, f.text) for f in found.findings
        ]
        emit_table(("CONCLUSION", "KIND", "STOOD", "ABOUT", "SAYS"), lines)


for _command in (backup, export, import_, merge):
    ledger.add_command(_command)
