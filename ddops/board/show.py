"""Cells of the overview: text with a tone. Pure; how a tone looks is the drawing's matter.

A stale value keeps its text behind `~`, so that it is told apart without colours too. What is too
old to say anything is `?`. A value that was looked at and is not there is `-`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from ddops.board.figures import Figure, commit_length, last_run, load_of, speed
from ddops.board.judge import (
    device_word,
    drift_word,
    health_word,
    reach_word,
    throttle_words,
    unit_word,
)
from ddops.board.model import (
    DRIFT_EVERY_S,
    Books,
    Fresh,
    Gpu,
    HostState,
    ServiceSeen,
    freshness,
)
from ddops.board.report import span
from ddops.model import State, short


class Tone(Enum):
    """What a text means; a style is found for it where it is drawn."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    DIM = "dim"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its tone."""

    text: str
    tone: Tone = Tone.PLAIN


#: Long words of `health_word`, for a narrow column.
_BRIEF = {"not listening": "no port", "port not ours": "foreign", "wrong identity": "wrong id"}
UNKNOWN = Cell("?", Tone.WARN)
NONE = Cell("-", Tone.DIM)


@dataclass(frozen=True, slots=True)
class Row:
    """What a line of the overview is about: a host, and one of its services or none."""

    state: HostState
    service: str
    books: Books
    now: float

    @property
    def key(self) -> str:
        return f"{self.state.spec.name}/{self.service}"

    @property
    def seen(self) -> ServiceSeen | None:
        look = self.state.look
        return look.services.get(self.service) if look is not None else None

    def aged(self, make: Callable[[], Cell]) -> Cell:
        """A value of the last look: as it is, marked stale, or unknown."""
        fresh = self.state.fresh(self.now)
        if self.state.look is None or fresh is Fresh.LOST:
            return UNKNOWN
        cell = make()
        if fresh is Fresh.NOW or cell in (UNKNOWN, NONE):
            return cell
        return Cell(f"~{cell.text}", Tone.DIM)


def host(row: Row) -> Cell:
    tag = {"lab": " [lab]", "shipped": " [shipped]"}.get(row.state.spec.origin, "")
    return Cell(row.state.spec.name + tag)


def service(row: Row) -> Cell:
    return Cell(row.service) if row.service else NONE


def reach(row: Row) -> Cell:
    word = reach_word(row.state, row.now)
    tone = {"up": Tone.GOOD, "no answer": Tone.BAD}.get(word, Tone.WARN)
    return Cell(word, tone)


def age(row: Row) -> Cell:
    seconds = row.state.age(row.now)
    if seconds is None:
        return Cell("never", Tone.WARN)
    tone = {Fresh.NOW: Tone.DIM, Fresh.STALE: Tone.WARN, Fresh.LOST: Tone.BAD}
    return Cell(span(seconds), tone[row.state.fresh(row.now)])


def unit(row: Row) -> Cell:
    def make() -> Cell:
        if row.state.look is not None and not row.state.look.provisioned:
            return Cell("bare", Tone.DIM)
        if row.seen is None:
            return NONE
        if row.seen.observation.launch is None:
            return Cell("never", Tone.DIM)
        word = unit_word(row.seen.observation)
        if row.seen.observation.engine is State.UP and word in ("up", "active"):
            # What is served by a stand-in or on a CPU is never to be taken for a GPU's.
            return Cell(f"up {device_word(row.seen.observation)}".strip(), Tone.GOOD)
        return Cell(word, Tone.BAD)

    return row.aged(make)


def release(row: Row) -> Cell:
    def make() -> Cell:
        launch = row.seen.observation.launch if row.seen is not None else None
        return NONE if launch is None else Cell(short(launch.release)[:8])

    return row.aged(make)


def gate(row: Row) -> Cell:
    """What the engine shows now: its health, its identity, and whether its release passed."""

    def make() -> Cell:
        if row.seen is None or row.seen.observation.launch is None:
            return NONE
        if row.seen.observation.engine is not State.UP:
            return Cell("down", Tone.BAD)
        follower = row.state.spec.follows(row.service)
        word = health_word(row.seen.observation, row.seen.committed, follower=follower)
        word = _BRIEF.get(word, word)
        return Cell(word, {"ok": Tone.GOOD, "ungated": Tone.WARN}.get(word, Tone.BAD))

    return row.aged(make)


def queue(row: Row) -> Cell:
    """Running and waiting requests."""

    def make() -> Cell:
        load = load_of(row.state, row.service)
        if load is None or load.running is None:
            return NONE
        waiting = load.queued or 0.0
        return Cell(f"{load.running:.0f}+{waiting:.0f}", Tone.WARN if waiting else Tone.PLAIN)

    return row.aged(make)


def tokens(row: Row) -> Cell:
    return _figure(row, speed(row.state, row.service, row.books.runs), "{:.0f}")


def commit(row: Row) -> Cell:
    return _figure(row, commit_length(row.state, row.service, row.books.runs), "{:.1f}")


def _figure(row: Row, figure: Figure | None, form: str) -> Cell:
    if figure is None:
        return row.aged(lambda: NONE)
    if figure.at is not None:  # the ledger's, with an age of its own
        text = (
            f"{form.format(figure.value)}{figure.mark} {span(row.now - figure.at)}{figure.device}"
        )
        return Cell(text, Tone.DIM)
    if figure.value is None:
        return row.aged(lambda: Cell("idle", Tone.DIM))
    text = f"{form.format(figure.value)}{figure.mark}"
    return row.aged(lambda: Cell(text))


