"""Vector plots. Pure: series in, SVG text out, the same for the same numbers.

Colours are Okabe and Ito's, which people with any kind of colour blindness can tell apart; each
series has a marker and dashes of its own besides, for print in grey. Letters are drawn as paths: a
page looks alike on every machine.

Only this module loads matplotlib, and only when a report is drawn.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8a7a00",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[tuple[float, ...], ...] = (
    (), (5, 2), (1, 1.5), (6, 2, 1, 2), (3, 1.5), (8, 3), (4, 1, 1, 1, 1, 1), (2, 3),
)  # fmt: skip
#: Series in one picture; more cannot be told apart.
MOST = len(COLOURS)
#: Letters of a name in a picture; tables have the whole name. Longer than this: one name a line.
LONGEST, TWO_COLUMNS = 64, 36
#: Share of the plot's width and height that a label needs for itself.
ROOM = (0.04, 0.055)


@dataclass(frozen=True, slots=True)
class Point:
    """`low` and `high` bound `y`; `label` is written beside it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """`style` picks colour, marker and dashes: one configuration looks alike in all pictures.

    `apart` are points of the same look that are not joined.
    """

    name: str
    points: tuple[Point, ...]
    style: int = 0
    apart: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the x axis with a line at `at`; `lines` are what meets there, end to end."""

    low: float
    high: float
    at: float | None
    name: str
    ends: tuple[float, float] = (0.0, 0.0)
    lines: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """`ticks` are the only ones there, where given."""

    label: str
    log: bool = False
    ticks: tuple[float, ...] = ()


def lines(
    series: Sequence[Series], x: Axis, y: Axis, *, bands: Sequence[Band] = (), note: str = ""
) -> str:
    """Points with error bars, joined where a series has more than one."""
    with _figure() as (figure, axes):
        for band in bands:
            axes.axvspan(band.low, band.high, color="#bbbbbb", alpha=0.35, lw=0, label=band.name)
            for pair in band.lines:
                axes.plot(band.ends, pair, color="#777777", lw=1, zorder=1.5)
            if band.at is not None:
                axes.axvline(band.at, color="#555555", lw=1.2, ls=(0, (2, 2)))
        for s in series:
            _series(axes, s)
        _axes(axes, x, y)
        _labels(axes, series)
        _legend(figure, axes)
        if note:
            axes.set_title(note, fontsize=9, loc="left", color="#8a3c00")
        return _svg(figure)


def steps(series: Sequence[Series], x: Axis, y: Axis, *, note: str = "") -> str:
    """Cumulative shares, drawn as steps; no markers but a few to tell them apart."""
    with _figure() as (figure, axes):
        for s in series:
            style = s.style % MOST
            axes.step(
                [p.x for p in s.points], [p.y for p in s.points], where="post",
                color=COLOURS[style], dashes=DASHES[style] or (None, None), lw=1.8,
                marker=MARKERS[style], markevery=max(1, len(s.points) // 6), ms=5, label=s.name,
            )  # fmt: skip
        _axes(axes, x, y)
        axes.set_ylim(0, 1.02)
        _legend(figure, axes)
        if note:
            axes.set_title(note, fontsize=9, loc="left", color="#8a3c00")
        return _svg(figure)


def spans(rows: Sequence[tuple[str, float, float, float, int]], x: Axis, *, note: str = "") -> str:
    """One row a name: (name, low, value, high, style), as a dot on its interval."""
    with _figure(height=1.1 + 0.36 * max(2, len(rows))) as (figure, axes):
        for i, (_, low, value, high, style) in enumerate(rows):
            place, colour = len(rows) - 1 - i, COLOURS[style % MOST]
            axes.plot([low, high], [place, place], color=colour, lw=4, solid_capstyle="butt")
            axes.plot([value], [place], marker=MARKERS[style % MOST], color=colour, ms=8,
                      mec="white")  # fmt: skip
        axes.set_yticks(range(len(rows)), [_short(r[0], TWO_COLUMNS) for r in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlim(left=0)
        axes.set_xlabel(x.label)
        axes.grid(True, axis="x", color="#dddddd", lw=0.8)
        if note:
            axes.set_title(note, fontsize=9, loc="left", color="#8a3c00")
        return _svg(figure)


def _series(axes: Axes, s: Series) -> None:
    style = s.style % MOST
    for points, joined in ((s.points, True), (s.apart, False)):
        if not points:
            continue
        ys = [p.y for p in points]
        below = [p.y - p.low if p.low is not None else 0.0 for p in points]
        over = [p.high - p.y if p.high is not None else 0.0 for p in points]
        axes.errorbar(
            [p.x for p in points], ys, yerr=[below, over] if any(below + over) else None,
            color=COLOURS[style], marker=MARKERS[style], ms=6, lw=1.8,
            ls="-" if joined else "none",
            dashes=DASHES[style] if joined and DASHES[style] else (None, None),
            capsize=3, elinewidth=1.2, mec="white", mew=0.6,
            label=s.name if joined or not s.points else None,
        )  # fmt: skip


def _labels(axes: Axes, series: Sequence[Series]) -> None:
    """Written beside points; the ends of each series first, and never over another label."""
    ends = [(s, p) for s in series for p in (s.points[:1] + s.points[1:][-1:])]
    inner = [(s, p) for s in series for p in (*s.points[1:-1], *s.apart)]
    placed: list[tuple[float, float]] = []
    for s, p in (*ends, *inner):
        if not p.label:
            continue
        at = axes.transData.transform((p.x, p.y)) - axes.bbox.min
        where = (at[0] / axes.bbox.width, at[1] / axes.bbox.height)
        if any(abs(where[0] - a) < ROOM[0] and abs(where[1] - b) < ROOM[1] for a, b in placed):
            continue
        placed.append(where)
        axes.annotate(p.label, (p.x, p.y), xytext=(5, 5), textcoords="offset points",
                      fontsize=8, color=COLOURS[s.style % MOST])  # fmt: skip


def _axes(axes: Axes, x: Axis, y: Axis) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    for axis, scale, margin, told in (
        (axes.xaxis, axes.set_xscale, axes.set_xlim, x),
        (axes.yaxis, axes.set_yscale, axes.set_ylim, y),
    ):
        if told.log:
            scale("log")
            low, high = margin()
            low, high = margin(low / 1.08, high * 1.12)  # room for what is written beside points
            if high / low < 3:  # too short for ticks of their own: widen to where there are some
                margin(low / 1.3, high * 1.3)
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        if told.ticks:
            axis.set_major_locator(FixedLocator(list(told.ticks)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    if not y.log:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x.label)
    axes.set_ylabel(y.label)
    axes.grid(True, color="#dddddd", lw=0.8)


def _legend(figure: Figure, axes: Axes) -> None:
    """Below the plot: beside or in it, it would cover points."""
    handles, names = axes.get_legend_handles_labels()
    names = [_short(n) for n in names]
    if names:
        narrow = len(names) > 1 and max(map(len, names)) <= TWO_COLUMNS
        figure.legend(
            handles, names, loc="outside lower center", ncols=2 if narrow else 1,
            frameon=False, fontsize=9, handlelength=3.2,
        )  # fmt: skip


def _short(name: str, most: int = LONGEST) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


@contextmanager
def _figure(height: float = 4.4) -> Iterator[tuple[Figure, Axes]]:
    """A figure without any window or state of its own."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "path", "svg.hashsalt": "ddops", "font.family": "DejaVu Sans",
        "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
        "axes.axisbelow": True, "text.parse_math": False,
    }  # fmt: skip
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever a user's own matplotlibrc says
        mpl.rcParams.update(style)
        figure = Figure(figsize=(7.6, height), layout="constrained")
        yield figure, figure.add_subplot()


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with warnings.catch_warnings():
        # A letter that the font lacks is a box; the tables beside have the name.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()
