"""A document as Markdown. Pictures become their words: their numbers stand in tables beside."""

from __future__ import annotations

import re

from ddops.report.document import Block, Bullets, Code, Document, Figure, Table, Text

#: Signs that Markdown or HTML would take for its own.
_SIGNS = re.compile(r"([\\`*_{}\[\]<>#|~])")


def render_markdown(document: Document) -> str:
    """The whole text; ends with a line break."""
    parts = [f"# {_plain(document.title)}"]
    if document.banner:
        parts.append(f"**{_plain(document.banner)}**")
    for section in document.sections:
        parts.append(f"{'#' * section.level} {_plain(section.title)}")
        parts += [_block(b) for b in section.blocks]
    return "\n\n".join(p for p in parts if p) + "\n"


def _block(block: Block) -> str:
    match block:
        case Text(text, kind):
            return f"> {_plain(text)}" if kind == "warn" else _plain(text)
        case Bullets(items):
            return "\n".join(f"* {_plain(i)}" for i in items)
        case Table():
            return _table(block)
        case Figure(caption, alt):
            return f"*Figure: {_plain(caption)}* {_plain(alt)}"
        case Code(lines):
            fence = "`" * max(3, 1 + max((len(m) for m in re.findall("`+", "".join(lines))),
                                         default=0))  # fmt: skip
            return "\n".join([f"{fence}sh", *(_one_line(li) for li in lines), fence])


def _table(table: Table) -> str:
    lines = [
        _row(table.header),
        "|" + "|".join("---:" if i in table.right else "---" for i in range(len(table.header)))
        + "|",
    ]  # fmt: skip
    for n, row in enumerate(table.rows):
        cells = [
            f"~~{_plain(c)}~~" if c and (n, i) in table.struck else _plain(c)
            for i, c in enumerate(row)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    """One line in which no sign is markup."""
    return _SIGNS.sub(r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).strip()
