"""`ddops check`: judge hosts from their facts, live or kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from datetime import datetime

    from ddops.cli.app import App
    from ddops.compat import Check, Finding
    from ddops.inventory import Host, Waiver
    from ddops.probe import Facts


#: --waive, --reason, --until; one of them at least is there.
Wish = tuple[tuple[str, ...], str | None, "datetime | None"]
HEADER = ("HOST", "SEVERITY", "VERDICT", "CHECK", "SEEN", "MEND")
_WORDS = {"B": "blocker", "E": "error", "W": "warning", "I": "information"}


def _waiver_options(command: Callable[..., None]) -> Callable[..., None]:
    """--waive with what belongs to it, handed on as one."""

    @click.option(
        "--waive", metavar="ID", multiple=True,
        help="Write down that this check may fail there; may be given several times.",
    )  # fmt: skip
    @click.option("--reason", metavar="TEXT", help="Of --waive: why.")
    @click.option(
        "--until",
        type=click.DateTime(["%Y-%m-%d"]),
        metavar="DAY",
        help="Of --waive: its last day.",
    )
    @wraps(command)
    def one(
        *args: object,
        waive: tuple[str, ...],
        reason: str | None,
        until: datetime | None,
        **more: object,
    ) -> None:
        wish = (waive, reason, until)
        command(*args, waiver=wish if any(wish) else None, **more)

    return one


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
@_waiver_options
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
    waiver: Wish | None,
    everything: bool,
) -> None:
    """Judge hosts: can they run what they are for?

    Exit 4 when a blocker or an error fails, or a required answer is missing. UNKNOWN is never PASS.
    A waived check still fails and says so; it refuses nothing until its day is over.

    \b
    ddops check lab
    ddops check b300 --json
    ddops check b300 --for k26-b300
    ddops check b300 --prove
    ddops check b300 --facts b300.json
    ddops check b300 pcie --diff
    ddops check b300 --waive GPU-06 --reason "by the PSU" --until 2027-01-31
    ddops check --explain DRV-03
    """
    from ddops.cli.verdicts import end_verdicts
    from ddops.errors import RefusedError, UsageError

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
    waivers = _waived(app, hosts, waiver) if waiver else app.inventory.waivers

    def judged(h: Host) -> list[Finding]:
        return _judged(app, h, service, facts_file, prove, waivers)

    outcomes = app.fan_out(hosts, judged)
    seen = [(h, o) for h, o in outcomes if not isinstance(o, Exception)]
    if as_json:
        _emit_json(seen)
    elif diff and len(seen) == 2:
        _emit_diff(seen)
    else:
        _emit_table(seen, everything)
    ends = [(h.name, _refusal(h, o)) for h, o in outcomes]
    end_verdicts(ends, app.report, RefusedError, "not fit")


def _judged(
    app: App, host: Host, service: str | None, facts_file: str | None, prove: bool,
    waivers: tuple[Waiver, ...],
) -> list[Finding]:  # fmt: skip
    from ddops.cli.router_checks import router_findings
    from ddops.clock import SystemClock
    from ddops.compat.host import judge_host, launch_for
    from ddops.inventory.router import router_alone

    facts = _facts(app, host, facts_file, prove)
    launch = launch_for(app.inventory, service, host) if service else None
    alone = router_alone(app.inventory, host)
    day = SystemClock().now().date()
    chain = judge_host(facts, host, launch, waivers, day, router=alone)
    return [*router_findings(app, host, kept=bool(facts_file)), *chain]


def _facts(app: App, host: Host, path: str | None, prove: bool) -> Facts:
    from pathlib import Path

    from ddops.cli.probe import facts_of, proved_facts
    from ddops.config.files import read_text
    from ddops.errors import DdopsError, UsageError
    from ddops.probe import parse_facts

    if path:
        anew = f"ddops probe {host.name} --save {path}"
        text = read_text(Path(path), pipe=True, next=anew)
        try:
            return parse_facts(text)
        except DdopsError as error:
            raise UsageError(f"{path} holds no readable facts", why=error.why, next=anew) from error
    facts = facts_of(app, host)
    return proved_facts(app, host, facts) if prove else facts


def _waived(app: App, hosts: Sequence[Host], wish: Wish) -> tuple[Waiver, ...]:
    """Write waivers into the project's inventory; all that there are then, those among them."""
    import getpass

    from ddops.clock import SystemClock
    from ddops.compat import beside
    from ddops.errors import UsageError
    from ddops.inventory import add_waivers, load

    wanted, reason, until = wish
    if not (wanted and reason and until):
        raise UsageError(
            "a waiver needs its check, its reason and its last day",
            next="ddops check b300 --waive GPU-06 --reason 'capped by the PSU' --until 2027-01-31",
        )
    known = {one.id: one for one in map(_known, wanted)}  # the same twice is one waiver
    for one in known.values():
        if one in beside():
            raise UsageError(
                f"{one.id} cannot be waived",
                why="it stands beside the chain: no provision and no deploy waits for it",
                next=f"ddops check --explain {one.id}",
            )
    if until.date() < SystemClock().now().date():
        raise UsageError(f"--until {until.date()} is over already", next="name a day to come")
    for lab in (False, True):
        names = [h.name for h in hosts if (h.origin.kind == "lab") is lab]
        if not names:
            continue
        file = add_waivers(
            app.project, list(known), names, reason, getpass.getuser(), until.date(), lab=lab
        )
        words = f"{', '.join(known)} waived on {', '.join(names)} until {until.date()}, in {file}"
        app.say(f"{words}, which goes with the lab" if lab else f"{words}: commit it")
    return load(app.project).waivers


