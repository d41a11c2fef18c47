"""`ddops report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App


@click.command()
@click.option("--service", metavar="NAME", help="About this service alone.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["md", "html"]),
    help="Markdown, or one HTML page with its pictures inside. By default what --out ends in.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write here, and put the report on record.",
)
@as_json
@click.pass_obj
def report(
    app: App, service: str | None, kind: str | None, out: Path | None, as_json: bool
) -> None:
    """What was found, with what it rests on, and what fell.

    Numbers are of valid runs. Runs that do not count are told with their reasons, and so are
    conclusions that fell. A report written with --out is a conclusion itself: a retraction of one
    of its runs names it.

    \b
    ddops report --service k26-pcie
    ddops report --service k26-pcie --out findings.html
    ddops report --json
    """
    from ddops.cli.output import emit_json
    from ddops.report import collect
    from ddops.report.write import as_text, refuse_nothing, write_report

    with app.ledger(readonly=True) as book:
        found = collect(book, service)
    refuse_nothing(found)
    if as_json:
        from ddops.report.data import findings_data

        emit_json("report", findings_data(found))
        return
    html = kind == "html" or (kind is None and out is not None and out.suffix == ".html")
    text = as_text(found, html=html, redactor=app.redactor, lookup=app.lookup)
    if out is None:
        click.echo(text, nl=False)
        return
    with app.ledger() as book:
        done = write_report(book, found, out, text)
    app.say(f"wrote {out}; on record as conclusion {done.finding}" if done.finding
            else f"wrote {out}")  # fmt: skip
