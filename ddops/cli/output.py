"""stdout: tables for people, JSON for programs. Data only; narration goes to stderr."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence

import click

from ddops.command import Redactor

GAP = "  "


def emit_json(name: str, value: object) -> None:
    """One JSON document with its schema's name and version; secrets are masked."""
    data = _redactor().tree(value)
    # ASCII: any text of a host can be written, whatever the stream's encoding.
    click.echo(json.dumps({"schema": f"ddops.{name}/1", "data": data}, indent=1))


def emit_line(text: str = "") -> None:
    """One line of data, secrets masked, without control characters."""
    click.echo("".join(c if c.isprintable() else ascii(c)[1:-1] for c in _redactor()(text)))


def emit_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> None:
    """Columns as wide as they need to be; the last one wraps at the terminal's width."""
    redact = _redactor()
    masked = [[redact(cell) for cell in row] for row in rows]
    click.echo(
        "\n".join(table_lines(header, masked, width or shutil.get_terminal_size((80, 24)).columns))
    )


def _redactor() -> Redactor:
    """The running program's redactor, which knows the secrets fetched so far."""
    context = click.get_current_context(silent=True)
    found = getattr(context.obj, "redactor", None) if context is not None else None
    return found if isinstance(found, Redactor) else Redactor()


def _plain(cell: str) -> str:
    """One line without control characters: a host's escape sequences stay out of the terminal."""
    text = " ".join(cell.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The table's lines, none wider than `width` where the last column can wrap."""
    import textwrap

    cells = [[_plain(c) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    room = max(width - before, 16)
    lines: list[str] = []
    for row in cells:
        lead = GAP.join(c.ljust(w) for c, w in zip(row[:-1], widths[:-1], strict=True))
        lead += GAP if lead else ""
        wrapped = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        lines.append((lead + wrapped[0]).rstrip())
        lines += [(" " * before + more).rstrip() for more in wrapped[1:]]
    return lines
