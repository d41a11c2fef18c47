"""`ddops deploy`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

import click

from ddops.cli.given import COUNT
from ddops.cli.options import Number, as_json, confirm, lock_wait_option, targets, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.deploy import Outcome, Stop, Tools
    from ddops.deploy.fleet import RollOut, Rules
    from ddops.gates import Observation
    from ddops.inventory import Host, Profile, Service

    FirstLook = Callable[[], Observation | None]


@dataclass(frozen=True, slots=True)
class Job:
    """One service on one host with the profile it is deployed with."""

    host: Host
    service: Service
    profile: Profile


def _fleet_options(command: Callable[..., None]) -> Callable[..., None]:
    """How a release goes to several hosts, handed on as one."""

    @click.option("--canary", is_flag=True, help="One host first, the others when it passed.")
    @click.option("--batch", type=COUNT, metavar="N", help="So many at a time.")
    @click.option(
        "--fail-percent",
        type=Number(0, 100),
        default=0.0,
        metavar="P",
        help="Go on while no more than this share of the hosts has failed.",
    )
    @click.option("--keep", is_flag=True, help="After a failure: leave the done ones as they are.")
    @wraps(command)
    def one(
        *args: object,
        canary: bool,
        batch: int | None,
        fail_percent: float,
        keep: bool,
        **more: object,
    ) -> None:
        def rules() -> Rules:
            from ddops.deploy.fleet import Rules

            return Rules(canary, batch, fail_percent, keep)

        command(*args, fleet=rules, **more)

    return one


@click.command()
@targets(required=True)
@click.option("--profile", metavar="NAME", help="Another launch profile than the service's own.")
@click.option("--dry-run", is_flag=True, help="Show release, command line and unit; touch nothing.")
@click.option("--render-only", is_flag=True, help="Write what would be handed over, ask nobody.")
@click.option("-o", "--out", metavar="DIR", help="Where --render-only writes.")
@lock_wait_option
@_fleet_options
@yes
@as_json
@click.pass_obj
def deploy(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    profile: str | None,
    dry_run: bool,
    render_only: bool,
    out: str | None,
    lock_wait: float,
    fleet: Callable[[], Rules],
    yes: bool,
    as_json: bool,
) -> None:
    """Make a release live on a host, group or service.

    The release is staged whole, started, and gated: it must prove that it is this start of this
    release and answer the golden prompts right. When it fails, the last good release comes back;
    of several hosts those that had it already are taken back too, unless --keep.

    \b
    ddops deploy lab
    ddops deploy b300 --dry-run
    ddops deploy nvlink --canary --batch 4
    ddops deploy k26 --render-only -o k26-files
    """
    jobs = _jobs(app, target, limit, exclude, profile)
    whole([(j.host, j.service) for j in jobs])
    first = None if dry_run or render_only or out is not None else _begin(app, jobs, yes)

    from ddops.deploy.rendered import refuse_kubernetes

    rules = fleet()
    if render_only or out is not None:
        from ddops.cli.deploy_render import render_only as write

        _no_mixture(render_only, dry_run)
        write(app, jobs, out, as_json)
        return
    _no_waves(jobs, rules)
    refuse_kubernetes(j.service for j in jobs)
    if dry_run:
        _dry_run(app, jobs, as_json)
        return
    if not all(j.host.origin.kind == "lab" for j in jobs):
        words = ", ".join(f"{j.service.name} on {j.host.name}" for j in jobs)
        confirm(f"Deploy {words}?", yes)
    _make_live(app, jobs, rules, first, lock_wait, as_json)


def _make_live(
    app: App,
    jobs: list[Job],
    rules: Rules,
    first: FirstLook | None,
    lock_wait: float,
    as_json: bool,
) -> None:
    from ddops.cli.app import end_together
    from ddops.cli.routers import settle_routers
    from ddops.deploy import Stop, on_interrupt

    stop = Stop()
    tools = tools_of(app, stop, lock_wait)
    with on_interrupt(stop, app.warn):
        jobs, rules = _in_turn(app, jobs, rules)
        done = _roll_out(app, jobs, tools, rules, first)
        outcomes = [(j.host, j.service, o) for j, o in done.outcomes]
        routers = [] if stop.asked else settle_routers(app, outcomes, tools)
    settled = [(url, r.outcome) for _, url, r in routers if not isinstance(r, Exception)]
    emit_outcomes(outcomes, as_json, settled)
    _end(app, done)
    end_together([(host, r) for host, _, r in routers], app.report)


def _begin(app: App, jobs: list[Job], yes: bool) -> FirstLook | None:
    """Connect and look while the deploy's modules are loaded, where nobody is asked before it.

    For one host whose engine runs there. A look that fails is the deploy's own to take again.
    """
    only = jobs[0] if len(jobs) == 1 else None
    if only is None or only.service.engine or not (yes or only.host.origin.kind == "lab"):
        return None
    from ddops.errors import CommandFailed
    from ddops.gates import observe
    from ddops.inventory.port import port_of
    from ddops.layout import HostLayout
    from ddops.transport.common import Job as Beside

    host, name, port = only.host, only.service.name, port_of(only.host, only.service)
    transport, layout = app.begin(host), HostLayout(only.host.engine_dir)

    def look() -> Observation | None:
        try:
            return observe(transport, layout, host.python, name, port)
        except CommandFailed:
            return None

    return partial(Beside(look, f"first-look-{host.name}").within, TIMEOUT_MAX)


def _in_turn(app: App, jobs: list[Job], rules: Rules) -> tuple[list[Job], Rules]:
    """Replicas behind a router one after the other; other hosts as they were asked for."""
    from ddops.cli.routers import rolling

    of = {(j.host, j.service): j for j in jobs}
    pairs, rules = rolling(app, list(of), rules)
    return [of[p] for p in pairs], rules


def _roll_out(
    app: App, jobs: list[Job], tools: Tools, rules: Rules, first: FirstLook | None
) -> RollOut[Job]:
    from dataclasses import replace

    from ddops.deploy import Stop, deploy_service, roll_back
    from ddops.deploy.fleet import roll_out

    # Taking back is what the wish to stop asks for; a second one ends the program.
    calm = replace(tools, stop=Stop())

    def forth(wave: Sequence[Job]) -> Sequence[tuple[Job, Outcome | Exception]]:
        shared = in_parties([(j.host, j.service) for j in wave], tools)
        return app.fan_out(
            wave,
            lambda j: app.reach(
                j.host,
                lambda t: deploy_service(
                    t, j.host, j.service, j.profile, shared[j.service.name], first
                ),
            ),
            least=_most_nodes(wave),
        )

    def back(wave: Sequence[Job]) -> Sequence[tuple[Job, Outcome | Exception]]:
        shared = in_parties([(j.host, j.service) for j in wave], calm)
        return app.fan_out(
            wave,
            lambda j: app.reach(
                j.host, lambda t: roll_back(t, j.host, j.service, None, shared[j.service.name])
            ),
            least=_most_nodes(wave),
        )

    return roll_out(jobs, forth, back, rules, app.say)


def whole(pairs: Sequence[tuple[Host, Service]]) -> None:
    """Raise UsageError where only some hosts of one engine are meant, or they are not as many."""
    from ddops.errors import UsageError

    for service in {s.name: s for _, s in pairs if s.hosts_of_one > 1}.values():
        hosts = [h.name for h, s in pairs if s.name == service.name]
        if len(hosts) != service.nnodes or not service.node.address:
            known = bool(service.node.address)  # else its `hosts` are not as many as its `nnodes`
            raise UsageError(
                f"{service.name} is one engine on {service.nnodes} hosts, and {len(hosts)} are"
                f" meant: {', '.join(hosts)}",
                why="they go together or not at all",
                next=f"name the service: {service.name}"
                if known
                else f"{service.origin.file}: make `nnodes` and `hosts` agree",
            )


def in_parties(pairs: Sequence[tuple[Host, Service]], tools: Tools) -> dict[str, Tools]:
    """By service; the hosts of one engine share what they meet at."""
    from dataclasses import replace

    from ddops.deploy.party import Party

    hosts: dict[str, list[str]] = {}
    for host, service in pairs:
        hosts.setdefault(service.name, []).append(host.name)
    several = {s.name for _, s in pairs if s.hosts_of_one > 1}
    return {
        name: replace(tools, party=Party(tuple(on))) if name in several else tools
        for name, on in hosts.items()
    }


def _most_nodes(jobs: Sequence[Job]) -> int:
    return max((j.service.hosts_of_one for j in jobs), default=1)


def _no_waves(jobs: Sequence[Job], rules: Rules) -> None:
    from ddops.errors import UsageError

    if _most_nodes(jobs) > 1 and (rules.canary or rules.batch):
        raise UsageError(
            "one engine on several hosts has no canary and no batches",
            why="its hosts are deployed together",
            next="leave out --canary and --batch",
        )


def _no_mixture(render_only: bool, dry_run: bool) -> None:
    from ddops.errors import UsageError

    if dry_run or not render_only:
        raise UsageError(
            "-o and --render-only go together, and without --dry-run",
            next="ddops deploy SERVICE --render-only -o DIR",
        )


def _end(app: App, done: RollOut[Job]) -> None:
    """End a roll-out; while the fleet is of one kind, with its failures' common exit code."""
    from ddops.cli.app import end_together, some, tell_errors
    from ddops.deploy.fleet import NotTried, TakenBack
    from ddops.errors import DdopsError, ExitCode, RolledBackError

    named = [(j.host.name, o) for j, o in done.outcomes]
    failed = [(n, o) for n, o in named if isinstance(o, DdopsError)]
    real = [(n, o) for n, o in failed if not isinstance(o, NotTried | TakenBack)]
    if len(named) == 1 or not done.consistent or not real:
        end_together(named, app.report)
        return
    tell_errors(failed, app.report)
    summary = RolledBackError(
        f"{len(real)} of {len(named)} hosts failed: {some([n for n, _ in real])}",
        why="the fleet serves what it served before",
    )
    codes = {o.exit_code for _, o in real}
    if len(codes) == 1 and not any(isinstance(o, TakenBack) for _, o in failed):
        summary.exit_code = ExitCode(codes.pop())
    raise summary


