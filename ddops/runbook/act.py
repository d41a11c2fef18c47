"""Doing a step: each kind calls the product's own function. Answers evidence as JSON data."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddops import lock
from ddops.command import Cmd, cmd
from ddops.compat import launch_of
from ddops.compat.host import judge_host, launch_for, refusal_of
from ddops.deploy import (
    Outcome,
    Stop,
    Tools,
    deploy_release,
    deploy_service,
    look_back,
    port_of,
    roll_back,
)
from ddops.deploy.host import ServiceOnHost
from ddops.deploy.release import staged_release
from ddops.errors import CommandFailed, DdopsError, RefusedError, UsageError
from ddops.inventory import services_on
from ddops.inventory.model import Host
from ddops.inventory.router import router_alone, routers_on
from ddops.layout import HostLayout
from ddops.model import digest, short
from ddops.probe import Facts, collect
from ddops.probe.note import note_facts
from ddops.provision.apply import do_plan, plan_host
from ddops.runbook.act_more import do_bench, do_recommend, do_report, do_retract, do_sweep
from ddops.runbook.context import Context
from ddops.runbook.steps import (
    Action,
    Bench,
    Check,
    Deploy,
    Drill,
    Probe,
    Prompt,
    ProvisionStep,
    Recommend,
    Report,
    Retract,
    Rollback,
    Shell,
    SnapshotStep,
    SweepStep,
    Tree,
    Trust,
    WaitUntil,
)
from ddops.snapshot import snapshot_host
from ddops.snapshot.drill import drill
from ddops.transport import LocalTransport, Transport
from ddops.transport.trust import known_here, look_at_key
from ddops.tree.host import ManagedTree
from ddops.tree.judge import judge_tree, look_at_tree

Evidence = Mapping[str, object]
#: Output of a shell step that its evidence keeps.
KEPT = 2000


class NeedsApproval(DdopsError):
    """A person must say yes. `subject` is what exactly: an approval holds for that alone."""

    def __init__(self, asked: str, subject: str) -> None:
        super().__init__(asked)
        self.subject = subject


@dataclass(frozen=True, slots=True)
class Doing:
    """What one step is done with. `approved` is the subject that a person said yes to.

    `meant` is what the journal says that it was begun with, and `again` that it was begun before
    and may have done its work.
    """

    context: Context
    stop: Stop
    limit_s: float
    lock_wait_s: float
    by: str
    approved: str | None = None
    meant: Evidence = field(default_factory=dict)
    again: bool = False


def meaning(action: Action, doing: Doing) -> Evidence:
    """What must be settled before a step begins, so that doing it again means the same.

    "The last other release" is another one once the rollback was done.
    """
    if not isinstance(action, Rollback):
        return {}
    ctx = doing.context
    host = ctx.host(action.host)
    found = look_back(_on_host(host, ctx))
    return {"from": found.current, "to": found.choose(host.name, action.to)}


def act(action: Action, doing: Doing) -> Evidence:
    """Do it, or raise what the product's own command would."""
    match action:
        case Trust():
            return _trust(action, doing)
        case Probe():
            return _probe(action, doing)
        case Check():
            return _check(action, doing)
        case ProvisionStep():
            return _provision(action, doing)
        case Tree():
            return _tree(action, doing)
        case SnapshotStep():
            return _snapshot(action, doing)
        case Drill():
            return _drill(action, doing)
        case Deploy() | Rollback():
            return _release(action, doing)
        case Bench():
            return do_bench(action, doing.context, doing.stop)
        case SweepStep():
            return do_sweep(action, doing.context, doing.stop)
        case Recommend():
            return do_recommend(action, doing.context)
        case Report():
            return do_report(action, doing.context)
        case Retract():
            return do_retract(action, doing.context, doing.by)
        case WaitUntil():
            return {}  # what it waits for is asked by the run
        case Prompt():
            return _prompt(action, doing)
        case Shell():
            return _shell(action, doing)