def _emit_table(seen: Sequence[tuple[Host, list[Finding]]], everything: bool) -> None:
    from ddops.cli.output import emit_line, emit_table
    from ddops.model import Verdict

    quiet = () if everything else (Verdict.PASS, Verdict.SKIP)
    hosts: dict[tuple[str, ...], list[str]] = {}
    for host, findings in seen:
        for f in findings:
            if f.verdict not in quiet:
                row = (_WORDS[f.severity], _verdict(f), f.check, _seen(f), _mend(f))
                hosts.setdefault(row, []).append(host.name)
    order = list(_WORDS.values())
    rows = [
        (_names(names, len(seen)), *row)
        for row, names in sorted(hosts.items(), key=lambda item: order.index(item[0][0]))
    ]
    first = 1 if len(seen) == 1 else 0  # the room is dear, and one host was just named
    if rows:
        emit_table(HEADER[first:], [row[first:] for row in rows], wrapping=2)
    for words, names in _counts(seen).items():
        emit_line(f"{', '.join(names)}: {words}")


def _counts(seen: Sequence[tuple[Host, list[Finding]]]) -> dict[str, list[str]]:
    """How many of each verdict, and the hosts that have as many."""
    from ddops.model import Verdict

    out: dict[str, list[str]] = {}
    for host, findings in seen:
        counts = {v: sum(f.verdict is v for f in findings) for v in Verdict}
        words = ", ".join(f"{n} {v.value}" for v, n in counts.items() if n)
        out.setdefault(words, []).append(host.name)
    return out


def _names(names: Sequence[str], of: int) -> str:
    """Hosts that share a row: a fleet of one kind is one line, not one a host."""
    if len(names) == of and of > 2:
        return f"all {of}"
    return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"


def _seen(f: Finding) -> str:
    return f"{f.title}: {f.seen}"


def _verdict(f: Finding) -> str:
    return f"{f.verdict.value} (waived)" if f.waived else f.verdict.value


def _mend(f: Finding) -> str:
    return f"waived {f.waived}; {f.mend}" if f.waived else f.mend


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
        "waived": f.waived or None,
    }


def _known(wanted: str) -> Check:
    from ddops.compat import beside, checks
    from ddops.config.words import unknown
    from ddops.errors import UsageError

    known = {c.id: c for c in (*checks(), *beside())}
    one = known.get(wanted.upper())
    if one is None:
        raise UsageError(
            unknown(wanted.upper(), known, "check"), next="ddops check --explain DRV-03"
        )
    return one


def _explain(wanted: str, as_json: bool) -> None:
    from ddops.cli.output import emit_json

    one = _known(wanted)
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
    from ddops.compat.host import refusal_of

    return outcome if isinstance(outcome, Exception) else refusal_of(host, outcome)