def _jobs(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    profile: str | None,
) -> list[Job]:
    from ddops.inventory import one_service_per_host

    selection = app.select(target, limit, exclude)
    pairs = one_service_per_host(selection)
    jobs = [Job(h, s, app.inventory.profile_of(s, profile)) for h, s in pairs]
    # Those of one engine side by side: one that waits for another has it at work already.
    return sorted(jobs, key=lambda j: j.service.name) if _most_nodes(jobs) > 1 else jobs


def tools_of(app: App, stop: Stop, lock_wait: float) -> Tools:
    from ddops.cli.backups import tools_for_deploy
    from ddops.cli.routers import drains_of
    from ddops.clock import SystemClock
    from ddops.deploy import Settings, Tools

    s = app.settings
    return Tools(
        lookup=app.lookup,
        ledger=app.ledger,
        resolve=app.resolve,
        settings=Settings(s.load_budget_s, s.ready_quiet_s, s.keep_releases, s.gate_timeout_s),
        clock=SystemClock(),
        stop=stop,
        report=app.report,
        redactor=app.redactor,
        lock_wait_s=lock_wait,
        waivers=app.inventory.waivers,
        snapshots=lambda host: tools_for_deploy(app, host),
        drains=drains_of(app),
    )


def emit_outcomes(
    outcomes: Sequence[tuple[Host, Service, Outcome | Exception]],
    as_json: bool,
    routers: Sequence[tuple[str, Outcome]] = (),
) -> None:
    """What is live now, of the hosts where it went well."""
    from ddops.cli.output import emit_json, emit_table
    from ddops.deploy import Outcome, port_of
    from ddops.model import short

    done = [
        (f"http://{o.where or f'{s.listen}:{port_of(h, s)}'}", o)
        for h, s, o in outcomes
        if isinstance(o, Outcome)
    ]
    done += routers
    if as_json:
        emit_json(
            "deploy",
            [
                {"host": o.host, "service": o.service, "release": o.release, "nonce": o.nonce,
                 "changed": o.changed, "url": url}
                for url, o in done
            ],
        )  # fmt: skip
        return
    rows = [
        (o.host, o.service, short(o.release), "live" if o.changed else "unchanged", url)
        for url, o in done
    ]
    if rows:
        emit_table(("HOST", "SERVICE", "RELEASE", "RESULT", "URL"), rows)