def _trust(action: Trust, doing: Doing) -> Evidence:
    """A key that is pinned or known already is left alone: connecting holds the host to it."""
    ctx = doing.context
    target = ctx.ssh_target(ctx.host(action.host))
    if known_here(target):
        return {"words": "its key is known here already"}
    shown = look_at_key(target, ctx.policy)
    if action.fingerprint and action.fingerprint != shown.fingerprint:
        raise RefusedError(
            f"{action.host} shows another key than the one that was given",
            why=f"{shown.place} shows {shown.kind} {shown.fingerprint}",
            next="compare with ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub on its console",
        )
    if not action.fingerprint and doing.approved != shown.fingerprint:
        raise NeedsApproval(
            f"{action.host} ({shown.place}) shows {shown.kind} {shown.fingerprint}:"
            " is it what its console says?",
            shown.fingerprint,
        )
    shown.pin()
    return {"words": f"pinned {shown.fingerprint}", "file": str(shown.file)}


def _facts(host: Host, ctx: Context) -> Facts:
    root = str(host.vars.get("root", "/"))
    return collect(ctx.transport(host), host.python, host.engine_dir, root)


def _probe(action: Probe, doing: Doing) -> Evidence:
    ctx = doing.context
    host = ctx.host(action.host)
    facts = _facts(host, ctx)
    with ctx.ledger() as book:
        new = note_facts(book, host, facts)
    said = "simulated facts" if facts.simulated else "facts"
    return {"words": f"{said} {short(facts.digest)}, {'new' if new else 'as before'}"}


def _check(action: Check, doing: Doing) -> Evidence:
    ctx = doing.context
    host = ctx.host(action.host)
    launch = launch_for(ctx.inventory, action.service, host) if action.service else None
    day = ctx.clock.now().date()
    alone = router_alone(ctx.inventory, host)
    found = judge_host(_facts(host, ctx), host, launch, ctx.inventory.waivers, day, router=alone)
    refused = refusal_of(host, found, next=f"ddops check {host.name}")
    if refused is not None:
        raise refused
    counts: dict[str, int] = {}
    for f in found:
        counts[f.verdict.value] = counts.get(f.verdict.value, 0) + 1
    return {"words": ", ".join(f"{n} {v}" for v, n in sorted(counts.items())), "counts": counts}


def _provision(action: ProvisionStep, doing: Doing) -> Evidence:
    ctx = doing.context
    host = ctx.host(action.host)
    with tempfile.TemporaryDirectory(prefix="ddops-") as folder:
        services, routes = services_on(ctx.inventory, host), bool(routers_on(ctx.inventory, host))
        made = plan_host(
            ctx.transport(host), host, services, ctx.lookup, Path(folder), routes=routes
        )
        if not made.plan.pending:
            return {"words": "nothing to do", "plan": made.plan.digest}
        count = do_plan(
            made, host, report=ctx.report, clock=ctx.clock,
            stopped=lambda: doing.stop.asked, lock_wait_s=doing.lock_wait_s,
            pause=doing.stop.pause,
        )  # fmt: skip
    return {"words": f"{count} steps done", "plan": made.plan.digest}


def _tree(action: Tree, doing: Doing) -> Evidence:
    ctx = doing.context
    host = ctx.host(action.host)
    managed = ManagedTree(ctx.transport(host), host)
    services = [s.name for s in services_on(ctx.inventory, host)]
    seen, series = look_at_tree(managed, services, ctx.lookup)
    if action.action == "verify":
        wrong = judge_tree(seen, series)
        if wrong:
            raise DdopsError(
                f"{host.name}: the tree is not what is recorded: {wrong[0]}",
                why="; ".join(wrong[1:]), next=f"ddops tree status {host.name}",
            )  # fmt: skip
        return {"words": f"tree {short(str(seen['tree']))} is upstream and series"}
    done = managed.apply(series, back=action.action == "reverse")
    rows = done["done"]
    count = len(rows) if isinstance(rows, list) else 0
    return {"words": f"{count} patches, tree {short(str(done['tree']))}", "tree": done["tree"]}


def _snapshot(action: SnapshotStep, doing: Doing) -> Evidence:
    ctx = doing.context
    host = ctx.host(action.host)
    found = services_on(ctx.inventory, host)
    service = found[0].name if len(found) == 1 else None
    made = snapshot_host(ctx.transport(host), host, service, action.tree, ctx.snapshots(host))
    copies = ", ".join(f"{p.partition(':')[0]} {s}" for p, s in made.copies.items())
    words = f"{short(made.manifest.id)} {'new' if made.fresh else 'unchanged'}"
    return {"words": f"{words}, {copies or 'here only'}", "snapshot": made.manifest.id}


