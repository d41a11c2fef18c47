"""`ddops report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.ledger import Ledger
    from ddops.report import Findings


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

    with app.ledger(readonly=True) as book:
        found = collect(book, service)
    _refuse_nothing(found)
    if as_json:
        from ddops.report.data import findings_data

        emit_json("report", findings_data(found))
        return
    html = kind == "html" or (kind is None and out is not None and out.suffix == ".html")
    text = _text(app, found, html)
    if out is None:
        click.echo(text, nl=False)
        return
    _write(out, text)
    with app.ledger() as book:
        finding = _record(book, found, out, text)
    app.say(f"wrote {out}; on record as conclusion {finding}" if finding else f"wrote {out}")


def _refuse_nothing(found: Findings) -> None:
    from ddops.errors import RefusedError

    if found.answer.advice or found.excluded:
        return
    raise RefusedError(
        f"no run of {found.service} is there" if found.service else "no run is there",
        why="a report tells what was measured",
        next="ddops ledger show runs" if found.service else "ddops bench concurrency lab",
    )


def _text(app: App, found: Findings, html: bool) -> str:
    import os

    from ddops.config import paths
    from ddops.report import compose, render_html, render_markdown
    from ddops.report.document import masked

    if html:  # matplotlib's font cache: not in a home that may be read-only, and told once
        os.environ.setdefault("MPLCONFIGDIR", str(paths().cache / "matplotlib"))
    document = masked(compose(found, draw=html), app.redactor)
    if not html:
        return render_markdown(document)
    return render_html(document, app.lookup("templates/report.css").read_text(encoding="utf-8"))


def _write(out: Path, text: str) -> None:
    """Whole or not at all. An older report of the same name is written over."""
    from ddops.errors import DdopsError

    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DdopsError(
            f"cannot write {out}", why=error.strerror or str(error), next=f"ls -ld {out.parent}"
        ) from error


def _record(book: Ledger, found: Findings, out: Path, text: str) -> str:
    """The report as a conclusion of all its runs; nothing where it has none."""
    import hashlib

    from ddops.bench.target import by

    if not found.run_ids:
        return ""
    sha = hashlib.sha256(text.encode()).hexdigest()
    choices = [
        f"{level}: {c.chosen.config.name}"
        for a in found.answer.advice
        for level, c in a.choices.items()
    ]
    return book.add_finding(
        "report", found.service or "all services", "; ".join(choices)[:2000] or "no choice",
        found.run_ids, by=by(), evidence={"file": out.name, "sha256": sha, "head": found.head},
    )  # fmt: skip
