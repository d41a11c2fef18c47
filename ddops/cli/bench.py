"""`ddops bench`: numbers that can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddops.cli.bench_live import view
from ddops.cli.bench_more import coding, compare, regression
from ddops.cli.bench_sweep import DONE, ask, book_of, show_plan, sweep_tools, sweeps
from ddops.cli.options import as_json, targets, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.bench.runner import Measured
    from ddops.bench.target import Target
    from ddops.cli.app import App
    from ddops.inventory.suites import Kind


@click.group()
def bench() -> None:
    """Measure a deployed service; gates of correctness before any number.

    Everything is stored in the ledger, what does not count too, with its reason.
    """


def levels_option(text: str | None) -> tuple[int, ...] | None:
    """`1,2,4` as numbers, within the bounds that a suite's levels have."""
    from ddops.config.schema import decode
    from ddops.config.words import quote
    from ddops.errors import UsageError
    from ddops.inventory.suites import Levels

    if text is None:
        return None
    why = "expected numbers from 1 up, with commas between them"
    words = [word.strip() for word in text.split(",")]
    # As long as a number of 64 bits: a longer one is named by the bound as well as this one.
    if all(word.isascii() and word.isdigit() for word in words):
        found = tuple(int(word[:20]) for word in words)
        faults = decode(list(found), Levels).faults
        why = faults[0].message if faults else "a level stands there twice"
        if not faults and len(set(found)) == len(found):
            return found
    raise UsageError(f"--levels {quote(text)}: {why}", next="--levels 1,2,4")


#: `suites.MAX_RUNS`, said again: help does not load what reads suites.
MOST_RUNS = 1000
_levels = click.option("--levels", metavar="N,N", help="Other numbers of requests under way.")
_repeats = click.option(
    "--repeats", type=click.IntRange(1, MOST_RUNS), help="Other number of runs of each level."
)