def _cards(row: Row, make: Callable[[Sequence[Gpu]], Cell]) -> Cell:
    def of() -> Cell:
        look = row.state.look
        if look is None or look.gpus is None:
            why = look.gpus_why if look is not None else ""
            return NONE if why.startswith("no nvidia-smi") else UNKNOWN
        return make(look.gpus) if look.gpus else NONE

    return row.aged(of)


def busy(row: Row) -> Cell:
    """How many GPUs, and their mean utilisation."""

    def make(cards: Sequence[Gpu]) -> Cell:
        known = [g.util_pct for g in cards if g.util_pct is not None]
        share = f"{sum(known) / len(known):.0f}%" if len(known) == len(cards) else "?"
        return Cell(f"{len(cards)}x {share}")

    return _cards(row, make)


def memory(row: Row) -> Cell:
    def make(cards: Sequence[Gpu]) -> Cell:
        used = [g.used_mb for g in cards if g.used_mb is not None]
        total = [g.total_mb for g in cards if g.total_mb is not None]
        if len(used) != len(cards) or len(total) != len(cards) or not sum(total):
            return UNKNOWN
        return Cell(f"{100 * sum(used) / sum(total):.0f}%")

    return _cards(row, make)


def power(row: Row) -> Cell:
    def make(cards: Sequence[Gpu]) -> Cell:
        watts = [g.power_w for g in cards if g.power_w is not None]
        return Cell(f"{sum(watts):.0f}W") if len(watts) == len(cards) else UNKNOWN

    return _cards(row, make)


def throttle(row: Row) -> Cell:
    def make(cards: Sequence[Gpu]) -> Cell:
        words = {w for g in cards if (w := throttle_words(g))}
        if "?" in words:
            return UNKNOWN
        return Cell(", ".join(sorted(words)), Tone.WARN) if words else Cell("no", Tone.DIM)

    return _cards(row, make)


def drift(row: Row) -> Cell:
    word, seen = drift_word(row.state), row.state.drift
    if seen is None:
        return Cell("", Tone.DIM)
    if not any(r.service == row.service for r in seen.rows) and not seen.error:
        return NONE
    old = freshness(row.now - seen.at, DRIFT_EVERY_S)
    if old is Fresh.LOST or word == "?":
        return UNKNOWN
    text = f"{word} {span(row.now - seen.at)}"
    if old is Fresh.STALE or row.state.fresh(row.now) is not Fresh.NOW:
        return Cell(f"~{text}", Tone.DIM)
    return Cell(text, Tone.BAD if word == "drift" else Tone.DIM)


def run(row: Row) -> Cell:
    """Age of the newest run that counts, of what runs there now."""
    found = last_run(row.state, row.service, row.books.runs)
    if found is None:
        return NONE
    return Cell(f"{span(row.now - found.at)} {found.device_class}")


def snapshot(row: Row) -> Cell:
    kept = row.books.hosts.get(row.state.spec.name)
    if kept is None or kept.snapshot_at is None:
        return NONE
    return Cell(span(row.now - kept.snapshot_at))


def drill(row: Row) -> Cell:
    kept = row.books.hosts.get(row.state.spec.name)
    if kept is None or kept.drill_at is None:
        return NONE
    good = kept.drill_verdict == "PASS"
    text = span(row.now - kept.drill_at) + ("" if good else " FAIL")
    return Cell(text, Tone.PLAIN if good else Tone.BAD)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, width, how it is made, and when it is left out (the highest first)."""

    head: str
    width: int
    make: Callable[[Row], Cell]
    rank: int = 0


COLUMNS = (
    Column("HOST", 12, host),
    Column("REACH", 9, reach),
    Column("AGE", 5, age),
    Column("SERVICE", 9, service, 5),
    Column("UNIT", 8, unit),
    Column("RELEASE", 9, release, 3),
    Column("GATE", 9, gate),
    Column("QUEUE", 6, queue, 1),
    Column("TOK/S", 8, tokens),
    Column("COMMIT", 8, commit, 2),
    Column("DRIFT", 9, drift),
    Column("GPU", 8, busy, 1),
    Column("MEM", 5, memory, 3),
    Column("POWER", 7, power, 4),
    Column("THROTTLE", 11, throttle, 4),
    Column("RUN", 8, run, 6),
    Column("SNAP", 5, snapshot, 6),
    Column("DRILL", 8, drill, 6),
)


def columns_for(width: int, hosts: Sequence[str] = ()) -> list[Column]:
    """The columns that fit, one blank between two; those of the highest rank go first."""
    longest = max((len(h) for h in hosts), default=0)
    name = max(6, min(longest, 24))
    chosen = [Column(c.head, name, c.make) if c.head == "HOST" else c for c in COLUMNS]
    while sum(c.width + 1 for c in chosen) > width and len(chosen) > 2:
        worst = max(range(2, len(chosen)), key=lambda i: (chosen[i].rank, i))
        del chosen[worst]
    return chosen


def trouble(row: Row) -> int:
    """How much a line wants to be seen: what does not answer first, what is well last."""
    cells = (reach(row), unit(row), gate(row), drift(row), throttle(row))
    order = {Tone.BAD: 4, Tone.WARN: 2}
    return sum(order.get(c.tone, 0) for c in cells)


def matches(row: Row, words: str) -> bool:
    """Whether every word stands somewhere in the line: a name, a group, a state."""
    text = " ".join(
        (*(c.make(row).text for c in COLUMNS), *row.state.spec.groups, row.state.spec.kind)
    ).lower()
    return all(w in text for w in words.lower().split())
