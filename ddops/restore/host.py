"""A snapshot onto a host: environment, weights, tree, release, start, gates, proof.

    looked -> set aside (only when forced) -> provisioned -> tree laid -> deployed, gated -> proven

Every step is idempotent, and `.ddops/restoring` names the snapshot from the first change to the
last: a restore that was killed is run again without force, and another one is refused.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddops import deploy, lock
from ddops.command import sh
from ddops.compat import launch_of
from ddops.deploy.host import ServiceOnHost
from ddops.deploy.release import Release
from ddops.errors import CommandFailed, DdopsError, Interrupted, RefusedError
from ddops.events import Event
from ddops.inventory.model import Host, Service
from ddops.layout import HostLayout
from ddops.ledger import Ledger
from ddops.model import short
from ddops.plan import Plan as ProvisionPlan
from ddops.plan import Proposal, Step, apply_plan, make_plan
from ddops.provision import EngineCode, EnvRecipe, Provision
from ddops.provision.steps import EnvStep
from ddops.restore.release import (
    recorded_code,
    recorded_recipe,
    recorded_release,
    recorded_service,
)
from ddops.restore.tree import TreeOnHost
from ddops.snapshot.model import Snapshot
from ddops.snapshot.note import note
from ddops.snapshot.store import Store
from ddops.transport import Transport
from ddops.transport.files import make_dirs, write_file

_ASIDE = """
[ -e "$1" ] || [ -L "$1" ] || exit 0
[ ! -e "$2" ] || { echo "$2 is there already" >&2; exit 1; }
mv -T -- "$1" "$2"
"""
_DONE = 'rm -f -- "$1"'
_JOURNAL = 'umask 077; cat >> "$1"'


@dataclass(frozen=True, slots=True)
class Recorded(Provision):
    """Provision with the snapshot's own environment inputs instead of today's."""

    kept: EnvRecipe = field(kw_only=True)
    patched: EngineCode = field(kw_only=True)
    #: Where the tree is going to be laid: an environment is not broken for want of it.
    laid: str = field(kw_only=True)

    def recipe(self) -> EnvRecipe:
        return self.kept

    def code(self, recipe: EnvRecipe) -> EngineCode:
        return self.patched

    def steps(self) -> list[Step]:
        made = Provision.steps(self)
        return [replace(s, laid=self.laid) if isinstance(s, EnvStep) else s for s in made]


@dataclass(frozen=True, slots=True)
class Tools:
    """What a restore is given: the deploy's tools, and the store."""

    deploy: deploy.Tools
    store: Store
    ledger: Callable[[], AbstractContextManager[Ledger]]
    force: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a restore would do, from one look."""

    host: str
    snapshot: str
    tree: str
    release: str | None
    in_the_way: tuple[str, ...]
    resumes: bool


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore that was proven. `kept` are the old things, set aside."""

    host: str
    snapshot: str
    tree: str
    release: str | None
    nonce: str
    kept: tuple[str, ...]


def restore_host(
    transport: Transport, host: Host, snapshot: Snapshot, service: Service | None, tools: Tools
) -> Restored:
    """Bring a snapshot back onto a host, to the same release, and gate it."""
    manifest = snapshot.manifest
    tree = TreeOnHost(transport, host, manifest, tools.store)
    if manifest.content["engine_env"] != host.engine_env:
        raise RefusedError(
            f"{host.name} is set up for another environment ({host.engine_env})",
            why=f"the snapshot's is {manifest.content['engine_env']}",
            next=f"set engine_env of {host.name} in hosts.toml, or take another host",
        )
    release = recorded_release(manifest, snapshot.files) if manifest.release else None
    if release is not None and service is None:
        service = recorded_service(manifest, snapshot.files)
    plan = look(tree, tools)
    stamp = f"{tools.deploy.clock.now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    owner = lock.owner(stamp, f"restore {short(manifest.id)}", tools.deploy.clock)
    with tempfile.TemporaryDirectory(prefix="ddops-") as folder:
        work = Path(folder)
        steps = _provision(transport, host, service, snapshot, tools, work, tree.path)
        make_dirs(transport, tree.layout.state, mode=0o700)
        with lock.holding(
            transport, tree.layout, owner, wait_s=tools.deploy.lock_wait_s,
            pause=tools.deploy.stop.pause,
            tell=lambda words: tools.deploy.report.emit(Event("lock", words, host.name)),
        ):  # fmt: skip
            # Judged before the old tree goes aside: an environment is not broken for that.
            planned = _planned(host, steps)
            kept = _aside(tree, service, plan, stamp, tools)
            marker = f"{tree.layout.state}/restoring"
            write_file(transport, marker, f"{manifest.id}\n".encode(), 0o600)
            if steps is not None and planned is not None:
                _apply(transport, host, steps.layout, planned, tools)
            tools.deploy.stop.check("before the tree was laid down")
            # Whatever is there now came with the environment, or from a run that was killed.
            tree.lay(replace=True)
        nonce = _serve(transport, host, service, release, steps, tools)
        return _proven(tree, release, nonce, kept, tools)


