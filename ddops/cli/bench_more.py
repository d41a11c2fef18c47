"""`ddops bench coding|compare|regression`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.bench.coding_run import Outcome
    from ddops.bench.compare import Comparison
    from ddops.cli.app import App


@click.command(short_help="HumanEval, answered by a server, run in a sandbox.")
@targets(required=True)
@click.option(
    "--route",
    type=click.Choice(["chat", "generate"]),
    default="chat",
    show_default=True,
    help="Ask in words, or let the prompt be continued.",
)
@as_json
@click.pass_obj
def coding(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    route: str,
    as_json: bool,
) -> None:
    """Ask a server the HumanEval tasks, and run what it answers in a sandbox.

    An autoregressive start is the measure. A speculating one is compared with it, task by task: it
    passes when a loss of more than 3 points is excluded. Exit 1 unless every gate passed.

    \b
    ddops bench coding lab
    ddops bench coding b300 --route generate
    """
    from ddops import lock
    from ddops.bench.coding_run import CodingBench
    from ddops.bench.coding_tasks import humaneval
    from ddops.cli.bench import bench_targets
    from ddops.clock import SystemClock
    from ddops.sweep.deployed import as_deployed

    tasks = humaneval()
    done = []
    with app.ledger() as book:
        for one in bench_targets(app, target, limit, exclude):
            words = f"bench coding {one.service.name}"
            owner = lock.owner("bench-coding", words, SystemClock())
            with lock.holding(one.transport, one.layout, owner, wait_s=0.0):
                found = CodingBench(as_deployed(app.inventory, one), book, tasks, route).run()
            app.say(f"coding {found.gate.verdict.value}: {found.gate.message}", one.host.name)
            done.append((one.host.name, found))
    _show_coding(done, as_json)
    _end_coding(done)


def _show_coding(done: list[tuple[str, Outcome]], as_json: bool) -> None:
    from ddops.cli.output import emit_json, emit_table

    if as_json:
        emit_json(
            "bench-coding",
            [
                {
                    "host": host,
                    "run": x.run,
                    "verdict": x.gate.verdict.value,
                    "message": x.gate.message,
                    "evidence": dict(x.gate.evidence),
                    "reference": x.reference,
                }
                for host, x in done
            ],
        )
        return
    rows = []
    for host, x in done:
        rate = "-" if x.result.pass_rate is None else f"{x.result.pass_rate:.1%}"
        counts = ", ".join(f"{n} {v}" for v, n in sorted(x.result.counts.items()))
        rows.append((host, x.run, x.gate.verdict.value, rate, counts))
    emit_table(("HOST", "RUN", "GATE", "PASS@1", "VERDICTS"), rows)


def _end_coding(done: list[tuple[str, Outcome]]) -> None:
    from ddops.errors import GateFailed
    from ddops.model import Verdict

    bad = [(host, x) for host, x in done if x.gate.verdict is not Verdict.PASS]
    if bad:
        host, first = bad[0]
        raise GateFailed(
            f"{host}: coding is {first.gate.verdict.value}",
            gate="coding",
            why=first.gate.message,
            next=f"ddops ledger show {first.run}",
        )


@click.command(short_help="Is A better than B? Both are runs or cells.")
@click.argument("a")
@click.argument("b")
@click.option("--figure", default="output_tps", show_default=True, help="What is compared.")
@as_json
@click.pass_obj
def compare(app: App, a: str, b: str, figure: str, as_json: bool) -> None:
    """Is A better than B? Both are runs or cells; all valid runs of their cells count.

    Launches are compared, not runs: repeats on one server start share its luck. Unlike runs are
    refused, with the columns that differ. The answer is recorded as a conclusion, so that
    withdrawing one of its runs lists it.

    \b
    ddops bench compare 6f1f0cb2 41ab9e07
    ddops bench compare 6f1f0cb2 41ab9e07 --figure tpot_p50_ms
    """
    from ddops.bench.compare import compare as run
    from ddops.bench.compare import record
    from ddops.bench.target import by
    from ddops.cli.output import emit_json, emit_line, emit_table

    with app.ledger() as book:
        found = run(book, a, b, figure)
        conclusion = record(book, found, by())
    if as_json:
        emit_json("bench-compare", {**_comparison(found), "conclusion": conclusion})
        return
    j = found.judgement
    emit_line(f"{found.a.name} is {j.word.value}: {figure} against {found.b.name}")
    rows = [
        ("why", j.why),
        ("ratio", f"{j.ratio.value:.3f} ({j.ratio.low:.3f} to {j.ratio.high:.3f})"),
        ("launches", f"{j.launches[0]} against {j.launches[1]}"),
    ]
    if found.paired is not None:
        p = found.paired
        rows.append(("decode", f"{p.value:.3f} ({p.low:.3f} to {p.high:.3f}) on {p.n} prompts"))
    rows += [("varied", v) for v in found.varied] + [("note", n) for n in found.notes]
    emit_table(("WHAT", ""), rows)
    app.say(f"recorded as conclusion {conclusion}")


def _comparison(found: Comparison) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "figure": found.figure,
        "a": {"cell": found.a.cell.key, "runs": [r.id for r in found.a.runs]},
        "b": {"cell": found.b.cell.key, "runs": [r.id for r in found.b.runs]},
        "judgement": {**asdict(found.judgement), "word": found.judgement.word.value},
        "paired": asdict(found.paired) if found.paired else None,
        "varied": list(found.varied),
        "notes": list(found.notes),
    }


@click.command(short_help="Is a run worse than its history explains?")
@click.argument("run")
@click.option("--figure", default="output_tps", show_default=True, help="What is judged.")
@as_json
@click.pass_obj
def regression(app: App, run: str, figure: str, as_json: bool) -> None:
    """Is a run worse than its own history explains? Exit 1 when it is.

    Its history: earlier valid launches of the same configuration, whatever the build, on the same
    device. Below three of them there is no verdict.

    \b
    ddops bench regression 6f1f0cb2
    """
    from dataclasses import asdict

    from ddops.bench.compare import regression as judge
    from ddops.cli.output import emit_json, emit_line
    from ddops.errors import DdopsError

    with app.ledger(readonly=True) as book:
        found = judge(book, run, figure)
    noise = found.noise
    if as_json:
        data = {"run": found.run.id, "figure": figure, "value": found.value, "worse": found.worse}
        data |= {"noise": asdict(noise) if noise else None, "baseline": list(found.baseline)}
        emit_json("bench-regression", data)
    elif noise is None:
        emit_line(f"no verdict: {len(found.baseline)} earlier runs, at least 3 launches are needed")
    else:
        span = f"{noise.low:.4g} to {noise.high:.4g} from {noise.n} launches"
        word = "worse than" if found.worse else "within"
        emit_line(f"{figure} {found.value:.4g} is {word} its history: {span}")
    if found.worse:
        raise DdopsError(
            f"run {found.run.id} is a regression of {figure}",
            why=f"{found.value:.4g} is outside of what noise explains",
            next=f"ddops ledger show {found.run.id}",
        )
