"""A document as one HTML file: styles and pictures inside, no script, nothing from a network."""

from __future__ import annotations

import html
import re

from ddops.report.document import Block, Bullets, Code, Document, Figure, Section, Table, Text

NUMBER = 'class="n"'
#: Letters of a word in a table's cell that stay together.
WORD = 22
#: Even a browser that is told to load something does not.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_html(document: Document, css: str) -> str:
    """The whole page; `css` is its style sheet."""
    body = [f"<h1>{_text(document.title)}</h1>"]
    if document.banner:
        body.append(f'<p class="banner">{_text(document.banner)}</p>')
    body.append(_contents(document))
    for n, section in enumerate(document.sections):
        body.append(_section(section, n))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(document.title)}</title>",
            f"<style>\n{css.replace('</', '')}\n</style></head><body><main>",
            *body,
            "</main></body></html>",
            "",
        ]
    )


def _contents(document: Document) -> str:
    items = [
        f'<li><a href="#s{n}">{_text(s.title)}</a></li>'
        for n, s in enumerate(document.sections)
        if s.level == 2
    ]
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def _section(section: Section, n: int) -> str:
    level = section.level
    head = f'<h{level} id="s{n}">{_text(section.title)}</h{level}>'
    return "\n".join([f"<section>{head}", *(_block(b, n, i) for i, b in
                                             enumerate(section.blocks)), "</section>"])  # fmt: skip


def _block(block: Block, n: int, i: int) -> str:
    match block:
        case Text(text, kind):
            return f'<p class="{_text(kind)}">{_text(text)}</p>'
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_text(x)}</li>" for x in items) + "</ul>"
        case Table():
            return _table(block)
        case Figure(caption, alt, svg):
            picture = (
                f'<div class="plot" role="img" aria-label="{_text(alt)}">'
                f"{_apart(svg, f'f{n}-{i}-')}</div>"
                if svg
                else f"<p>{_text(alt)}</p>"
            )
            return f"<figure>{picture}<figcaption>{_text(caption)}</figcaption></figure>"
        case Code(lines):
            return f"<pre><code>{_text(chr(10).join(lines))}</code></pre>"


def _table(table: Table) -> str:
    head = "".join(
        f"<th{' ' + NUMBER if k in table.right else ''}>{_text(c)}</th>"
        for k, c in enumerate(table.header)
    )
    wide = "table wide" if len(table.header) > 4 else "table"
    rows = "\n".join(f"<tr>{_cells(table, n)}</tr>" for n in range(len(table.rows)))
    return (
        f'<div class="{wide}"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(table: Table, n: int) -> str:
    out = []
    for k, cell in enumerate(table.rows[n]):
        text = _breakable(cell)
        text = f"<s>{text}</s>" if (n, k) in table.struck else text
        out.append(f"<td{' ' + NUMBER if k in table.right else ''}>{text}</td>")
    return "".join(out)


def _breakable(cell: str) -> str:
    """A long word may break: on paper a table cannot be scrolled."""
    pieces = re.split(rf"(\S{{{WORD}}})(?=\S)", cell)
    return "".join(_text(piece) + ("<wbr>" if i % 2 else "") for i, piece in enumerate(pieces))


def _apart(svg: str, prefix: str) -> str:
    """Names inside a picture made its own: several stand in one page."""
    inner = svg[svg.index("<svg") :]
    inner = re.sub(r'\bid="', f'id="{prefix}', inner)
    inner = re.sub(r'(xlink:href|href)="#', rf'\1="#{prefix}', inner)
    return re.sub(r"url\(#", f"url(#{prefix}", inner)


def _text(text: str) -> str:
    return html.escape("".join(c if c.isprintable() or c == "\n" else " " for c in text))