def look(tree: TreeOnHost, tools: Tools) -> Plan:
    """What is in the way. Raises RefusedError unless nothing is, or it may be set aside."""
    seen, manifest = tree.look(), tree.manifest
    mine = seen["restoring"] == manifest.id
    if not seen["git"]:
        raise RefusedError(
            f"{tree.host.name}: git is not installed there",
            next="install git on the host (Debian: apt-get install git)",
        )
    there = []
    if seen["tree_there"] and not seen["same"]:
        there.append(str(seen["tree"]))
    if seen["service_there"] and manifest.service:
        there.append(tree.layout.service(manifest.service).dir)
    if seen["restoring"] and not mine and not tools.force:
        there.append(f"a restore of {short(str(seen['restoring']))} that did not end")
    if there and not mine and not tools.force:
        raise RefusedError(
            f"{tree.host.name}: not empty: {', '.join(there)}",
            why="a restore replaces nothing unasked",
            next=f"ddops restore {short(manifest.id)} --to {tree.host.name} --force, which keeps"
            " the old beside it",
        )
    return Plan(tree.host.name, manifest.id, str(seen["tree"]), manifest.release, tuple(there),
                mine)  # fmt: skip


def _provision(
    transport: Transport, host: Host, service: Service | None, snapshot: Snapshot, tools: Tools,
    work: Path, laid: str,
) -> Recorded | None:  # fmt: skip
    """Provision by the record; None for a snapshot that has no environment of ours."""
    if snapshot.manifest.content["lock"] is None:
        return None
    recipe = recorded_recipe(snapshot.manifest, snapshot.files, work / "recorded")
    services = [service] if service is not None else []
    code = recorded_code(snapshot.manifest, snapshot.files, recipe)
    return Recorded(
        transport, host, services, tools.deploy.lookup, work, kept=recipe, patched=code, laid=laid
    )


def _aside(
    tree: TreeOnHost, service: Service | None, plan: Plan, stamp: str, tools: Tools
) -> list[str]:
    """Stop what runs, and put the old tree and the old service's folder beside their places."""
    if plan.resumes or not plan.in_the_way:
        return []
    moves = []
    if service is not None:
        where = tree.layout.service(service.name).dir
        if where in plan.in_the_way:
            _stop(_on_host(tree.transport, tree.host, service, tools))
            moves.append((where, f"{tree.layout.state}/services-before-{stamp}"))
    if plan.tree in plan.in_the_way:
        moves.append((plan.tree, f"{plan.tree}.before-{stamp}"))
    for old, target in moves:
        done = tree.transport.run(sh(_ASIDE, old, target))
        if not done.ok:
            raise CommandFailed(f"{tree.host.name}: {old} could not be set aside", rc=done.rc,
                                stderr=done.err)  # fmt: skip
    return [target for _, target in moves]


def _stop(old: ServiceOnHost) -> None:
    """Stop the old service. Where its supervisor is gone too, nothing of it can run."""
    state = old.stop()
    if state.left:
        raise DdopsError(f"{old.host.name}: the old service did not stop",
                         why=f"processes left: {list(state.left)}")  # fmt: skip


