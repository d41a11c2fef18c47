"""`ddops probe` and `ddops check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.compat import Finding
    from ddops.inventory import Host
    from ddops.probe import Facts


def facts_of(app: App, host: Host) -> Facts:
    """One host's facts, in one round trip."""
    from ddops.probe import collect

    root = str(host.vars.get("root", "/"))
    return collect(app.transport(host), host.python, host.engine_dir, root)


@click.command()
@targets(required=True)
@click.pass_obj
def probe(
    app: App, target: tuple[str, ...], limit: tuple[str, ...], exclude: tuple[str, ...]
) -> None:
    """Collect facts and print them as JSON. Reads only, needs no root.

    \b
    ddops probe b300 > b300.json
    """
    from ddops.cli.app import end_together
    from ddops.cli.output import emit_json
    from ddops.probe import Facts

    hosts = app.select(target, limit, exclude).hosts
    outcomes = app.fan_out(hosts, lambda h: facts_of(app, h))
    emit_json("probe", {h.name: dict(f.raw) for h, f in outcomes if isinstance(f, Facts)})
    end_together([(h.name, f) for h, f in outcomes], app.report)


@click.command()
@targets(required=True)
@as_json
@click.pass_obj
def check(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
) -> None:
    """Judge hosts: can they run what they are for?

    Exit 4 when a check fails or cannot be answered: UNKNOWN is never PASS.

    \b
    ddops check lab
    ddops check b300 --json
    """
    from ddops.cli.app import end_together
    from ddops.cli.output import emit_json, emit_table

    hosts = app.select(target, limit, exclude).hosts
    outcomes = app.fan_out(hosts, lambda h: judged(facts_of(app, h), h))
    seen = [(h, o) for h, o in outcomes if not isinstance(o, Exception)]
    if as_json:
        emit_json("check", {h.name: [_row(f) for f in findings] for h, findings in seen})
    else:
        rows = [
            (h.name, f.verdict.value, f.check, _words(f)) for h, findings in seen for f in findings
        ]
        if rows:
            emit_table(("HOST", "VERDICT", "CHECK", "SEEN"), rows)
    end_together([(h.name, _refusal(h, o)) for h, o in outcomes], app.report)


def judged(facts: Facts, host: Host) -> list[Finding]:
    """All findings of a host; simulated facts say so in a row of their own."""
    from ddops.compat import Finding, Subject, judge
    from ddops.model import Verdict

    subject = Subject(facts, host.host_class or "cpu", host.engine_env, host.pins.gpu_uuids)
    findings = judge(subject)
    if facts.simulated:
        findings.insert(
            0,
            Finding("SIMULATED", "Facts", Verdict.INFO, "simulated: a recorded host, no hardware"),
        )
    return findings


def _refusal(host: Host, outcome: list[Finding] | Exception) -> Exception | None:
    from ddops.errors import RefusedError
    from ddops.model import Verdict

    if isinstance(outcome, Exception):
        return outcome
    bad = [f.check for f in outcome if f.verdict in (Verdict.FAIL, Verdict.UNKNOWN)]
    if not bad:
        return None
    return RefusedError(f"{host.name}: not fit: {', '.join(bad)}", next="see the last column")


def _words(f: Finding) -> str:
    return f"{f.title}: {f.seen}" + (f" -> {f.mend}" if f.mend else "")


def _row(f: Finding) -> dict[str, str]:
    return {
        "check": f.check,
        "title": f.title,
        "verdict": f.verdict.value,
        "seen": f.seen,
        "mend": f.mend,
    }
