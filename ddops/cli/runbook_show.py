"""Runbooks and runs as people read them; and the dry run, which writes nothing anywhere."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddops.cli.app import App

if TYPE_CHECKING:
    from ddops.ledger import JournalEntry, Ledger
    from ddops.runbook.bind import Bound, Instance
    from ddops.runbook.judge import Judged
    from ddops.runbook.look import Looker
    from ddops.runbook.model import Runbook, Value


def book_lines(book: Runbook) -> Iterator[str]:
    """Parameters, and each step with its conditions, in at most 80 columns."""
    table = book.table
    yield f"{book.name}: {table.title}"
    yield from _folded(table.about, "  ")
    for name, param in table.params.items():
        default = "" if param.default is None else f" [default: {param.default}]"
        yield from _folded(f"{name} ({param.type}): {param.about}{default}", "  ", "      ")
    for n, step in enumerate(table.steps, 1):
        each = f", for each of {step.each}" if step.each else ""
        yield from _folded(f"{n}. {step.id} [{step.priority}{each}]: {step.content}", "", "   ")
        for word in ("skip_if", "require"):
            for row in getattr(step, word):
                yield from _folded(f"{word}: {_words(row)}", "   ", "       ")
        yield from _folded(f"do: {_words(step.do)}", "   ", "       ")
        for row in step.verify:
            yield from _folded(f"verify: {_words(row)}", "   ", "       ")
        for row in step.on_failure:
            yield from _folded(f"on_failure: {_words(row)}", "   ", "       ")


def event_line(event: JournalEntry) -> str:
    """One word of a journal: when, which step, what, by whom, and what showed it."""
    seen = event.evidence.get("words") or event.evidence.get("asked") or event.evidence.get("error")
    if isinstance(seen, list):
        seen = "; ".join(map(str, seen))
    words = f": {seen}" if seen else ""
    what = f"{event.step or 'run'} {event.state}"
    return f"{event.at:%Y-%m-%d %H:%M:%S}  {what} by {event.by}{words}"


def dry_run(app: App, bound: Bound, as_json: bool) -> None:
    """Each step with its conditions as they are now. Hosts are only looked at."""
    from ddops.cli.output import emit_json, emit_line
    from ddops.cli.runbook_context import context_of
    from ddops.deploy import Stop
    from ddops.runbook.look import Looker

    context = context_of(app, Stop(), _only_reading(app))
    looker = Looker(context)
    rows = []
    for step in bound.steps:
        seen = _looked(looker, step)
        rows.append({"step": step.key, "content": step.content, **seen})
        if as_json:
            continue
        for line in _step_lines(step, seen):
            emit_line(line)
    if as_json:
        emit_json("runbook-plan", {"runbook": bound.runbook.name, "hosts": list(bound.hosts),
                                   "steps": rows})  # fmt: skip
    app.say("nothing was done; conditions of later steps are as they are now")


def _looked(looker: Looker, step: Instance) -> dict[str, object]:
    """What would become of a step if it were its turn now."""
    from ddops.runbook.judge import Truth, together

    found = {w: looker.judge_all(getattr(step, w)) for w in ("skip_if", "require", "verify")}
    skip, need = together(found["skip_if"]), together(found["require"])
    if step.skip_if and skip is Truth.HOLDS:
        word = "would be skipped"
    elif step.skip_if and skip is Truth.UNKNOWN:
        word = "would stop: skip_if is not known"
    elif any(j.truth is Truth.UNKNOWN for j in found["require"]):
        word = "would stop: require is not known"
    else:
        word = "would be done" if need is Truth.HOLDS else "would be refused: require"
    return {"would": word, **{w: [_json(j) for j in js] for w, js in found.items()}}


def _json(j: Judged) -> dict[str, str]:
    return {"condition": j.asked, "answer": j.truth.value, "seen": j.seen}


def _step_lines(step: Instance, seen: Mapping[str, object]) -> Iterator[str]:
    from ddops.runbook.steps import name_of

    yield from _folded(f"{step.key}: {seen['would']}", "", "    ")
    yield from _folded(f"{step.content} [{step.priority}]", "    ")
    for word in ("skip_if", "require"):
        yield from _conditions(word, seen[word])
    yield from _folded(f"do       {name_of(step.do)} {_fields(step.do)}", "    ", "             ")
    yield from _conditions("verify", seen["verify"])
    for action in step.on_failure:
        words = f"on_failure {name_of(action)} {_fields(action)}"
        yield from _folded(words, "    ", "             ")


def _conditions(word: str, rows: object) -> Iterator[str]:
    for row in rows if isinstance(rows, list) else []:
        line = f"{word:<8} {row['condition']}: {row['answer']} ({row['seen']})"
        yield from _folded(line, "    ", "             ")


def _fields(action: object) -> str:
    """An action's own words, what is not set left out."""
    names = getattr(type(action), "__struct_fields__", ())
    shown = {n: getattr(action, n) for n in names}
    return " ".join(f"{n}={v}" for n, v in shown.items() if v not in (None, "", (), {}))


def _words(table: Mapping[str, Value]) -> str:
    return " ".join(f"{k}={v}" for k, v in table.items())


def _folded(text: str, first: str, rest: str | None = None) -> list[str]:
    import textwrap

    follow = first if rest is None else rest
    return textwrap.wrap(" ".join(text.split()), 80, initial_indent=first,
                         subsequent_indent=follow, break_on_hyphens=False)  # fmt: skip


def _only_reading(app: App) -> Callable[[], AbstractContextManager[Ledger]]:
    """The ledger to be read; where there is none yet, an empty one that is gone afterwards."""
    from ddops.ledger import Ledger

    @contextmanager
    def empty() -> Iterator[Ledger]:
        with (
            tempfile.TemporaryDirectory(prefix="ddops-") as folder,
            Ledger.open(Path(folder) / "ledger.db", redactor=app.redactor) as book,
        ):
            yield book

    return (lambda: app.ledger(readonly=True)) if app.settings.ledger_path.exists() else empty