def _planned(host: Host, provision: Recorded | None) -> tuple[ProvisionPlan, list[Step]] | None:
    if provision is None:
        return None
    steps = provision.steps()
    return make_plan(host.name, steps), steps


def _apply(
    transport: Transport, host: Host, layout: HostLayout,
    planned: tuple[ProvisionPlan, list[Step]], tools: Tools,
) -> None:  # fmt: skip
    plan, steps = planned
    report = tools.deploy.report

    def journal(step: str, state: str) -> None:
        at = tools.deploy.clock.now().isoformat(timespec="seconds")
        line = json.dumps({"at": at, "op": "restore", "step": step, "state": state}) + "\n"
        done = transport.run(sh(_JOURNAL, layout.journal).with_stdin(line.encode()))
        if not done.ok:
            raise CommandFailed(f"{host.name}: no journal", rc=done.rc, stderr=done.err)

    apply_plan(plan, steps, report=report, journal=journal,
               stopped=lambda: tools.deploy.stop.asked)  # fmt: skip


def _serve(
    transport: Transport, host: Host, service: Service | None, release: Release | None,
    provision: Recorded | None, tools: Tools,
) -> str:  # fmt: skip
    """Stage, start and gate the recorded release; the nonce of its start."""
    if release is None or service is None or provision is None:
        return ""
    if tools.deploy.stop.asked:
        raise Interrupted(
            f"{host.name}: stopped before the release was started",
            next="run the restore again: it goes on from there",
        )

    _no_orphan(_on_host(transport, host, service, tools))

    def rows() -> tuple[tuple[str, str, Proposal], ...]:
        # The code is what the snapshot holds, edits by hand too; it is proven by its own hash.
        return tuple(r for r in make_plan(host.name, provision.steps()).rows if r[0] != "code")

    judged = launch_of(release.launch, str(release.content["upstream"]), service, host)
    done = deploy.deploy_release(transport, host, service, release, tools.deploy, judged, rows)
    return done.nonce


def _no_orphan(there: ServiceOnHost) -> None:
    """Refuse while an engine runs on from files that were lost under it: it holds port and memory.

    A host that has a release is the deploy's to judge.
    """
    if there.links().current is not None:
        return
    left = there.stop().left
    if left:
        pids = " ".join(map(str, left))
        raise RefusedError(
            f"{there.host.name}: an engine of {there.service.name} still runs there, from files"
            f" that are gone: process {pids}",
            why="nothing that is left on the host knows it, so nothing there can stop it",
            next=f"kill {pids} on {there.host.name}, then run the restore again",
        )


def _proven(
    tree: TreeOnHost, release: Release | None, nonce: str, kept: list[str], tools: Tools
) -> Restored:
    """Read the tree back once more, now that the engine runs, and say so in the ledger."""
    seen, manifest = tree.look(), tree.manifest
    if not seen["same"]:
        raise DdopsError(f"{tree.host.name}: the tree is not the snapshot's any more",
                         why="somebody edits it", next="run the restore again")  # fmt: skip
    done = tree.transport.run(sh(_DONE, f"{tree.layout.state}/restoring"))
    if not done.ok:
        raise CommandFailed(f"{tree.host.name}: the mark of the restore stays", rc=done.rc,
                            stderr=done.err)  # fmt: skip
    with tools.ledger() as ledger:
        note(ledger, manifest)
        ledger.add_drill(
            manifest.id,
            place=f"host:{tree.host.name}",
            verdict="PASS",
            evidence={"release": manifest.release, "nonce": nonce, "kept": kept},
        )
    words = f"tree {manifest.tree_hash[:12]} proven" + (
        f", release {short(release.digest)} gated" if release else ""
    )
    tools.deploy.report.emit(Event("restore", words, tree.host.name))
    return Restored(tree.host.name, manifest.id, manifest.tree_hash, manifest.release, nonce,
                    tuple(kept))  # fmt: skip


def _on_host(transport: Transport, host: Host, service: Service, tools: Tools) -> ServiceOnHost:
    return ServiceOnHost(transport, host, service, deploy.port_of(host, service),
                         tools.deploy.lookup, tools.deploy.redactor)  # fmt: skip
