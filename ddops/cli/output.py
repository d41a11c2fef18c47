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


def emit_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, wrapping: int = 1) -> None:
    """Columns as wide as they need to be; the last `wrapping` share what the terminal has left."""
    redact = _redactor()
    masked = [[redact(cell) for cell in row] for row in rows]
    width = shutil.get_terminal_size((80, 24)).columns
    click.echo("\n".join(table_lines(header, masked, width, wrapping=wrapping)))


def _redactor() -> Redactor:
    """The running program's redactor, which knows the secrets fetched so far."""
    context = click.get_current_context(silent=True)
    found = getattr(context.obj, "redactor", None) if context is not None else None
    return found if isinstance(found, Redactor) else Redactor()


def _plain(cell: str) -> str:
    """One line without control characters: a host's escape sequences stay out of the terminal."""
    text = " ".join(cell.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, wrapping: int = 1
) -> list[str]:
    """The table's lines, none wider than `width` where the wrapping columns have room for it."""
    import textwrap

    cells = [[_plain(c) for c in row] for row in (header, *rows)]
    fixed = len(header) - wrapping
    widths, narrowed = _widths(cells, width, fixed)
    lines: list[str] = []
    for row in cells:
        wrapped = [
            textwrap.wrap(c, max(w, 1), break_on_hyphens=False) or [""]
            if i >= fixed or i in narrowed
            else [c]
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        for n in range(max(map(len, wrapped))):
            words = [part[n] if n < len(part) else "" for part in wrapped]
            lines.append(GAP.join(c.ljust(w) for c, w in zip(words, widths, strict=True)).rstrip())
    return lines


def _widths(
    cells: Sequence[Sequence[str]], width: int, fixed: int
) -> tuple[list[int], set[int]]:  # fmt: skip
    """Each column's width, and which of the first `fixed` wrap too.

    Those wrap where the table is too wide without: between words alone, so that an id stays one
    piece, and the column first that gives the most. Then the wrapping columns go below 16.
    """
    natural = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    least = [max(len(w) for row in cells for w in (row[i] or " ").split(" "))
             for i in range(len(cells[0]))]  # fmt: skip
    room = width - len(GAP) * (len(natural) - 1)
    widths, narrowed = list(natural), set[int]()
    widths[fixed:] = _shares(natural[fixed:], room - sum(widths[:fixed]))
    while (over := sum(widths) - room) > 0:
        gains = {i: widths[i] - least[i] for i in range(fixed) if i not in narrowed}
        best = max(gains, key=lambda i: gains[i], default=None)
        if best is None or gains[best] == 0:
            break
        widths[best] -= min(gains[best], over)
        narrowed.add(best)
    if sum(widths) > room:
        left = room - sum(widths[:fixed])
        *words, last = least[fixed:]
        for tight in ([*words, left - sum(words)], _shares(natural[fixed:], left, least=8)):
            if min(tight) >= min(8, last) and sum(tight) <= left:
                widths[fixed:] = tight
                break
    return widths, narrowed


def _shares(natural: Sequence[int], room: int, least: int = 16) -> list[int]:
    """Widths for columns that wrap: the narrow ones whole, the others alike; `least` at least."""
    out = list(natural)
    left, open_ = room, sorted(range(len(natural)), key=lambda i: natural[i])
    while open_:
        i = open_.pop(0)
        out[i] = min(natural[i], max(left // (len(open_) + 1), least))
        left -= out[i]
    return out
