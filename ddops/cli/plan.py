"""`ddops plan`: what provision would do, shown and kept, and held against the host later."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.plan import Plan
    from ddops.provision.apply import Prepared

_SIGN = {"none": " ", "create": "+", "update": "~", "unknown": "?"}
SHOWN_LINES = 6


@click.command()
@targets(required=True)
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False), help="Keep it in FILE.")
@click.option("--diff", is_flag=True, help="Show whole diffs.")
@click.option("--exit-code", is_flag=True, help="Exit 8 when changes are pending.")
@as_json
@click.pass_obj
def plan(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    out: str | None,
    diff: bool,
    exit_code: bool,
    as_json: bool,
) -> None:
    """What `ddops provision` would do to hosts. Writes nothing on them.

    A plan that was kept can be read by somebody else, and applied as it is: provision refuses it
    when a host is no longer as it was.

    \b
    ddops plan b300 --out plan.json
    ddops provision --plan plan.json
    """
    import tempfile
    from pathlib import Path

    from ddops.cli.app import end_together
    from ddops.cli.provision import prepare, refuse_pending
    from ddops.provision.apply import Prepared

    hosts = app.select(target, limit, exclude).hosts
    with tempfile.TemporaryDirectory(prefix="ddops-") as scratch:
        outcomes = app.fan_out(hosts, lambda h: prepare(app, h, Path(scratch) / h.name))
    plans = [p.plan for _, p in outcomes if isinstance(p, Prepared)]
    show_plans(plans, as_json=as_json, diff=diff)
    end_together([(h.name, p) for h, p in outcomes], app.report)  # no plan of half the hosts
    if out:
        _keep(app, out, plans)
    refuse_pending(plans, exit_code)


def _keep(app: App, out: str, plans: Sequence[Plan]) -> None:
    from ddops.config.files import write_whole

    unknown = [p.host for p in plans if any(x.change.value == "unknown" for _, _, x in p.rows)]
    if unknown:
        from ddops.errors import RefusedError

        raise RefusedError(f"not all is known of {', '.join(unknown)}: nothing to keep")
    data = {"schema": "ddops.plan/1", "data": [plan_json(p) for p in plans]}
    write_whole(out, json.dumps(app.redactor.tree(data), indent=1) + "\n")
    app.say(f"plan kept in {out}; next: ddops provision --plan {out}")


def planned_targets(file: str, target: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """Hosts of a kept plan: the digest of each, and what each step would have done."""
    from pathlib import Path

    from ddops.config.files import MISSHAPEN, parse_json, read_text, reason
    from ddops.errors import UsageError

    if target:
        raise UsageError("the plan names its hosts", next=f"ddops provision --plan {file}")
    anew = f"ddops plan HOST --out {file}"
    text = read_text(Path(file), pipe=True, next=anew)
    try:
        raw = parse_json(text)
        if raw["schema"] != "ddops.plan/1":
            raise ValueError(f"schema {raw['schema']!r}")
        return {
            str(p["host"]): {
                "": str(p["digest"]),
                **{str(s["title"]): json.dumps([s["change"], s["lines"]]) for s in p["steps"]},
            }
            for p in raw["data"]
        }
    except MISSHAPEN as error:
        raise UsageError(f"{file} is no plan", why=reason(error), next=anew) from error


def agreed(prepared: Prepared, kept: Mapping[str, str] | None) -> Prepared:
    """The plan of now, when it is the plan that was kept. Raises RefusedError when it is not."""
    from ddops.errors import RefusedError

    plan = prepared.plan
    if kept is None or kept[""] == plan.digest:
        return prepared
    now = {t: json.dumps([p.change.value, list(p.lines)]) for _, t, p in plan.rows}
    unlike = [t for t in {**kept, **now} if t and kept.get(t) != now.get(t)]
    raise RefusedError(
        f"{plan.host}: the host has moved on since the plan was made",
        why=f"no longer as planned: {', '.join(unlike) or 'the order of steps'}",
        next=f"ddops plan {plan.host}",
    )


def show_plans(plans: Sequence[Plan], *, as_json: bool, diff: bool) -> None:
    from ddops.cli.output import emit_json

    if as_json:
        emit_json("plan", [plan_json(p) for p in plans])
        return
    for one in plans:
        show(one, diff=diff)


def show(plan: Plan, *, diff: bool) -> None:
    """The plan as text: one line a step, its diff below."""
    from ddops.cli.output import emit_line

    emit_line(f"{plan.host}: {plan.pending} of {len(plan.rows)} steps pending")
    for _, title, proposal in plan.rows:
        emit_line(f"  {_SIGN[proposal.change.value]} {title}")
        lines = proposal.lines if diff else proposal.lines[:SHOWN_LINES]
        for line in lines:
            emit_line(f"      {line if diff or len(line) <= 90 else line[:87] + '...'}")
        if len(lines) < len(proposal.lines):
            emit_line(f"      ... {len(proposal.lines) - len(lines)} more lines, see --diff")


def plan_json(plan: Plan) -> dict[str, object]:
    return {
        "host": plan.host,
        "digest": plan.digest,
        "pending": plan.pending,
        "steps": [
            {"id": i, "title": t, "change": p.change.value, "lines": list(p.lines)}
            for i, t, p in plan.rows
        ],
    }
