"""The pages of runs, tasks and events as rows of cells. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ddops.board.fleet import Fleet
from ddops.board.glyphs import Glyphs, sparkline
from ddops.board.model import Event, RunSeen, TaskSeen
from ddops.board.report import span
from ddops.board.show import Cell, Tone
from ddops.model import short

#: How many runs of one configuration a sparkline holds.
HISTORY = 12


@dataclass(frozen=True, slots=True)
class Listing:
    """Headings with widths, and keyed rows. `note` stands where there are no rows."""

    heads: Sequence[tuple[str, int]]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    note: str = ""

    def filtered(self, words: str) -> Listing:
        """The rows in which every word stands somewhere."""
        wanted = words.lower().split()
        kept = [
            (key, cells) for key, cells in self.rows
            if all(w in " ".join(c.text for c in cells).lower() for w in wanted)
        ]  # fmt: skip
        note = f"nothing matches {words!r}" if wanted and not kept else self.note
        return Listing(self.heads, kept, note)


def runs(fleet: Fleet, now: float, width: int, signs: Glyphs) -> Listing:
    """Newest first. A run that does not count shows no figure but says why it does not."""
    history: dict[tuple[str, str], list[float]] = defaultdict(list)
    trails: dict[str, str] = {}
    for run in sorted(fleet.books.runs, key=lambda r: r.at):
        key = (run.family, run.device_class)
        if run.counts and run.output_tps is not None:
            history[key].append(run.output_tps)
        trails[run.id] = sparkline(history[key][-HISTORY:], signs)
    label = max(8, width - 88)
    heads = [
        ("AGE", 5), ("HOST", 10), ("CLASS", 5), ("COUNTS", 9), ("CONC", 4), ("TOK/S", 8),
        ("TTFT ms", 8), ("COMMIT", 6), ("TREND", HISTORY), ("RELEASE", 8), ("LABEL", label),
    ]  # fmt: skip
    rows = [(r.id, _run(r, trails[r.id], now)) for r in fleet.books.runs]
    return Listing(heads, rows, fleet.books.error or "no run was recorded yet: ddops bench smoke")


def _run(run: RunSeen, trail: str, now: float) -> list[Cell]:
    good = run.counts

    def figure(value: float | None, form: str) -> Cell:
        return Cell("-", Tone.DIM) if value is None or not good else Cell(form.format(value))

    word = "yes" if good else ("withdrawn" if run.status == "valid" else run.status)
    return [
        Cell(span(now - run.at), Tone.DIM),
        Cell(run.host or "-"),
        Cell(run.device_class, Tone.PLAIN if run.device_class == "gpu" else Tone.WARN),
        Cell(word[:9], Tone.GOOD if good else Tone.BAD),
        Cell("-" if run.concurrency is None else str(run.concurrency)),
        figure(run.output_tps, "{:.1f}"),
        figure(run.ttft_ms, "{:.0f}"),
        figure(run.commit, "{:.2f}"),
        Cell(trail, Tone.PLAIN if good else Tone.DIM),
        Cell(short(run.release)[:8] if run.release else "-"),
        Cell((run.label or run.suite) if good else (run.reason or run.label or run.suite)),
    ]


_PRIORITY = {"high": 0, "medium": 1, "low": 2}
_STATUS = {"in_progress": 0, "blocked": 1, "pending": 2, "completed": 3}
_STATUS_TONE = {"in_progress": Tone.HEAD, "blocked": Tone.BAD, "completed": Tone.DIM}


def tasks(fleet: Fleet, now: float, width: int, signs: Glyphs) -> Listing:
    """What is being done first, then what is blocked, what waits, what is done."""
    heads = [
        ("STATUS", 11), ("PRIO", 6), ("OWNER", 10), ("RUNBOOK", 12), ("AGE", 5),
        ("TASK", max(20, width - 50)),
    ]  # fmt: skip
    found = fleet.books.tasks or ()
    order = sorted(
        found, key=lambda t: (_STATUS.get(t.status, 9), _PRIORITY.get(t.priority, 9), t.id)
    )
    note = fleet.books.error or "no tasks recorded"
    return Listing(heads, [(str(t.id), _task(t, now)) for t in order], note)


def _task(task: TaskSeen, now: float) -> list[Cell]:
    tone = _STATUS_TONE.get(task.status, Tone.PLAIN)
    words = f"{task.content}  [{task.evidence}]" if task.evidence else task.content
    return [
        Cell(task.status, tone),
        Cell(task.priority, Tone.WARN if task.priority == "high" else Tone.PLAIN),
        Cell(task.owner or "-"),
        Cell(task.run or "-"),
        Cell(_age(task.at, now), Tone.DIM),
        Cell(words, Tone.DIM if task.status == "completed" else Tone.PLAIN),
    ]


def _age(at: str, now: float) -> str:
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return "?"
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return span(max(0.0, now - moment.timestamp()))


def events(fleet: Fleet, now: float, width: int, signs: Glyphs) -> Listing:
    """Newest first: what this board saw change, and what the ledger says of deploys."""
    told = [Event(t, h, w, bad=" ok" not in w) for t, h, w in fleet.books.deployments]
    found = sorted((*fleet.events, *told), key=lambda e: e.at, reverse=True)
    heads = [("AGO", 5), ("HOST", 12), ("WHAT", max(20, width - 20))]
    rows = [
        (f"{n}", [Cell(span(max(0.0, now - e.at)), Tone.DIM), Cell(e.host),
                  Cell(e.text, Tone.BAD if e.bad else Tone.PLAIN)])
        for n, e in enumerate(found)
    ]  # fmt: skip
    return Listing(heads, rows, "nothing has changed since the board was opened")
