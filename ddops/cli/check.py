"""`ddops check`: judge hosts from their facts, live or kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.compat import Finding, Launch
    from ddops.inventory import Host
    from ddops.probe import Facts


_SEVERITIES = ("B", "E", "W", "I")
_WORDS = {"B": "blocker", "E": "error", "W": "warning", "I": "information"}


@click.command()
@targets(required=False)
@as_json
@click.option("--explain", metavar="ID", help="What a check looks at, why, and its sources.")
@click.option(
    "--facts",
    "facts_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Judge kept facts, with no host asked.",
)
@click.option("--for", "service", metavar="SERVICE", help="Judge this service's launch too.")
@click.option("--prove", is_flag=True, help="Compile, launch and copy on the host to see.")
@click.option("--diff", is_flag=True, help="Two hosts: only where they differ.")
@click.option("--all", "everything", is_flag=True, help="Show PASS and SKIP too.")
@click.pass_obj
def check(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
    explain: str | None,
    facts_file: str | None,
    service: str | None,
    prove: bool,
    diff: bool,
    everything: bool,
) -> None:
    """Judge hosts: can they run what they are for?

    Exit 4 when a blocker or an error fails, or a required answer is missing. UNKNOWN is never PASS.

    \b
    ddops check lab
    ddops check b300 --json
    ddops check b300 --for k26-b300
    ddops check b300 --prove
    ddops check b300 --facts b300.json
    ddops check b300 pcie --diff
    ddops check --explain DRV-03
    """
    from ddops.cli.app import end_together
    from ddops.errors import UsageError

    if explain:
        _explain(explain, as_json)
        return
    if not target:
        raise UsageError("check whom?", next="ddops check HOST")
    hosts = app.select(target, limit, exclude).hosts
    if (facts_file and len(hosts) != 1) or (diff and len(hosts) != 2):
        raise UsageError(
            f"{'--facts is of one host' if facts_file else '--diff needs two hosts'}: "
            f"these are {len(hosts)}",
            next="ddops host list",
        )
    launch = _launch(app, service) if service else None
    outcomes = app.fan_out(hosts, lambda h: judged(_facts(app, h, facts_file, prove), h, launch))
    seen = [(h, o) for h, o in outcomes if not isinstance(o, Exception)]
    if as_json:
        _emit_json(seen)
    elif diff and len(seen) == 2:
        _emit_diff(seen)
    else:
        _emit_table(seen, everything)
    end_together([(h.name, _refusal(h, o)) for h, o in outcomes], app.report)


def _facts(app: App, host: Host, path: str | None, prove: bool) -> Facts:
    from pathlib import Path

    from ddops.cli.probe import facts_of, proved_facts
    from ddops.errors import UsageError
    from ddops.probe import parse_facts

    if path:
        try:
            return parse_facts(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{path} cannot be read",
                why=str(error),
                next=f"ddops probe {host.name} --save {path}",
            ) from error
    facts = facts_of(app, host)
    return proved_facts(app, host, facts) if prove else facts


def _launch(app: App, name: str) -> Launch:
    """A service's launch as it would be rendered."""
    from ddops.compat import Launch
    from ddops.engines import launch_spec
    from ddops.errors import UsageError

    service = app.inventory.services.get(name)
    if service is None:
        raise UsageError(f"no service is called {name}", next="ddops config show")
    profile = app.inventory.profiles[service.profile]
    spec = launch_spec(service, profile, "${engine_dir}/env")
    # ddops brings the plugin of this algorithm along (sglang_ddtree).
    plugins = ("DDTREE",) if profile.spec.algorithm == "DDTREE" else ()
    return Launch(spec.argv, dict(spec.env), profile.engine, service.model, plugins)


