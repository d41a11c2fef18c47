"""What `ddops bench sweep` reads, asks and shows before its first start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ddops.cli.options import confirm

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.deploy import Stop
    from ddops.ledger import Ledger
    from ddops.sweep import Start, Sweep, Tools

DONE = "nothing is left to measure: every cell has valid runs on enough starts"


def sweeps(
    app: App, target: tuple[str, ...], limit: tuple[str, ...], exclude: tuple[str, ...],
    tools: Tools,
) -> list[Sweep]:  # fmt: skip
    """A sweep of each target, all that people wrote for it read and judged."""
    from ddops.bench.prompts import read_prompts
    from ddops.cli.bench import bench_targets
    from ddops.inventory.suites import arms_of, find_suite
    from ddops.sweep import Sweep

    works = []
    for one in bench_targets(app, target, limit, exclude):
        suite = find_suite(app.lookup, one.service.name, "sweep", app.project.root)
        prompts = read_prompts(app.lookup(suite.prompts), suite.prompts)
        arms = arms_of(app.inventory, suite, one.service)
        works.append(Sweep(one, suite, prompts, arms, tools))
    return works


@contextmanager
def book_of(app: App, dry_run: bool) -> Iterator[Ledger]:
    """The ledger. A dry run only reads it, and makes none in a project that has none yet."""
    import tempfile
    from pathlib import Path

    from ddops.ledger import Ledger

    if dry_run and not app.settings.ledger_path.exists():
        with (
            tempfile.TemporaryDirectory(prefix="ddops-") as folder,
            Ledger.open(Path(folder) / "ledger.db", redactor=app.redactor) as book,
        ):
            yield book
        return
    with app.ledger(readonly=dry_run) as book:
        yield book


def ask(works: Sequence[tuple[Sweep, Sequence[Start]]], yes: bool) -> None:
    """A sweep changes the service under its users; a lab has none."""
    real = [(w, p) for w, p in works if p and w.target.host.origin.kind != "lab"]
    if real:
        words = [
            f"{len(p)} starts of {w.target.service.name} on {w.target.host.name}" for w, p in real
        ]
        confirm(f"{', '.join(words)}, each a deploy?", yes)


def sweep_tools(app: App, stop: Stop, book: Ledger) -> Tools:
    from ddops.cli.routers import drains_of
    from ddops.clock import SystemClock
    from ddops.deploy import Settings
    from ddops.deploy import Tools as DeployTools
    from ddops.sweep import Tools

    s, clock = app.settings, SystemClock()
    deploy = DeployTools(
        lookup=app.lookup,
        ledger=app.ledger,
        resolve=app.resolve,
        settings=Settings(s.load_budget_s, s.ready_quiet_s, s.keep_releases, s.gate_timeout_s),
        clock=clock,
        stop=stop,
        report=app.report,
        redactor=app.redactor,
        unmeasured="the sweep that asked for this start measures it",
        drains=drains_of(app),
    )
    return Tools(deploy, book, clock, stop, app.report)


def show_plan(work: Sweep, plan: Sequence[Start], as_json: bool) -> None:
    from ddops.cli.output import emit_json, emit_table
    from ddops.model import short

    cells = work.cells()
    if as_json:
        emit_json(
            "bench-plan",
            {
                "cells": [{"arm": a, "level": n, "key": c.key} for (a, n), c in cells.items()],
                "starts": [
                    {"arm": s.arm, "round": s.round, "levels": list(s.levels)} for s in plan
                ],
            },
        )
        return
    rows = [
        (str(i), s.arm, str(s.round), ", ".join(map(str, s.levels)),
         ", ".join(short(cells[s.arm, n].key) for n in s.levels))
        for i, s in enumerate(plan, 1)
    ]  # fmt: skip
    emit_table(("START", "ARM", "ROUND", "LEVELS", "CELLS"), rows)
