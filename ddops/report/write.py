"""A report as a file and as a conclusion of the runs in it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddops.bench.target import by
from ddops.command import Redactor
from ddops.config import paths
from ddops.config.files import read_text, unwritten
from ddops.errors import RefusedError
from ddops.ledger import Ledger
from ddops.report.collect import Findings
from ddops.report.compose import compose
from ddops.report.document import masked
from ddops.report.html import render_html
from ddops.report.markdown import render_markdown


@dataclass(frozen=True, slots=True)
class Written:
    """What was written; `finding` is empty where no run was there to conclude from."""

    file: Path
    sha256: str
    finding: str


def refuse_nothing(found: Findings) -> None:
    """Raise RefusedError where no run is there, not even one that does not count."""
    if found.answer.advice or found.excluded:
        return
    raise RefusedError(
        f"no run of {found.service} is there" if found.service else "no run is there",
        why="a report tells what was measured",
        next="ddops ledger show runs" if found.service else "ddops bench concurrency lab",
    )


def as_text(
    found: Findings, *, html: bool, redactor: Redactor, lookup: Callable[[str], Path]
) -> str:
    """Markdown, or one page with its pictures inside."""
    if html:  # matplotlib's font cache: not in a home that may be read-only, and told once
        os.environ.setdefault("MPLCONFIGDIR", str(paths().cache / "matplotlib"))
    document = masked(compose(found, draw=html), redactor)
    if not html:
        return render_markdown(document)
    return render_html(document, read_text(lookup("templates/report.css")))


def write_report(book: Ledger, found: Findings, out: Path, text: str) -> Written:
    """Whole or not at all, and on record. An older report of the same name is written over."""
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        with suppress(OSError):  # of a folder that is no folder, too
            part.unlink()
        raise unwritten(out, error) from error
    sha = hashlib.sha256(text.encode()).hexdigest()
    return Written(out, sha, _record(book, found, out, sha))


def _record(book: Ledger, found: Findings, out: Path, sha: str) -> str:
    if not found.run_ids:
        return ""
    choices = [
        f"{level}: {c.chosen.config.name}"
        for a in found.answer.advice
        for level, c in a.choices.items()
    ]
    return book.add_finding(
        "report", found.service or "all services", "; ".join(choices)[:2000] or "no choice",
        found.run_ids, by=by(), evidence={"file": out.name, "sha256": sha, "head": found.head},
    )  # fmt: skip
