"""Steps about numbers: measuring, sweeping, withdrawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddops.bench.prompts import read_prompts
from ddops.bench.runner import Measured, settled
from ddops.deploy import Stop
from ddops.errors import DdopsError, Interrupted, RefusedError
from ddops.inventory.suites import arms_of, find_suite
from ddops.ledger import Scope
from ddops.recommend import recommend
from ddops.report import collect
from ddops.report.write import as_text, refuse_nothing, write_report
from ddops.runbook.context import Context
from ddops.runbook.steps import Bench, Recommend, Report, Retract, SweepStep
from ddops.sweep import Sweep, Tools
from ddops.sweep.deployed import deployed, target_of

Evidence = Mapping[str, object]
_SAME = """SELECT id FROM retraction WHERE scope = :scope AND reason = :reason
AND (value = :value OR substr(value, 1, length(:value)) = :value) ORDER BY seq DESC LIMIT 1"""


def do_bench(action: Bench, ctx: Context, stop: Stop) -> Evidence:
    """Every run must count: a runbook goes on from what was proven alone."""
    host = ctx.host(action.host)
    target = target_of(ctx.transport(host), host, ctx.service(host), ctx.inventory, ctx.lookup)
    work = deployed(
        target, action.suite, ctx.inventory, ctx.root, levels=action.levels, repeats=action.repeats
    )
    with ctx.ledger() as book:
        done = settled(book, list(work.measure(book, ctx.report, ctx.clock, lambda: stop.asked)))
    return _told(done, stop, host.name)


def do_sweep(action: SweepStep, ctx: Context, stop: Stop) -> Evidence:
    """What `ddops bench sweep` does: cells with enough valid runs are left alone."""
    host = ctx.host(action.host)
    target = target_of(ctx.transport(host), host, ctx.service(host), ctx.inventory, ctx.lookup)
    suite = find_suite(ctx.lookup, target.service.name, "sweep", ctx.root)
    prompts = read_prompts(ctx.lookup(suite.prompts), suite.prompts)
    arms = arms_of(ctx.inventory, suite, target.service)
    with ctx.ledger() as book:
        deploy = ctx.deploy_tools(stop, 0.0, unmeasured="the sweep of this start measures it")
        tools = Tools(deploy, book, ctx.clock, stop, ctx.report)
        work = Sweep(target, suite, prompts, arms, tools)
        plan = work.plan()
        done = settled(book, list(work.run(plan)))
        if not stop.asked:
            work.back()
    if not plan:
        return {"words": "every cell has enough valid runs"}
    return _told(done, stop, host.name)


def do_recommend(action: Recommend, ctx: Context) -> Evidence:
    """What the ledger's valid runs say; nothing is looked for beyond what was measured."""
    with ctx.ledger() as book:
        answer = recommend(book, action.service, None, ())
    if not answer.advice:
        raise RefusedError(
            f"no valid run of {action.service} to recommend by", next="ddops ledger show runs"
        )
    choices = [
        {"population": a.population.title, "concurrency": level,
         "choice": c.chosen.config.name, "certainty": c.certainty.value}
        for a in answer.advice
        for level, c in a.choices.items()
    ]  # fmt: skip
    words = "; ".join(
        f"{a.population.title}: "
        + ", ".join(
            f"{c.chosen.config.name} at {level} ({c.certainty.value})"
            for level, c in a.choices.items()
        )
        for a in answer.advice
    )
    runs = [i for a in answer.advice for i in a.run_ids]
    return {"words": words, "choices": choices, "runs": runs}


def do_report(action: Report, ctx: Context) -> Evidence:
    """What `ddops report --out` does, with the file inside the project."""
    out = ctx.root / action.out
    if not out.parent.resolve().is_relative_to(ctx.root.resolve()):
        raise RefusedError(
            f"{action.out} is outside the project", next="name a file below the project's folder"
        )
    with ctx.ledger() as book:
        found = collect(book, action.service)
        refuse_nothing(found)
        text = as_text(found, html=out.suffix == ".html", redactor=ctx.redactor, lookup=ctx.lookup)
        done = write_report(book, found, out, text)
    kept = f", on record as conclusion {done.finding}" if done.finding else ", no run counts"
    return {"words": f"wrote {action.out}{kept}", "sha256": done.sha256, "finding": done.finding}


def do_retract(action: Retract, ctx: Context, by: str) -> Evidence:
    """Once: a retraction of the same value for the same reason is not made again."""
    scope = Scope(action.scope)
    marks = {"scope": scope.value, "value": action.value, "reason": action.reason}
    with ctx.ledger() as book:
        found = book.query(_SAME, marks)
        if found:
            return {"words": f"withdrawn already, by retraction {found[0]['id']!s}"}
        done = book.retract(scope, action.value, reason=action.reason, by=by)
    counted = sum(r.counted for r in done.runs)
    fell = sum(f.stood for f in done.findings)
    words = f"retraction {done.id}: {counted} valid runs and {fell} conclusions withdrawn"
    return {"words": words, "retraction": done.id, "value": done.value}


def _told(done: Sequence[Measured], stop: Stop, host: str) -> Evidence:
    good = [m for m in done if not m.reason]
    if stop.asked:
        raise Interrupted(
            f"{host}: stopped; {len(done)} runs are stored, {len(good)} of them valid"
        )
    if not done or len(good) < len(done):
        why = "; ".join(dict.fromkeys(m.reason for m in done if m.reason))[:600]
        raise DdopsError(
            f"{host}: {len(done) - len(good)} of {len(done)} runs do not count",
            why=why or "none was made", next="ddops ledger show runs",
        )  # fmt: skip
    words = f"{len(good)} valid runs"
    return {"words": words, "runs": [m.run for m in good]}