def _drill(action: Drill, doing: Doing) -> Evidence:
    ctx = doing.context
    tools = ctx.snapshots(ctx.host(action.host))
    mine = [m for m in tools.store.manifests() if m.host == action.host]
    if not mine:
        raise UsageError(
            f"no snapshot of {action.host} is in this project",
            next=f"ddops snapshot {action.host}",
        )
    rows = drill(mine[0], tools)
    bad = [r for r in rows if r.verdict != "PASS"]
    if bad or not rows:
        raise DdopsError(
            f"{action.host}: the drill failed" if rows else "there is no place to restore from",
            why="; ".join(f"{r.place}: {r.words}" for r in bad),
            next="ddops snapshot verify",
        )
    words = ", ".join(r.place.partition(":")[0] for r in rows)
    return {"words": f"{short(mine[0].id)} is back whole from {words}", "snapshot": mine[0].id}


def _release(action: Deploy | Rollback, doing: Doing) -> Evidence:
    ctx = doing.context
    host = ctx.host(action.host)
    service = ctx.service(host)
    tools = ctx.deploy_tools(doing.stop, doing.lock_wait_s)
    out: Outcome
    if isinstance(action, Deploy):
        profile = ctx.inventory.profile_of(service, action.profile)
        out = deploy_service(ctx.transport(host), host, service, profile, tools)
    else:
        to = str(doing.meant["to"])
        out = _there(host, to, tools, ctx) if doing.again else (
            roll_back(ctx.transport(host), host, service, to, tools))  # fmt: skip
    words = f"{out.service} {short(out.release)} {'is live' if out.changed else 'was live already'}"
    return {"words": words, "release": out.release, "nonce": out.nonce}


def _there(host: Host, to: str, tools: Tools, ctx: Context) -> Outcome:
    """A rollback that was begun before: the release it meant, wherever it had got to."""
    target, service = _on_host(host, ctx), ctx.service(host)
    release = staged_release(to, target.staged_files(to))
    judged = launch_of(release.launch, str(release.content["upstream"]), service, host)
    transport = ctx.transport(host)
    return deploy_release(transport, host, service, release, tools, judged, lambda: ())


def _on_host(host: Host, ctx: Context) -> ServiceOnHost:
    service = ctx.service(host)
    port = port_of(host, service)
    return ServiceOnHost(ctx.transport(host), host, service, port, ctx.lookup, ctx.redactor)


def _prompt(action: Prompt, doing: Doing) -> Evidence:
    subject = digest(action.ask)
    if doing.approved != subject:
        raise NeedsApproval(action.ask, subject)
    return {"words": "approved"}


def _shell(action: Shell, doing: Doing) -> Evidence:
    ctx = doing.context
    stdin = ctx.resolve(action.stdin) if action.stdin else None
    if action.host is None:
        here = cmd(*action.argv, env=action.env, cwd=str(ctx.root), stdin=stdin)
        return _ran(LocalTransport("here"), action, doing, here)
    host = ctx.host(action.host)
    there = cmd(*action.argv, env=action.env, stdin=stdin)
    transport = ctx.transport(host)
    if "none" in action.effects:
        return _ran(transport, action, doing, there)
    op_id = f"{ctx.clock.now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    owner = lock.owner(op_id, f"runbook: {Path(action.argv[0]).name}", ctx.clock)
    layout, wait = HostLayout(host.engine_dir), doing.lock_wait_s
    with lock.holding(transport, layout, owner, wait_s=wait, pause=doing.stop.pause):
        return _ran(transport, action, doing, there)


def _ran(transport: Transport, action: Shell, doing: Doing, command: Cmd) -> Evidence:
    done = transport.run(command, deadline_s=doing.limit_s)
    out = {"rc": done.rc, "stdout": done.out[-KEPT:], "stderr": done.err[-KEPT:]}
    if not done.ok:
        raise CommandFailed(
            f"{transport.host}: {action.argv[0]} ended with status {done.rc}",
            rc=done.rc, stderr=done.err or done.out,
        )  # fmt: skip
    return {"words": f"ended with status 0, effects: {', '.join(action.effects)}", **out}
