"""`ddops ledger`: reading what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App


@click.group()
def ledger() -> None:
    """What was deployed, with what evidence. One SQLite file, only ever added to."""


@ledger.command()
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many at most."
)
@as_json
@click.pass_obj
def show(app: App, limit: int, as_json: bool) -> None:
    """The last deployments and how each ended.

    \b
    ddops ledger show --limit 5
    """
    from ddops.cli.output import emit_json, emit_table
    from ddops.model import short

    with app.ledger(readonly=True) as book:
        rows = []
        for d in book.deployments(limit=limit):
            states = book.transitions(d.op_id)
            last = f"{states[-1].state} {states[-1].verdict.value}" if states else "no transition"
            rows.append((d.at, d.host, d.service, d.release, last, d.op_id))
    if as_json:
        keys = ("at", "host", "service", "release", "last", "op_id")
        emit_json("deployments", [dict(zip(keys, map(str, r), strict=True)) for r in rows])
        return
    emit_table(
        ("AT", "HOST", "SERVICE", "RELEASE", "LAST", "OPERATION"),
        [(f"{at:%Y-%m-%d %H:%M:%S}", h, s, short(r), last, op) for at, h, s, r, last, op in rows],
    )


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


@ledger.command()
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
