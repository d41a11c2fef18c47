"""The page of one host, as lines of pieces with a tone. Pure.

What the last look saw is dimmed when it is stale and left out when it is too old; what the ledger
holds stays, with its own age.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddops.board.figures import Figure, commit_length, last_run, speed
from ddops.board.glyphs import Glyphs, bar
from ddops.board.judge import device_word, ladder_now, reach_word, throttle_words, unit_word
from ddops.board.model import (
    Books,
    Fresh,
    GateSeen,
    Gpu,
    HostState,
    ServiceSeen,
    ServiceSpec,
)
from ddops.board.report import span
from ddops.board.show import Cell, Tone
from ddops.model import State, short

Line = Sequence[Cell]
LOG_LINES, FINDINGS = 12, 8
_TONES = {
    "PASS": Tone.GOOD, "FAIL": Tone.BAD, "WARN": Tone.WARN, "UNKNOWN": Tone.WARN,
    "SKIP": Tone.DIM, "INFO": Tone.DIM,
}  # fmt: skip
_GONE = "? nothing is known of now; what was seen last is too old to show"


def host_page(
    state: HostState, books: Books, now: float, width: int, signs: Glyphs
) -> list[Line]:  # fmt: skip
    """Every line of the page. None is wrapped; the drawing cuts them."""
    out = [*_head(state, now)]
    fresh = state.fresh(now)
    if state.look is None or fresh is Fresh.LOST:
        out.append([Cell(_GONE, Tone.WARN)])
    else:
        observed = [*_observed(state, books, now, width, signs)]
        out += observed if fresh is Fresh.NOW else [_dimmed(li) for li in observed]
    out += _recorded(state, books, now, signs)
    out += _drift(state, now)
    if state.look is not None and fresh is not Fresh.LOST:
        out += _log(state, dim=True)
    return out


def _dimmed(line: Line) -> Line:
    return [Cell(c.text, Tone.DIM) for c in line]


def _head(state: HostState, now: float) -> Iterator[Line]:
    spec, age = state.spec, state.age(now)
    word = reach_word(state, now)
    tone = {"up": Tone.GOOD, "no answer": Tone.BAD}.get(word, Tone.WARN)
    tag = "" if spec.origin == "project" else f" [{spec.origin}]"
    seen = "never seen" if age is None else f"seen {span(age)} ago"
    line = [Cell(f"{spec.name}{tag} ", Tone.HEAD), Cell(word, tone), Cell(f", {seen}", Tone.DIM)]
    if spec.simulated:
        line.append(Cell("  simulated: a recorded host, no hardware", Tone.WARN))
    if words := dict.fromkeys(w for w in (spec.kind, *spec.groups) if w):
        line.append(Cell(f"  {' '.join(words)}", Tone.DIM))
    yield line
    if state.error:
        lost = now - state.since if state.since is not None else 0.0
        tries = "1 try" if state.failures == 1 else f"{state.failures} tries"
        yield [Cell(f"no answer for {span(lost)}, {tries}: ", Tone.BAD), Cell(state.error)]


def _observed(
    state: HostState, books: Books, now: float, width: int, signs: Glyphs
) -> Iterator[Line]:  # fmt: skip
    look = state.look
    if look is None:
        return
    if not look.provisioned:
        yield [Cell("not provisioned: ", Tone.WARN), Cell(f"ddops provision {state.spec.name}")]
    if look.held is not None:
        yield [Cell("locked ", Tone.WARN), Cell(f"by {look.held.describe()}")]
    for service in state.spec.services:
        if (seen := look.services.get(service.name)) is not None:
            yield from _service(state, service, seen, books, now, width)
    yield []
    if look.gpus is None:
        yield [Cell("GPUs ", Tone.HEAD), Cell(f"not seen: {look.gpus_why}", Tone.DIM)]
    else:
        yield from _gpus(look.gpus, width, signs)


def _service(
    state: HostState, service: ServiceSpec, seen: ServiceSeen, books: Books, now: float, width: int
) -> Iterator[Line]:
    o = seen.observation
    launch, up = o.launch, o.engine is State.UP
    word = unit_word(o)
    tone = Tone.GOOD if up and word in ("up", "active") else Tone.BAD
    since = f" {span(o.uptime_s)}" if up and o.uptime_s is not None else ""
    line = [Cell(f"{service.name} ", Tone.HEAD), Cell(word + since, tone)]
    if device := device_word(o):
        line.append(Cell(f" {device}", Tone.WARN))
    if launch is not None:
        passed = seen.committed == launch.release
        line.append(Cell(f"  release {short(launch.release)} nonce {launch.nonce}"))
        line.append(Cell(" committed" if passed else " NOT committed",
                         Tone.GOOD if passed else Tone.WARN))  # fmt: skip
    line.append(Cell(f"  {service.listen}:{service.port}", Tone.DIM))
    yield line
    if not up and o.engine_why:
        yield [Cell(f"  {o.engine_why}", Tone.BAD)]
    if up:
        yield from _load(state, service.name, seen, books, now)
    recorded = books.gates.get(launch.nonce, ()) if launch is not None else ()
    if launch is not None:
        yield from _ladder(seen, recorded, now, width)


def _load(
    state: HostState, name: str, seen: ServiceSeen, books: Books, now: float
) -> Iterator[Line]:
    load = seen.load
    if load.running is not None:
        yield [Cell(f"  {load.running:.0f} running, {load.queued or 0:.0f} waiting", Tone.PLAIN),
               Cell("  (/metrics)", Tone.DIM)]  # fmt: skip
    else:
        status = "was not asked" if load.status is None else f"answered {load.status}"
        yield [Cell("  queue ?", Tone.WARN), Cell(f"  (/metrics {status})", Tone.DIM)]
    figures = (
        ("tok/s", speed(state, name, books.runs), "{:.1f}"),
        ("commit length", commit_length(state, name, books.runs), "{:.2f}"),
    )
    for what, figure, form in figures:
        yield _figure_line(what, figure, form, now)


def _figure_line(what: str, figure: Figure | None, form: str, now: float) -> Line:
    if figure is None:
        return [Cell(f"  {what} ?", Tone.WARN), Cell("  nothing tells it", Tone.DIM)]
    value = "idle" if figure.value is None else form.format(figure.value)
    age = "" if figure.at is None else f", {span(now - figure.at)} ago"
    return [Cell(f"  {what} {value}"), Cell(f"  ({figure.source}{age})", Tone.DIM)]


def _ladder(
    seen: ServiceSeen, recorded: Sequence[GateSeen], now: float, width: int
) -> Iterator[Line]:
    """Each gate as it is now, as far as a look can tell, and as it was at this start."""
    live = {name: (verdict.value, words) for name, verdict, words in ladder_now(seen)}
    then = {g.name: g for g in recorded}
    room = max(20, min(56, width - 46))
    for name in sorted({*live, *then}):
        verdict, words = live.get(name, ("", then[name].message if name in then else ""))
        line = [
            Cell(f"  {name[:14]:<14} "),
            Cell(f"{verdict:<8}", _TONES.get(verdict, Tone.PLAIN)),
            Cell(f"{words[:room]:<{room}}"),
        ]
        if name in then:
            gate = then[name]
            line.append(Cell(" start ", Tone.DIM))
            line.append(Cell(gate.verdict, _TONES.get(gate.verdict, Tone.PLAIN)))
            line.append(Cell(f" {span(now - gate.at)}", Tone.DIM))
        yield line
    if not recorded:
        yield [Cell("  no gate of this start is in the ledger here", Tone.DIM)]


def _gpus(cards: Sequence[Gpu], width: int, signs: Glyphs) -> Iterator[Line]:
    names = sorted({g.name for g in cards})
    yield [Cell(f"GPUs {len(cards)}x {', '.join(names)}", Tone.HEAD),
           Cell("  use, memory, power, temperature, clocks", Tone.DIM)]  # fmt: skip
    wide = max(6, min(24, (width - 54) // 2))
    for g in cards:
        share = None if g.util_pct is None else g.util_pct / 100
        kept = g.used_mb / g.total_mb if g.used_mb is not None and g.total_mb else None
        hot = throttle_words(g)
        yield [
            Cell(f"{g.index:>3} "), Cell(bar(share, wide, signs)), Cell(f"{_n(g.util_pct):>4}% "),
            Cell(bar(kept, wide, signs)), Cell(f"{_gb(g.used_mb):>5}/{_gb(g.total_mb)}G "),
            Cell(f"{_n(g.power_w):>4}/{_n(g.limit_w)}W {_n(g.temp_c):>3}C "),
            Cell(hot or "full clocks", Tone.DIM if not hot else Tone.WARN),
        ]  # fmt: skip


def _n(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def _gb(megabytes: float | None) -> str:
    return "?" if megabytes is None else f"{megabytes / 1024:.0f}"


def _recorded(state: HostState, books: Books, now: float, signs: Glyphs) -> Iterator[Line]:
    yield []
    if books.error:
        yield [Cell("ledger ", Tone.HEAD), Cell(books.error, Tone.WARN)]
        return
    kept = books.hosts.get(state.spec.name)
    if kept is None:
        yield [Cell("ledger ", Tone.HEAD), Cell("holds nothing of this host", Tone.DIM)]
        return
    line = [Cell("snapshot ", Tone.HEAD)]
    line.append(Cell("none", Tone.WARN) if kept.snapshot_at is None else
                Cell(f"{span(now - kept.snapshot_at)} ago, {kept.snapshot_copies}"))  # fmt: skip
    line.append(Cell("  drill ", Tone.HEAD))
    if kept.drill_at is None:
        line.append(Cell("never", Tone.WARN))
    else:
        tone = Tone.GOOD if kept.drill_verdict == "PASS" else Tone.BAD
        line.append(Cell(f"{kept.drill_verdict} {span(now - kept.drill_at)} ago", tone))
    yield line
    newest = [r for s in state.spec.services if (r := last_run(state, s.name, books.runs))]
    line = [Cell("last run ", Tone.HEAD)]  # a line of its own: 80 columns would cut it off
    if newest:
        run = max(newest, key=lambda r: r.at)
        line.append(Cell(f"{run.id[:8]} {run.device_class} {span(now - run.at)} ago"))
    else:
        line.append(Cell("none that counts, of what runs now", Tone.DIM))
    yield line
    if kept.facts_at is None:
        yield [Cell("checks ", Tone.HEAD), Cell("no facts kept: ", Tone.WARN),
               Cell(f"ddops probe {state.spec.name}")]  # fmt: skip
        return
    counts = ", ".join(f"{n} {v}" for v, n in kept.counts.items())
    told = " (simulated)" if kept.simulated else ""
    yield [Cell("checks ", Tone.HEAD), Cell(counts),
           Cell(f"  of facts {span(now - kept.facts_at)} old{told}", Tone.DIM)]  # fmt: skip
    for f in kept.findings[:FINDINGS]:
        yield [Cell(f"  {f.verdict:<7} ", _TONES.get(f.verdict, Tone.PLAIN)),
               Cell(f"{f.check} {f.title}: {f.seen}")]  # fmt: skip
    if len(kept.findings) > FINDINGS:
        more = f"  {len(kept.findings) - FINDINGS} more: ddops check {state.spec.name}"
        yield [Cell(more, Tone.DIM)]


def _drift(state: HostState, now: float) -> Iterator[Line]:
    seen = state.drift
    if seen is None:
        yield [Cell("drift ", Tone.HEAD), Cell("not looked for yet", Tone.DIM)]
        return
    age = f"  looked for {span(now - seen.at)} ago"
    if seen.error:
        yield [Cell("drift ", Tone.HEAD), Cell("? ", Tone.WARN), Cell(seen.error),
               Cell(age, Tone.DIM)]  # fmt: skip
        return
    odd = [r for r in seen.rows if r.verdict != "same"]
    words = f"{len(odd)} of {len(seen.rows)} things differ" if odd else "none"
    if not seen.rows:
        words = "nothing was released here"
    yield [Cell("drift ", Tone.HEAD), Cell(words, Tone.BAD if odd else Tone.PLAIN),
           Cell(age, Tone.DIM)]  # fmt: skip
    for r in odd:
        tone = Tone.BAD if r.verdict == "drift" else Tone.WARN
        yield [Cell(f"  {r.what}: ", tone), Cell(f"{r.observed}, released {r.recorded}")]


def _log(state: HostState, *, dim: bool) -> Iterator[Line]:
    tone = Tone.DIM if dim else Tone.PLAIN
    for name, seen in (state.look.services if state.look else {}).items():
        lines = seen.observation.log_tail.splitlines()
        if lines:
            yield []
            yield [Cell(f"log of {name}", Tone.HEAD)]
            yield from ([Cell(printable(li), tone)] for li in lines[-LOG_LINES:])


def printable(text: str) -> str:
    """One line without control characters: a host's escape sequences stay out of the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
