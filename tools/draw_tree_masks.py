"""Draw the pictures of docs/explanation/ddtree.md: a small tree, its mask, the masks of the bugs.

    python tools/draw_tree_masks.py            # writes docs/explanation/img/ddtree-*.svg
    python tools/draw_tree_masks.py --check    # says whether they are what would be written

The tree is searched here from the numbers in `STEPS`, by the rule of sglang_ddtree/tree_ref.py.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "docs/explanation/img"
#: Drafted words and probabilities for three positions after the current token "the".
STEPS = (
    (("cat", 0.6), ("dog", 0.3)),
    (("sat", 0.7), ("ran", 0.2)),
    (("on", 0.8), ("by", 0.1)),
)
ROOT, BUDGET, BLOCK = "the", 5, 4
CELL = 26
#: A picture brings its own white ground, so that it is read alike on a light and a dark page.
STYLE = """
text { font: 13px sans-serif; fill: #24292f }
.small { font-size: 11px } .mid { text-anchor: middle } .end { text-anchor: end }
.grid { fill: none; stroke: #8c959f; stroke-width: 1 }
.ground { fill: #ffffff } .sees { fill: #2f81d8 } .wrong { fill: #d1462f }
.lost { fill: none; stroke: #d1462f; stroke-width: 2 }
.line { stroke: #8c959f; stroke-width: 1.5; fill: none } .node { fill: #2f81d8 }
.spare { fill: #8c959f } .on { fill: #ffffff }
"""


@dataclass(frozen=True, slots=True)
class Node:
    word: str
    parent: int
    depth: int
    mass: float


def search() -> list[Node]:
    """Best-first: the most probable path that is not in the tree yet is taken next."""
    nodes = [Node(ROOT, -1, 0, 1.0)]
    queue = [(-STEPS[0][0][1], 0, 0)]  # minus the probability of the path, parent, rank
    while queue and len(nodes) <= BUDGET:
        mass, parent, rank = heapq.heappop(queue)
        depth = nodes[parent].depth + 1
        nodes.append(Node(STEPS[depth - 1][rank][0], parent, depth, -mass))
        if depth < len(STEPS):
            heapq.heappush(queue, (mass * STEPS[depth][0][1], len(nodes) - 1, 0))
        if rank + 1 < len(STEPS[depth - 1]):
            beside = -nodes[parent].mass * STEPS[depth - 1][rank + 1][1]
            heapq.heappush(queue, (beside, parent, rank + 1))
    return nodes


def ancestors(nodes: list[Node]) -> list[list[bool]]:
    mask = []
    for i in range(len(nodes)):
        row, at = [False] * len(nodes), i
        while at >= 0:
            row[at] = True
            at = nodes[at].parent
        mask.append(row)
    return mask


def text(x: float, y: float, words: str, css: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{css}">{words}</text>'


def svg(width: int, height: int, title: str, body: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">'
    )
    ground = f'<rect width="{width}" height="{height}" rx="8" class="ground"/>'
    return "\n".join(
        [head, f"<title>{title}</title>", f"<style>{STYLE}</style>", ground, *body, "</svg>\n"]
    )


def matrix(
    x: int, y: int, words: list[str], cell: Callable[[int, int], str], columns: list[str]
) -> list[str]:
    """A grid with row labels on its left and column labels above; `cell` names a class or ''."""
    out = []
    for j, word in enumerate(columns):
        out.append(text(x + j * CELL + CELL / 2, y - 6, word, "small mid"))
    for i, word in enumerate(words):
        top = y + i * CELL
        out.append(text(x - 6, top + 17, word, "small end"))
        for j in range(len(columns)):
            left = x + j * CELL
            if css := cell(i, j):
                out.append(
                    f'<rect x="{left + 3}" y="{top + 3}" width="20" height="20" class="{css}"/>'
                )
            out.append(f'<rect x="{left}" y="{top}" width="{CELL}" height="{CELL}" class="grid"/>')
    return out


def draw_tree(nodes: list[Node]) -> str:
    places, body = {}, []
    for depth in range(len(STEPS) + 1):
        level = [i for i, n in enumerate(nodes) if n.depth == depth]
        for k, i in enumerate(level):
            places[i] = (60 + depth * 125, 40 + k * 62)
    for i, node in enumerate(nodes):
        x, y = places[i]
        if i:
            px, py = places[node.parent]
            body.append(f'<path d="M{px + 17} {py} L{x - 17} {y}" class="line"/>')
        body.append(f'<circle cx="{x}" cy="{y}" r="16" class="{"node" if i else "spare"}"/>')
        body.append(text(x, y + 5, str(i), "on mid"))
        said = node.word if not i else f"{node.word} {node.mass:.2f}"
        body.append(text(x, y + 31, said, "small mid"))
    return svg(500, 150, "A draft tree of five nodes, numbered as they were taken", body)


def draw_masks(nodes: list[Node]) -> str:
    mask, words, size = ancestors(nodes), [n.word for n in nodes], len(nodes)
    names = [str(i) for i in range(size)]

    def right(i: int, j: int) -> str:
        return "sees" if mask[i][j] else ""

    def causal(i: int, j: int) -> str:
        if mask[i][j]:
            return "sees"
        return "wrong" if j <= i else ""

    gap = size * CELL + 90
    body = [text(60, 18, "the tree's mask"), *matrix(60, 48, words, right, names)]
    body += [text(60 + gap, 18, "bug 4: a chain's"), *matrix(60 + gap, 48, words, causal, names)]
    return svg(
        60 + gap + size * CELL + 20, 48 + size * CELL + 14, "Tree mask and causal mask", body
    )


def flat(nodes: list[Node], prefixes: tuple[int, ...]) -> list[bool]:
    """The masks of a batch one after another: `prefix + Q` cells a row, Q rows a request."""
    mask = ancestors(nodes)
    return [seen for p in prefixes for row in mask for seen in [True] * p + row]


def draw_offsets(nodes: list[Node]) -> str:
    """What request 1 reads when the mask of request 0 is thought to be BLOCK rows of p + BLOCK."""
    prefixes, mask, size = (2, 3), ancestors(nodes), len(nodes)
    cells, start = flat(nodes, prefixes), BLOCK * (prefixes[0] + BLOCK)
    stride = prefixes[1] + size
    words = [n.word for n in nodes]
    names = [*("p" * prefixes[1]), *(str(i) for i in range(size))]

    def truth(i: int, j: int) -> bool:
        return j < prefixes[1] or mask[i][j - prefixes[1]]

    def right(i: int, j: int) -> str:
        return "sees" if truth(i, j) else ""

    def wrong(i: int, j: int) -> str:
        read = cells[start + i * stride + j]
        if read and truth(i, j):
            return "sees"
        return "wrong" if read else ("lost" if truth(i, j) else "")

    gap = stride * CELL + 90
    body = [text(60, 18, "request 1 as written"), *matrix(60, 48, words, right, names)]
    body += [
        text(60 + gap, 18, "bug 2: as read by the block"),
        *matrix(60 + gap, 48, words, wrong, names),
    ]
    return svg(
        60 + gap + stride * CELL + 20, 48 + size * CELL + 14, "Mask read at a wrong place", body
    )


def draw_widths(nodes: list[Node]) -> str:
    """Bug 1: a graph captured for BLOCK rows does not fit a pass of budget + 1."""
    body = []
    rows = ((f"rows of a verify pass (budget + 1 = {len(nodes)})", len(nodes), "sees"),
            (f"rows of the captured graph (block = {BLOCK})", BLOCK, "wrong"))  # fmt: skip
    for k, (said, count, css) in enumerate(rows):
        y = 30 + k * 62
        body.append(text(20, y - 8, said))
        for i in range(count):
            x = 20 + i * CELL
            body.append(f'<rect x="{x + 3}" y="{y + 3}" width="20" height="20" class="{css}"/>')
            body.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" class="grid"/>')
    body.append(text(20 + len(nodes) * CELL + 20, 110, "no graph fits: every pass runs eagerly"))
    return svg(460, 130, "A graph of the wrong width is never replayed", body)


def draw_sampler(nodes: list[Node]) -> str:
    """Bug 3: the children of the root on the coin's scale, in link order."""
    target = (("cat", 0.5, "sees"), ("dog", 0.2, "sees"), ("all others", 0.3, "spare"))
    children = [n.word for n in nodes if n.parent == 0]
    body, left, scale = (
        [text(20, 22, "the target's probabilities after the root, children first")],
        20.0,
        420,
    )
    for word, p, css in target:
        if css == "sees" and word not in children:
            raise ValueError(f"{word} is no child of the root: the picture would be wrong")
        body.append(f'<rect x="{left:g}" y="34" width="{p * scale:g}" height="30" class="{css}"/>')
        body.append(f'<rect x="{left:g}" y="34" width="{p * scale:g}" height="30" class="grid"/>')
        body.append(text(left + p * scale / 2, 54, f"{word} {p}", "on mid"))
        left += p * scale
    coin = 20 + 0.62 * scale
    body.append(f'<path d="M{coin:g} 92 L{coin:g} 66" class="line"/>')
    body.append(text(coin, 106, "coin 0.62: dog", "small mid"))
    return svg(460, 118, "One coin a node, thrown on the target's own scale", body)


def pictures() -> dict[str, str]:
    nodes = search()
    return {
        "ddtree-tree.svg": draw_tree(nodes),
        "ddtree-bug1-width.svg": draw_widths(nodes),
        "ddtree-bug2-offsets.svg": draw_offsets(nodes),
        "ddtree-bug3-sampling.svg": draw_sampler(nodes),
        "ddtree-bug4-causal.svg": draw_masks(nodes),
    }


def main(argv: list[str]) -> int:
    if argv == ["--check"]:
        stale = [n for n, s in pictures().items() if not _same(OUT / n, s)]
        if stale:
            print(
                f"stale: {', '.join(stale)}. next: python tools/draw_tree_masks.py", file=sys.stderr
            )
        return 1 if stale else 0
    if argv:
        print(__doc__, file=sys.stderr)
        return 2
    OUT.mkdir(parents=True, exist_ok=True)
    for name, content in pictures().items():
        (OUT / name).write_text(content)
    return 0


def _same(file: Path, content: str) -> bool:
    return file.exists() and file.read_text() == content


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
