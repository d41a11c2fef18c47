"""`ddops recommend`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddops.cli.given import COUNT
from ddops.cli.options import as_json

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.ledger import Ledger
    from ddops.recommend.answer import Advice, Answer

#: A bigger log of steps is refused: it is read whole.
MOST_STEPS = 1024 * 1024 * 1024


@click.command()
@click.option("--service", metavar="NAME", help="Of this service alone.")
@click.option(
    "--host-class",
    type=click.Choice(["pcie", "nvlink", "cpu"]),
    help="Of hosts of this class alone.",
)
@click.option("--concurrency", type=COUNT, metavar="N", help="The answer for N.")
@click.option(
    "--steps",
    type=click.Path(path_type=Path),
    help="Recorded steps of the largest budget, for the budget model.",
)
@click.option(
    "--write", metavar="NAME", help="Write the answer for N as inventory/profiles/NAME.toml."
)
@as_json
@click.pass_obj
def recommend(
    app: App,
    service: str | None,
    host_class: str | None,
    concurrency: int | None,
    steps: Path | None,
    write: str | None,
    as_json: bool,
) -> None:
    """Which configuration to run at which concurrency, with the evidence for it.

    Only valid, gated runs count. At a tie the simpler configuration is chosen. Nothing is looked
    for beyond what was measured, and machines or kinds of numbers are never mixed. What would make
    the answer surer stands at the end, as a command.

    \b
    ddops recommend
    ddops recommend --service k26-pcie --concurrency 16
    ddops recommend --service k26-pcie --concurrency 1 --write k26-one-user
    """
    from ddops.config.files import read_text
    from ddops.recommend import recommend as run
    from ddops.recommend.budget import read_steps

    _check(write, concurrency)
    nodes = read_steps(read_text(steps, most=MOST_STEPS, pipe=True), str(steps)) if steps else ()
    with app.ledger(readonly=write is None) as book:
        answer = run(book, service, host_class, nodes)
        _refuse_nothing(answer, service, host_class)
        if write is not None and concurrency is not None:
            _write(app, book, answer, concurrency, write)
    if concurrency is not None:
        _show_one(answer, concurrency, as_json)
    else:
        _show(app, answer, as_json)


def _check(write: str | None, concurrency: int | None) -> None:
    import re

    from ddops.errors import UsageError

    if write is None:
        return
    if concurrency is None:
        raise UsageError(
            "--write needs --concurrency",
            why="a profile is one configuration, and the best one depends on the concurrency",
            next="ddops recommend --concurrency 1 --write NAME",
        )
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", write):
        raise UsageError(
            f"not a profile's name: {write!r}",
            why="small letters, digits, dots, dashes and underscores, from a letter or digit",
            next="ddops recommend --concurrency 1 --write k26-one-user",
        )


def _refuse_nothing(answer: Answer, service: str | None, host_class: str | None) -> None:
    from ddops.errors import RefusedError
    from ddops.recommend.view import left_words

    if answer.advice:
        return
    of = " ".join(w for w in (service and f"of {service}", host_class and f"on {host_class}") if w)
    left = left_words(answer.left.by_status, answer.left.withdrawn)
    raise RefusedError(
        f"no valid run {of}".rstrip() + " to recommend by",
        why=f"runs that do not count: {left}" if left else "nothing was measured yet",
        next="ddops ledger show runs" if left else "ddops bench concurrency lab",
    )


def _show(app: App, answer: Answer, as_json: bool) -> None:
    from ddops.cli.output import emit_json, emit_line
    from ddops.recommend.view import answer_data, left_words

    if as_json:
        emit_json("recommend", answer_data(answer))
        return
    for n, advice in enumerate(answer.advice):
        if n:
            emit_line()
        _show_advice(advice)
    left = left_words(answer.left.by_status, answer.left.withdrawn)
    if left:
        app.say(f"left out: {left} (ddops ledger show runs)")


def _show_advice(advice: Advice) -> None:
    from ddops.cli.output import emit_line, emit_table
    from ddops.recommend.view import (
        commit_words,
        crossover_words,
        estimate_words,
        ids_words,
        unlike_words,
    )

    population = advice.population
    emit_line(population.title)
    rows = [
        (
            str(level), estimate_words(c.chosen.estimate, population.basis),
            commit_words(c.chosen), c.certainty.value, c.chosen.config.name,
        )
        for level, c in advice.choices.items()
    ]  # fmt: skip
    emit_table(("AT", "TOK/S", "COMMIT", "SURE", "RUN"), rows)
    notes = [(f"why at {n}", c.why) for n, c in advice.choices.items()]
    notes += [("crossover", crossover_words(c)) for c in advice.crossovers]
    notes += [("", note) for c in advice.crossovers for note in c.notes]
    notes += [("not comparable", unlike_words(u)) for u in advice.unlike]
    notes += _budget_notes(advice)
    for step in advice.next:
        notes.append(("measure next", f"{step.why}:"))
        notes.append(("", f"{step.command}, with levels {', '.join(map(str, step.levels))}"
                          f" in {step.suite}"))  # fmt: skip
    notes += [(f"runs at {n}", ids_words(c.run_ids)) for n, c in advice.choices.items()]
    emit_table(("", ""), notes)


def _budget_notes(advice: Advice) -> list[tuple[str, str]]:
    plan = advice.budgets
    if plan is None:
        return []
    from ddops.recommend.view import number

    out = []
    for p in plan.levels:
        told = f"predicted best at {p.level}: budget {p.budget}, {number(p.tps)} tok/s"
        measured = f"measured best: budget {p.measured}, {number(p.measured_tps)}"
        error = "no inner width to try it on" if p.error is None else f"off by {p.error:.1%}"
        if p.cell_error is not None:
            error += f"; off its measured cells by up to {p.cell_error:.0%}"
        out.append(("budget model", f"{told}; {measured}; {error}"))
    if plan.from_profile:
        some = [b for b in plan.lengths if b & (b - 1) == 0 or b == max(plan.lengths)]
        told = ", ".join(f"{b}: {plan.lengths[b]:.2f}" for b in some)
        out.append(("commit length", f"expected by budget: {told}"))
    if plan.why:
        out.append(("budget model", f"no prediction: {plan.why}"))
    return out + [("kernel cliff", w) for w in plan.warnings]


def _show_one(answer: Answer, concurrency: int, as_json: bool) -> None:
    from ddops.cli.output import emit_json, emit_line, emit_table
    from ddops.recommend.answer import at
    from ddops.recommend.view import at_data, estimate_words, ids_words

    found = [(a, at(a, concurrency)) for a in answer.advice]
    if as_json:
        emit_json("recommend-at", [at_data(x, a.population) for a, x in found])
        return
    for advice, one in found:
        emit_line(advice.population.title)
        rows = [("run", one.config.name if one.config else "not known"), ("why", one.why)]
        if one.choice is not None:
            c = one.choice
            words = estimate_words(c.chosen.estimate, advice.population.basis)
            rows += [
                ("tok/s", f"{words} at {c.level}"),
                ("sure", c.certainty.value),
                ("runs", ids_words(c.run_ids)),
            ]
        rows += [("next", f"{n.why}: {n.command}") for n in advice.next[:1]]
        emit_table(("AT", str(concurrency)), rows)


def _new_file(path: Path, text: str) -> None:
    """A file that was not there, of TOML that can be read: a broken one stops every command."""
    from ddops.config.files import write_whole, writing
    from ddops.config.toml import parse_toml
    from ddops.errors import UsageError

    parse_toml(text, path, str(path))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(path, text, fresh=True)
    except FileExistsError:
        raise UsageError(
            f"{path} is there already",
            why="a profile is not written over",
            next="give another NAME",
        ) from None


def _write(app: App, book: Ledger, answer: Answer, concurrency: int, name: str) -> None:
    """The profile, and the recommendation on record: a retraction takes it down then."""
    from ddops.bench.target import by
    from ddops.cli.output import emit_line
    from ddops.errors import RefusedError, UsageError
    from ddops.recommend.answer import at
    from ddops.recommend.profile import profile_text
    from ddops.recommend.read import unrecorded_env

    if len(answer.advice) != 1:
        titles = "; ".join(a.population.title for a in answer.advice)
        raise UsageError(
            "a profile is for one service on one kind of machine",
            why=f"there are {len(answer.advice)}: {titles}",
            next="name it with --service and --host-class",
        )
    advice = answer.advice[0]
    found = at(advice, concurrency)
    if found.choice is None:
        steps = [n.command for n in advice.next]
        raise RefusedError(
            f"no configuration is known to be the best at {concurrency}",
            why=found.why, next=steps[0] if steps else "ddops ledger show cells",
        )  # fmt: skip
    choice = found.choice
    lost = unrecorded_env(book, choice.chosen)
    text = profile_text(advice.population, choice, advice.population.alike[choice.group], lost)
    path = app.project.root / "inventory" / "profiles" / f"{name}.toml"
    _new_file(path, app.redactor(text))
    if lost:
        app.warn(f"{path.name} lacks what the ledger does not hold: {', '.join(lost)}")
    words = f"{choice.chosen.config.name} at {concurrency}: {choice.certainty.value}, {choice.why}"
    finding = book.add_finding(
        "recommendation", f"{advice.population.service} at {concurrency}", words, choice.run_ids,
        by=by(), evidence={"profile": name},
    )  # fmt: skip
    app.say(f"recorded as conclusion {finding}; ddops deploy TARGET --profile {name}")
    emit_line(str(path))