def judged(facts: Facts, host: Host, launch: Launch | None = None) -> list[Finding]:
    """All findings of a host; simulated facts say so in a row of their own."""
    from ddops.compat import Finding, Subject, judge_all
    from ddops.model import Verdict

    subject = Subject(
        facts, host.host_class or "cpu", host.engine_env, host.pins.gpu_uuids, launch=launch
    )
    findings = judge_all(subject)
    if facts.simulated:
        words = "simulated: a recorded host, no hardware"
        findings.insert(0, Finding("SIMULATED", "Facts", Verdict.INFO, words, "", "I", "host"))
    return findings


def _emit_table(seen: Sequence[tuple[Host, list[Finding]]], everything: bool) -> None:
    from ddops.cli.output import emit_table
    from ddops.model import Verdict

    quiet = () if everything else (Verdict.PASS, Verdict.SKIP)
    rows = []
    for host, findings in seen:
        for severity in _SEVERITIES:
            rows += [
                (host.name, _WORDS[severity], f.verdict.value, f.check, _seen(f),
                 f.mend)
                for f in findings
                if f.severity == severity and f.verdict not in quiet
            ]  # fmt: skip
        counts = {v: sum(f.verdict is v for f in findings) for v in Verdict}
        words = ", ".join(f"{n} {v.value}" for v, n in counts.items() if n)
        rows.append((host.name, "", "", "", words, ""))
    if rows:
        emit_table(("HOST", "SEVERITY", "VERDICT", "CHECK", "SEEN", "MEND"), rows)


def _seen(f: Finding) -> str:
    return f"{f.title}: {f.seen}"[:110]


def _emit_diff(seen: Sequence[tuple[Host, list[Finding]]]) -> None:
    from ddops.cli.output import emit_table

    (left, a), (right, b) = seen
    other = {f.check: f for f in b}
    rows = [
        (f.check, f"{f.verdict.value} {f.seen}"[:60], f"{o.verdict.value} {o.seen}")
        for f in a
        if (o := other.get(f.check)) is not None and (o.verdict, o.seen) != (f.verdict, f.seen)
    ]
    emit_table(("CHECK", left.name, right.name), rows or [("", "no difference", "")])


def _emit_json(seen: Sequence[tuple[Host, list[Finding]]]) -> None:
    from ddops.cli.output import emit_json

    emit_json("check", {h.name: [_row(f) for f in findings] for h, findings in seen})


def _row(f: Finding) -> dict[str, object]:
    return {
        "check": f.check,
        "title": f.title,
        "verdict": f.verdict.value,
        "seen": f.seen,
        "mend": f.mend,
        "severity": _WORDS[f.severity],
        "group": f.group,
        "refuses": f.refuses,
    }


def _explain(wanted: str, as_json: bool) -> None:
    import difflib

    from ddops.cli.output import emit_json
    from ddops.compat import checks
    from ddops.errors import UsageError

    known = {c.id: c for c in checks()}
    one = known.get(wanted.upper())
    if one is None:
        near = difflib.get_close_matches(wanted.upper(), known, 1)
        raise UsageError(
            f"no check is called {wanted}",
            why=f"did you mean {near[0]}?" if near else f"there are {len(known)}",
            next="ddops check --explain DRV-03",
        )
    data = {
        "check": one.id, "title": one.title, "severity": _WORDS[one.severity], "why": one.why,
        "looks at": one.probe, "passes when": one.rule, "mend": one.mend,
        "needs": list(one.needs), "sources": list(one.sources),
    }  # fmt: skip
    if as_json:
        emit_json("explain", data)
        return
    for key, value in data.items():
        lines = value if isinstance(value, list) else [value]
        for line in lines:
            click.echo(f"{key + ':':13} {line}")


def _refusal(host: Host, outcome: list[Finding] | Exception) -> Exception | None:
    from ddops.errors import RefusedError

    if isinstance(outcome, Exception):
        return outcome
    bad = [f.check for f in outcome if f.refuses]
    if not bad:
        return None
    return RefusedError(f"{host.name}: not fit: {', '.join(bad)}", next="see the last column")
