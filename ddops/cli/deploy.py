"""`ddops deploy`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ddops.cli.options import as_json, confirm, targets, yes

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.deploy import Outcome, Stop, Tools
    from ddops.inventory import Host, Profile, Service


@dataclass(frozen=True, slots=True)
class Job:
    """One service on one host with the profile it is deployed with."""

    host: Host
    service: Service
    profile: Profile


@click.command()
@targets(required=True)
@click.option("--profile", metavar="NAME", help="Another launch profile than the service's own.")
@click.option("--dry-run", is_flag=True, help="Show release, command line and unit; touch nothing.")
@click.option("--lock-wait", type=float, default=0.0, metavar="SECONDS", help="Wait for the lock.")
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
    lock_wait: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Make a release live on a host, group or service.

    The release is staged whole, started, and gated: it must prove that it is this start of this
    release and answer the golden prompts right. When it fails, the last good release comes back.

    \b
    ddops deploy lab
    ddops deploy b300 --dry-run
    """
    from ddops.cli.app import end_together
    from ddops.deploy import Stop, deploy_service, on_interrupt

    jobs = _jobs(app, target, limit, exclude, profile)
    if dry_run:
        _dry_run(app, jobs, as_json)
        return
    if not all(j.host.origin.kind == "lab" for j in jobs):
        words = ", ".join(f"{j.service.name} on {j.host.name}" for j in jobs)
        confirm(f"Deploy {words}?", yes)
    stop = Stop()
    tools = tools_of(app, stop, lock_wait)
    with on_interrupt(stop, app.warn):
        outcomes = app.fan_out(
            jobs,
            lambda j: deploy_service(app.transport(j.host), j.host, j.service, j.profile, tools),
        )
    _show(app, outcomes, as_json)
    end_together([(j.host.name, o) for j, o in outcomes], app.report)


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
    return [Job(h, s, app.inventory.profile_of(s, profile)) for h, s in pairs]


def tools_of(app: App, stop: Stop, lock_wait: float) -> Tools:
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
    )


def _show(app: App, outcomes: list[tuple[Job, Outcome | Exception]], as_json: bool) -> None:
    from ddops.cli.output import emit_json, emit_table
    from ddops.deploy import Outcome
    from ddops.model import short

    done = [(j, o) for j, o in outcomes if isinstance(o, Outcome)]
    if as_json:
        emit_json(
            "deploy",
            [
                {"host": o.host, "service": o.service, "release": o.release, "nonce": o.nonce,
                 "changed": o.changed, "url": _url(j)}
                for j, o in done
            ],
        )  # fmt: skip
        return
    rows = [
        (o.host, o.service, short(o.release), "live" if o.changed else "unchanged", _url(j))
        for j, o in done
    ]
    if rows:
        emit_table(("HOST", "SERVICE", "RELEASE", "RESULT", "URL"), rows)


def _url(job: Job) -> str:
    from ddops.deploy import port_of

    return f"http://{job.service.listen}:{port_of(job.host, job.service)}"


def _dry_run(app: App, jobs: list[Job], as_json: bool) -> None:
    """What would be deployed, from local files, and what the host says now, where it answers."""
    from ddops.cli.output import emit_json, emit_line
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
        emit_line(_wrapped("evidence", evidence.status + (f": {note}" if note else "")))
        emit_line(_wrapped("release", plan.release_words))
        emit_line(_wrapped("host", plan.host_words))
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


def _wrapped(name: str, text: str) -> str:
    import textwrap

    return textwrap.fill(text, 96, initial_indent=f"  {name:<10} ", subsequent_indent=" " * 13)


def command_lines(argv: tuple[str, ...]) -> list[str]:
    """One option a line, its values beside it."""
    lines: list[str] = []
    for word in argv:
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word) if not word.startswith("${") else word)
        else:
            lines[-1] += " " + (word if "${" in word else shlex.quote(word))
    return lines
