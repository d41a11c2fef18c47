"""`ddops ledger export|import|merge|backup`: the ledger and other files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from datetime import datetime

    from ddops.bench.importers import Imported
    from ddops.cli.app import App
    from ddops.ledger import Ledger

#: A bigger results file is refused: it is read whole.
MOST_BYTES = 1024 * 1024 * 1024


@click.command(short_help="Rows for other tools: JSON lines, CSV, Parquet.")
@click.argument("table", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    default="jsonl",
    show_default=True,
    help="How rows are written; parquet needs pyarrow.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A new file, else stdout.")
@click.pass_obj
def export(app: App, table: str | None, form: str, output: Path | None) -> None:
    """Write rows for other tools: a table or view, or with no TABLE every row of every chain.

    A whole ledger goes out as JSON lines in the order of its chains, hashes included. Bytes are
    base64.

    \b
    ddops ledger export -o ledger.jsonl
    ddops ledger export cell_summary --format csv
    ddops ledger export valid_run --format parquet -o runs.parquet
    """
    from ddops.errors import UsageError
    from ddops.ledger import export as out
    from ddops.ledger.export import Format

    wanted = Format(form)
    if table is None and wanted is not Format.JSONL:
        raise UsageError(
            f"a whole ledger cannot be written as {form}",
            why="its tables have different columns",
            next="name a table or view, or take --format jsonl",
        )
    if wanted is Format.PARQUET and output is None:
        raise UsageError("Parquet is not written to stdout", next="give --output FILE")
    with app.ledger(readonly=True) as book:
        path, head = book.path, book.head()
    names = out.columns(path, table) if table else []
    rows = out.table(path, table) if table else out.whole(path)
    if output is None:
        count = out.write(sys.stdout, rows, wanted, names)
    else:
        with out.private(output) as part:
            if wanted is Format.PARQUET:
                count = out.write_parquet(part, path, str(table))
            else:
                with part.open("w", encoding="utf-8", newline="") as f:
                    count = out.write(f, rows, wanted, names)
    app.say(f"{count} rows; head {head.ledger} {head.seq} {head.hash}")


@click.command("import", short_help="Take in results of bench_serving or AIPerf.")
@click.argument("source", type=click.Choice(["sglang", "aiperf"]))
@click.argument("file", type=click.Path(path_type=Path), nargs=-1, required=True)
@as_json
@click.pass_obj
def import_(app: App, source: str, file: tuple[Path, ...], as_json: bool) -> None:
    """Take in results of SGLang's bench_serving (JSON lines) or AIPerf (profile_export.jsonl).

    Imported runs are unbound: nothing proves which server answered. They never enter a
    recommendation. The same text again is left out.

    \b
    ddops ledger import sglang sglang_1129_64_sharegpt.jsonl
    ddops ledger import aiperf artifacts/profile_export.jsonl
    """
    from ddops.bench.importers import Source, parse
    from ddops.cli.output import emit_json, emit_table

    found = []
    for path in file:
        text, at = _read(path)
        found += parse(Source(source), text, path.name, at)
    done = []
    with app.ledger() as book, book.batch():
        for item in found:
            run = _add(book, item)
            done.append({"run": run or "", "label": item.cell.label, "samples": len(item.samples)})
    if as_json:
        emit_json("imported", done)
        return
    rows = [(str(d["run"]) or "already there", str(d["samples"]), str(d["label"])) for d in done]
    emit_table(("RUN", "SAMPLES", "WHAT"), rows)


def _read(path: Path) -> tuple[str, datetime]:
    """A results file with the time of its last change."""
    from datetime import UTC, datetime

    from ddops.config.files import read_text

    text = read_text(path, most=MOST_BYTES, pipe=True, next="give a JSON lines file")
    return text, datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _add(book: Ledger, item: Imported) -> str | None:
    """Store one imported run; None when the same text was imported before."""
    if book.imported(item.sha, item.run.tool):
        return None
    book.add_cell(item.cell)
    return book.add_run(item.run, item.samples)


@click.command(short_help="Take over the chains of another ledger.")
@click.argument("file", type=click.Path(path_type=Path))
@as_json
@click.pass_obj
def merge(app: App, file: Path, as_json: bool) -> None:
    """Take over whole chains of another ledger: a colleague's, or a newer copy's rows.

    Its rows are checked first and taken as they are, in one transaction. A chain that both have
    with different histories is refused. What was withdrawn there is withdrawn here.

    \b
    ddops ledger merge ../colleague/.ddops/ledger.db
    """
    from ddops.cli.output import emit_json, emit_table

    with app.ledger() as book:
        found = book.merge(file)
    if as_json:
        data = [{"ledger": m.ledger, "rows": m.rows, "head": m.head.hash} for m in found]
        emit_json("merged", data)
        return
    emit_table(
        ("ROWS", "UP TO", "LEDGER"), [(str(m.rows), str(m.head.seq), m.ledger) for m in found]
    )


@click.command(short_help="Copy the ledger while others write.")
@click.argument("file", type=click.Path(path_type=Path))
@as_json
@click.pass_obj
def backup(app: App, file: Path, as_json: bool) -> None:
    """Copy the ledger to a new FILE while others write: consistent, private, verified.

    Note the head it prints elsewhere: a later `verify` can tell by it whether rows were cut off.

    \b
    ddops ledger backup /backup/ledger-2026-01-31.db
    """
    from ddops.cli.output import emit_json, emit_line

    with app.ledger(readonly=True) as book:
        head = book.backup(file)
    if as_json:
        emit_json("backup", {"ledger": head.ledger, "seq": head.seq, "hash": head.hash})
    else:
        emit_line(f"{head.ledger} {head.seq} {head.hash}")
    app.say(f"{file} is written and whole")
