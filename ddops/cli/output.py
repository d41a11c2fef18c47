"""stdout: tables for people, JSON for programs. Data only; narration goes to stderr."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence

import click

GAP = "  "


def emit_json(name: str, value: object) -> None:
    """One JSON document with its schema's name and version."""
    click.echo(json.dumps({"schema": f"ddops.{name}/1", "data": value}, indent=1, default=str,
                          ensure_ascii=False))  # fmt: skip


def emit_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> None:
    """Columns as wide as they need to be; the last one wraps at the terminal's width."""
    click.echo(
        "\n".join(table_lines(header, rows, width or shutil.get_terminal_size((80, 24)).columns))
    )


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The table's lines, none wider than `width` where the last column can wrap."""
    import textwrap

    cells = [[" ".join(c.split()) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    room = max(width - before, 16)
    lines: list[str] = []
    for row in cells:
        lead = GAP.join(c.ljust(w) for c, w in zip(row[:-1], widths[:-1], strict=True))
        lead += GAP if lead else ""
        wrapped = textwrap.wrap(row[-1], room) or [""]
        lines.append((lead + wrapped[0]).rstrip())
        lines += [" " * before + more for more in wrapped[1:]]
    return lines