def _dry_run(app: App, jobs: list[Job], as_json: bool) -> None:
    """What would be deployed, from local files, and what the host says now, where it answers."""
    from ddops.cli.output import emit_json, emit_line
    from ddops.cli.routers import planned_routers
    from ddops.deploy import plan_release

    plans = [
        plan_release(app.transport(j.host), j.host, j.service, j.profile, app.lookup) for j in jobs
    ]
    if as_json:
        emit_json("deploy-plan", [p.as_json() for p in plans])
        return
    for job, plan in zip(jobs, plans, strict=True):
        tag = f" {job.host.origin.tag}" if job.host.origin.tag else ""
        emit_line(f"{job.service.name} on {job.host.name}{tag}, profile {job.profile.name}")
        evidence = job.profile.evidence
        note = " ".join(evidence.note.split())
        _fact("evidence", evidence.status + (f": {note}" if note else ""))
        _fact("release", plan.release_words)
        _fact("host", plan.host_words)
        emit_line("  command")
        for line in command_lines(plan.argv):
            emit_line(f"    {line}")
        emit_line("  environment")
        for name, value in plan.env:
            emit_line(f"    {name}={value}")
        emit_line("  unit")
        for line in plan.unit.splitlines():
            emit_line(f"    {line}".rstrip())
        emit_line("  transitions")
        for state, words in plan.transitions:
            emit_line(f"    {state:<12} {words}")
    for line in planned_routers(app, [j.service for j in jobs]):
        emit_line(line)


def _fact(name: str, text: str) -> None:
    import textwrap

    from ddops.cli.output import emit_line

    head = f"  {name:<10} "
    for line in textwrap.wrap(text, 80, initial_indent=head, subsequent_indent=" " * len(head)):
        emit_line(line)


def command_lines(argv: tuple[str, ...]) -> list[str]:
    """One option a line, its values beside it."""
    lines: list[str] = []
    for word in argv:
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word) if not word.startswith("${") else word)
        else:
            lines[-1] += " " + (word if "${" in word else shlex.quote(word))
    return lines
