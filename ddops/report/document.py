"""A document as data: sections of blocks, rendered as Markdown or as HTML. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. `kind` is `plain`, or `warn` for what must not be overlooked."""

    text: str
    kind: str = "plain"


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns in `right` hold numbers; cells (row, column) in `struck` no longer hold."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    struck: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Figure:
    """A vector picture; `alt` says in words what it shows. `svg` is empty where none is drawn."""

    caption: str
    alt: str
    svg: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to type."""

    lines: tuple[str, ...]


Block = Text | Bullets | Table | Figure | Code


@dataclass(frozen=True, slots=True)
class Section:
    """`level` is 2 or 3, as in Markdown."""

    title: str
    blocks: Sequence[Block]
    level: int = 2


@dataclass(frozen=True, slots=True)
class Document:
    """`banner` stands below the title: what kind of numbers these are."""

    title: str
    banner: str
    sections: Sequence[Section]


def masked(document: Document, redact: Callable[[str], str]) -> Document:
    """The document with every text redacted; pictures hold numbers and names from it alone."""
    return Document(
        redact(document.title),
        redact(document.banner),
        [
            Section(redact(s.title), [_block(b, redact) for b in s.blocks], s.level)
            for s in document.sections
        ],
    )


def _block(block: Block, redact: Callable[[str], str]) -> Block:
    match block:
        case Text(text, kind):
            return Text(redact(text), kind)
        case Bullets(items):
            return Bullets(tuple(map(redact, items)))
        case Table(header, rows):
            cells = tuple(tuple(map(redact, row)) for row in rows)
            return replace(block, header=tuple(map(redact, header)), rows=cells)
        case Figure(caption, alt, svg):
            return Figure(redact(caption), redact(alt), svg)
        case Code(lines):
            return Code(tuple(map(redact, lines)))
