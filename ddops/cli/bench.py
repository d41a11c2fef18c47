"""`ddops bench`: numbers that can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

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
    """`1,2,4` as numbers."""
    from ddops.errors import UsageError

    if text is None:
        return None
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or len(set(found)) < len(found):
        raise UsageError(f"not levels: {text!r}", why="numbers from 1 up, each once", next="1,2,4")
    return found


_levels = click.option("--levels", metavar="N,N", help="Other numbers of requests under way.")
_repeats = click.option(
    "--repeats", type=click.IntRange(1, 1000), help="Other number of runs of each level."
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


def _deployed(
    app: App, kind: Kind, target: tuple[str, ...], limit: tuple[str, ...],
    exclude: tuple[str, ...], levels: tuple[int, ...] | None, repeats: int | None, as_json: bool,
) -> None:  # fmt: skip
    from ddops import lock
    from ddops.bench.prompts import read_prompts
    from ddops.bench.runner import Bench
    from ddops.clock import SystemClock
    from ddops.deploy import Stop, on_interrupt
    from ddops.inventory.suites import find_suite

    stop, done = Stop(), []
    with on_interrupt(stop, app.warn), app.ledger() as book:
        for one in bench_targets(app, target, limit, exclude):
            suite = find_suite(app.lookup, one.service.name, kind, app.project.root)
            prompts = read_prompts(app.lookup(suite.prompts), suite.prompts)
            work = Bench(
                as_deployed(app, one), suite, prompts, book, app.report, lambda: stop.asked
            )
            wanted, rounds = levels or suite.levels, range(1, (repeats or suite.repeats) + 1)
            owner = lock.owner(f"bench-{kind}", f"bench {kind} {one.service.name}", SystemClock())
            with lock.holding(one.transport, one.layout, owner, wait_s=0.0):
                for measured in work.measure(wanted, list(rounds), lambda _: True):
                    done.append(measured)
                    tell(app, measured, len(done), len(wanted) * len(rounds))
    show(done, as_json)
    end(done, stop.asked)


def bench_targets(
    app: App, target: tuple[str, ...], limit: tuple[str, ...], exclude: tuple[str, ...]
) -> list[Target]:
    """Every host of the target with its one service, and the service's own profile."""
    from ddops.bench.target import Target
    from ddops.deploy import port_of
    from ddops.inventory import one_service_per_host

    pairs = one_service_per_host(app.select(target, limit, exclude))
    return [
        Target(app.transport(h), h, s, app.inventory.profile_of(s), port_of(h, s), app.lookup)
        for h, s in pairs
    ]


def as_deployed(app: App, target: Target) -> Target:
    """The target with the profile whose release runs there.

    Raises RefusedError when no profile of today makes that release: nobody could say then what
    the numbers belong to.
    """
    from dataclasses import replace

    from ddops.deploy import prepare
    from ddops.errors import RefusedError, UsageError
    from ddops.model import State, short

    seen = target.observe()
    if seen.engine is not State.UP or seen.launch is None:
        return target  # `prove` says what to do then
    own = target.service.profile
    for name in sorted(app.inventory.profiles, key=lambda n: (n != own, n)):
        try:
            profile = app.inventory.profile_of(target.service, name)
        except UsageError:
            continue  # does not fit this service
        made = prepare(target.host, target.service, profile, app.lookup)
        if made.digest == seen.launch.release:
            return replace(target, profile=profile)
    raise RefusedError(
        f"{target.host.name}: no profile here makes the release {short(seen.launch.release)}",
        why="a profile, a model or a lock was changed since it was deployed",
        next=f"ddops deploy {target.host.name}",
    )


def tell(app: App, measured: Measured, n: int, of: int) -> None:
    """One line a run, as it ends."""
    words = f"{n}/{of} {measured.label} run {measured.repeat}: {_figures(measured)}"
    if measured.reason:
        app.warn(f"{words} {measured.status.value}: {measured.reason}")
    else:
        app.say(words)
    for warning in measured.warnings:
        app.warn(f"{measured.label}: {warning}")


def _figures(measured: Measured) -> str:
    numbers = measured.numbers
    if numbers is None or measured.reason:
        return ""
    commit = f", commit {numbers.commit.length:.2f}" if numbers.commit else ""
    return f"{_one(numbers.output_tps)} tok/s{commit}"


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
        next="ddops ledger query 'SELECT id, status, reason FROM run ORDER BY seq DESC LIMIT 20'",
    )