@bench.command()
@targets(required=True)
@as_json
@click.pass_obj
def smoke(
    app: App, target: tuple[str, ...], limit: tuple[str, ...], exclude: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """One request at a time, briefly.

    \b
    ddops bench smoke lab
    """
    _deployed(app, "smoke", target, limit, exclude, None, None, as_json)


@bench.command()
@targets(required=True)
@_levels
@_repeats
@as_json
@click.pass_obj
def concurrency(
    app: App, target: tuple[str, ...], limit: tuple[str, ...], exclude: tuple[str, ...],
    levels: str | None, repeats: int | None, as_json: bool,
) -> None:  # fmt: skip
    """What is deployed, at rising numbers of requests under way.

    Levels above what the server runs at once are stored as void.

    \b
    ddops bench concurrency lab
    ddops bench concurrency b300 --levels 1,8,64
    """
    _deployed(app, "concurrency", target, limit, exclude, levels_option(levels), repeats, as_json)


@bench.command(short_help="Configurations compared: deployed, gated, measured.")
@targets(required=True)
@click.option("--dry-run", is_flag=True, help="Show the cells and starts; touch nothing.")
@yes
@as_json
@click.pass_obj
def sweep(
    app: App, target: tuple[str, ...], limit: tuple[str, ...], exclude: tuple[str, ...],
    dry_run: bool, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compare configurations: each is deployed, proven, gated and measured.

    What is measured, and how often, stands in suites/<service>/sweep.toml. A cell with enough valid
    runs is left alone, so the same command goes on after a stop. At the end the service's own
    profile is live again.

    \b
    ddops bench sweep lab --dry-run
    ddops bench sweep lab
    """
    from ddops.bench.runner import settled
    from ddops.deploy import Stop, on_interrupt
    from ddops.errors import DdopsError
    from ddops.sweep import Eta

    stop = Stop()
    done: list[Measured] = []
    with on_interrupt(stop, app.warn), book_of(app, dry_run) as book, view(app) as shown:
        tools = sweep_tools(app, stop, book)
        works = [(w, w.plan()) for w in sweeps(app, target, limit, exclude, tools)]
        for work, plan in works:
            if not plan:
                app.say(DONE, work.target.host.name)
        if dry_run:
            for work, plan in works:
                show_plan(work, plan, as_json)
            return
        ask(works, yes)
        try:
            for work, plan in works:
                eta = Eta(sum(len(s.levels) for s in plan) * work.suite.repeats)
                shown.total(eta.total)
                for measured in work.run(plan):
                    done.append(measured)
                    shown.ended(measured, eta.done + 1, eta.total, eta.step())
                if plan and not stop.asked:
                    work.back()
                elif plan:
                    host = work.target.host.name
                    app.warn(
                        f"it may serve one of the sweep's arms still: ddops deploy {host}", host
                    )
        except DdopsError:
            shown.close()
            show(settled(book, done), as_json)  # what is stored is told, however it ends
            raise
        done = settled(book, done)
    show(done, as_json)
    end(done, stop.asked)


def _deployed(
    app: App, kind: Kind, target: tuple[str, ...], limit: tuple[str, ...],
    exclude: tuple[str, ...], levels: tuple[int, ...] | None, repeats: int | None, as_json: bool,
) -> None:  # fmt: skip
    from ddops.bench.runner import settled
    from ddops.clock import SystemClock
    from ddops.deploy import Stop, on_interrupt
    from ddops.sweep import Eta
    from ddops.sweep.deployed import deployed

    stop, done = Stop(), []
    # Every suite is read before the first host is asked.
    works = [
        deployed(one, kind, app.inventory, app.project.root, levels=levels or (), repeats=repeats)
        for one in bench_targets(app, target, limit, exclude)
    ]
    with on_interrupt(stop, app.warn), app.ledger() as book, view(app) as shown:
        for work in works:
            eta = Eta(len(work.points) * len(work.rounds))
            shown.total(eta.total)
            for measured in work.measure(book, app.report, SystemClock(), lambda: stop.asked):
                done.append(measured)
                shown.ended(measured, eta.done + 1, eta.total, eta.step())
        done = settled(book, done)
    show(done, as_json)
    end(done, stop.asked)


def bench_targets(
    app: App, target: tuple[str, ...], limit: tuple[str, ...], exclude: tuple[str, ...]
) -> list[Target]:
    """Every host of the target with its one service, and the service's own profile."""
    from ddops.inventory import one_service_per_host
    from ddops.sweep.deployed import target_of

    pairs = one_service_per_host(app.select(target, limit, exclude))
    return [target_of(app.transport(h), h, s, app.inventory, app.lookup) for h, s in pairs]


def _one(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def show(done: Sequence[Measured], as_json: bool) -> None:
    """All runs. A run that does not count shows no number: its reason stands there instead."""
    from ddops.cli.output import emit_json, emit_table

    if as_json:
        emit_json("bench", [_json(m) for m in done])
        return
    rows = []
    for m in done:
        n = m.numbers if not m.reason else None
        rows.append((
            m.run[:12], m.label, str(m.repeat), m.status.value,
            _one(n.output_tps if n else None),
            _one(n.spread["ttft_p50_ms"] if n else None),
            _one(n.spread["tpot_p50_ms"] if n else None),
            f"{n.commit.length:.2f}" if n and n.commit else "-",
            m.reason,
        ))  # fmt: skip
    if rows:
        emit_table(
            ("RUN", "CELL", "N", "STATUS", "TOK/S", "TTFT MS", "TPOT MS", "COMMIT", "WHY"), rows
        )


def _json(m: Measured) -> dict[str, object]:
    n = m.numbers if not m.reason else None
    return {
        "run": m.run, "cell": m.cell.key, "label": m.label, "concurrency": m.concurrency,
        "repeat": m.repeat, "status": m.status.value, "reason": m.reason,
        "warnings": list(m.warnings),
        "output_tps": n.output_tps if n else None,
        "request_tps": n.request_tps if n else None,
        "commit_length": n.commit.length if n and n.commit else None,
        **(dict(n.spread) if n else {}),
    }  # fmt: skip


def end(done: Sequence[Measured], stopped: bool) -> None:
    """The exit code: interrupted, nothing that counts, some of it, or all."""
    from ddops.errors import DdopsError, Interrupted, PartialError

    good = sum(m.reason == "" for m in done)
    if stopped:
        raise Interrupted(
            f"stopped; {len(done)} runs are stored, {good} of them valid",
            next="run the same command again: a sweep goes on where it ended",
        )
    if good == len(done):
        return
    why = "; ".join(dict.fromkeys(m.reason for m in done if m.reason))[:600]
    cls = PartialError if good else DdopsError
    raise cls(
        f"{len(done) - good} of {len(done)} runs do not count",
        why=why,
        next="mend what the reason names, then run the same command again",
    )


for _command in (coding, compare, regression):
    bench.add_command(_command)
