"""A router on the board: its line of the overview, and its page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddops.board.detail import Line
from ddops.board.report import span
from ddops.board.routers import UNKNOWN, RouterState, now_of, served
from ddops.board.show import NONE, Cell, Column, Tone
from ddops.model import short

_STATE = {"up": Tone.GOOD, "DOWN": Tone.BAD}
_HEALTH = {"ok": Tone.GOOD, "unhealthy": Tone.BAD}


@dataclass(frozen=True, slots=True)
class RouterRow:
    """Its line of the overview: the columns of a GPU, a release or a gate say nothing of it."""

    state: RouterState
    now: float

    @property
    def key(self) -> str:
        return f"{self.state.spec.key}/"

    def cells(self, columns: Sequence[Column]) -> list[Cell]:
        made = self._cells()
        return [made.get(c.head, NONE) for c in columns]

    def _cells(self) -> Mapping[str, Cell]:
        spec, look, age = self.state.spec, now_of(self.state, self.now), self.state.age(self.now)
        tag = {"lab": " [lab]", "shipped": " [shipped]"}.get(spec.origin, "")
        tone = _STATE.get(look.state, Tone.WARN)
        behind = served(look)
        whole = behind == f"{len(look.replicas)}/{len(look.replicas)} ok"
        return {
            "HOST": Cell(spec.host + tag),
            "REACH": Cell(look.state, tone),
            "AGE": Cell("never", Tone.WARN) if age is None else Cell(span(age), Tone.DIM),
            "SERVICE": Cell(spec.name),
            "UNIT": Cell("router", Tone.DIM),
            "GATE": Cell(behind, Tone.GOOD if whole and look.state == "up" else Tone.WARN),
        }

    @property
    def trouble(self) -> int:
        order = {Tone.BAD: 4, Tone.WARN: 2}
        return sum(order.get(c.tone, 0) for c in self._cells().values())

    def matches(self, words: str) -> bool:
        text = " ".join(c.text for c in self._cells().values()).lower()
        return all(w in text for w in words.lower().split())


def router_page(state: RouterState, now: float) -> list[Line]:
    """Every line of a router's page."""
    return list(_lines(state, now))


def _lines(state: RouterState, now: float) -> Iterator[Line]:
    spec, look, age = state.spec, now_of(state, now), state.age(now)
    seen = "never seen" if age is None else f"seen {span(age)} ago"
    yield [
        Cell(f"{spec.name} ", Tone.HEAD), Cell(look.state, _STATE.get(look.state, Tone.WARN)),
        Cell(f" on {spec.host}, {spec.url}, {seen}", Tone.DIM),
    ]  # fmt: skip
    if look.why:
        yield [Cell(f"  {look.why}", Tone.BAD if look.state == "DOWN" else Tone.WARN)]
    if look.state == UNKNOWN:
        yield [Cell("  what it serves is not known", Tone.WARN)]
    yield []
    yield [Cell(f"replicas  {served(look)}", Tone.HEAD)]
    for one in look.replicas:
        yield [
            Cell(f"  {one.name:<16} "), Cell(one.health, _HEALTH.get(one.health, Tone.WARN)),
            Cell(f"  release {short(one.release)} nonce {one.nonce}"),
            Cell(f"  {one.url}", Tone.DIM),
        ]  # fmt: skip
        if one.note:  # below it: at 80 columns it would be cut off, and it says what to do
            yield [Cell(f"  {'':<16} {one.note}", Tone.WARN)]
