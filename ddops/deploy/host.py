"""What a deploy does on one host, one small verb each. No order, no decisions: those are above."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddops.command import ALONE, Cmd, Redactor, Secret, cmd, sh
from ddops.deploy.environment import environment_seen
from ddops.deploy.preflight import Preflight, parse_preflight
from ddops.deploy.release import Release, places, release_files
from ddops.engines.sglang import LAUNCHER_WORDS
from ddops.errors import CommandFailed, RefusedError
from ddops.gates import (
    Golden,
    Observation,
    judge_golden,
    needs_ties,
    parse_golden,
)
from ddops.inventory.model import Host, Node, Service
from ddops.layout import HostLayout, ServiceLayout
from ddops.model import GateResult, State
from ddops.supervise import Orchestrator, Order, ServiceState, orchestrator_of
from ddops.transport import Transport
from ddops.transport.files import (
    link_atomically,
    make_dirs,
    read_file,
    read_files,
    send_tree,
    write_file,
)

Lookup = Callable[[str], Path]

_LINKS = """
for l in current committed; do readlink "$1/$l" || echo; done
"""
#: The same, then who ran it last, where that is written down.
_STANDING = """
for l in current committed; do readlink "$1/$l" || echo; done
cat -- "$2" 2>/dev/null || :
"""
_LIST = 'cd "$1" 2>/dev/null && ls -1 || :'
_JOURNAL = 'tail -c 1000000 -- "$1" 2>/dev/null || :'
_UNLINK = 'rm -f -- "$@"'
_PRUNE = """
cd "$1" || exit 0
keep=$2; shift 2
for k in "$@"; do [ ! -d "$k" ] || keep=$((keep - 1)); done
ls -1t | while read -r d; do
  for k in "$@"; do [ "$d" = "$k" ] && continue 2; done
  keep=$((keep - 1)); [ "$keep" -ge 0 ] || rm -rf -- "./$d"
done
"""


@dataclass(frozen=True, slots=True)
class Links:
    """Digests that `current` and `committed` name; None where there is no link."""

    current: str | None
    committed: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How a service stands before anything is done to it: its links, and who ran it last."""

    links: Links
    ran_by: str


@dataclass(frozen=True, slots=True)
class ServiceOnHost:
    """One service on one host."""

    transport: Transport
    host: Host
    service: Service
    port: int
    lookup: Lookup
    redactor: Redactor

    @property
    def layout(self) -> HostLayout:
        return HostLayout(self.host.engine_dir)

    @property
    def where(self) -> ServiceLayout:
        return self.layout.service(self.service.name)

    @property
    def node(self) -> Node:
        return self.service.node

    @property
    def kind(self) -> str:
        """Who runs it: the service's own word, else its host's."""
        return self.service.engine or self.host.supervisor

    @property
    def orchestrator(self) -> Orchestrator:
        return orchestrator_of(self.transport, self.host, self.service)

    def ran_by(self) -> str:
        """Who ran it last: as the host remembers it, else the host's own supervisor."""
        known = read_file(self.transport, self.where.kind)
        return known.decode("utf-8", "replace").strip() if known else self.host.supervisor

    def run_by(self, kind: str) -> ServiceOnHost:
        """The same service in the hands of another one."""
        if kind == self.kind:
            return self
        return replace(self, service=self.service.handed_to(kind))

    def order(self, release: Release) -> Order:
        """The release, as it is handed to whoever runs it."""
        spec = release.content["spec"]
        unit = str(spec["unit"]) if isinstance(spec, dict) else ""
        return Order(self.service, self.host, self.port, release.digest, release.launch, unit)

    def observe(self, *, http: bool = True) -> Observation:
        return self.orchestrator.observe(self.service.name, self.port, http=http)

    def links(self) -> Links:
        return _links(self.transport.run(sh(_LINKS, self.where.dir)).out.splitlines())

    def standing(self) -> Standing:
        """Links and `ran_by` in one look."""
        done = self.transport.run(sh(_STANDING, self.where.dir, self.where.kind))
        lines = done.out.splitlines()
        return Standing(_links(lines[:2]), "".join(lines[2:]).strip() or self.host.supervisor)

    def preflight(self, release: Release, timeout_s: float) -> Preflight:
        """Have the installed engine parse the release's options; it starts nothing."""
        filled = {"rank": "0", "dist_addr": "127.0.0.1:20000"} if self.node.later else {}
        argv, env = release.launch.expand(places(self.host, self.port, self.node) | filled)
        words = [
            self.host.python, *ALONE, f"{self.layout.hostside}/preflight.py", argv[0],
            json.dumps(env), str(timeout_s), *argv[LAUNCHER_WORDS:],
        ]  # fmt: skip
        done = self.transport.run(cmd(*words), deadline_s=timeout_s + 20)
        if not done.ok:
            raise RefusedError(
                f"{self.host.name}: the launch line could not be tried",
                why=done.err.strip()[-300:] or f"ended with {done.rc}",
                next=f"ddops provision {self.host.name}",
            )
        upstream = str(release.content["upstream"]).removeprefix("sglang-")
        found = parse_preflight(done.out, upstream)
        if not found.silent:
            return found
        return replace(found, broken=environment_seen(self.transport, self.host, argv[0]).wrong)

    def staged(self) -> tuple[str, ...]:
        """Digests of the releases that lie here, in no order."""
        done = self.transport.run(sh(_LIST, self.where.releases))
        return tuple(done.out.split())

    def staged_files(self, digest: str) -> dict[str, str]:
        """Texts of a staged release, without its secrets."""
        names = ("release.json", "gates.json", "golden.json")
        paths = {f"{self.where.release(digest)}/{name}": name for name in names}
        there = read_files(self.transport, list(paths))
        return {
            paths[path]: data.decode("utf-8", "replace")
            for path, data in there.items()
            if data is not None
        }

    def journal_text(self) -> str:
        """The end of the host's journal, a megabyte at most."""
        return self.transport.run(sh(_JOURNAL, self.layout.journal)).out

    def stage(self, release: Release, resolve: Callable[[str], Secret]) -> Mapping[str, object]:
        """Lay the release down whole, secrets last, and have whoever runs it look at it."""
        where, target = self.where, self.where.release(release.digest)
        make_dirs(self.transport, where.releases, where.run, where.log, mode=0o700)
        files = release_files(release, self.host, self.port, self.node)
        there = read_files(self.transport, [f"{target}/{name}" for name in files])
        fresh = there[f"{target}/release.json"] is None
        if fresh:
            with tempfile.TemporaryDirectory(prefix="ddops-") as folder:
                for name, text in files.items():
                    (Path(folder) / name).write_text(text, encoding="utf-8")
                send_tree(self.transport, Path(folder), target)
        else:
            # The digest is the same on every host; port and folders are filled in for this one.
            for name, text in files.items():
                if there[f"{target}/{name}"] != text.encode():
                    write_file(self.transport, f"{target}/{name}", text.encode())
        self._stage_secrets(release, target, resolve)
        return {"fresh": fresh, **self.orchestrator.stage(self.order(release), self.lookup)}

    def unit_beside(self, release: Release) -> Mapping[str, object]:
        """What the supervisor has of this service beside what `current` wants of it."""
        return self.orchestrator.compare(self.order(release), self.lookup)

    def _stage_secrets(
        self, release: Release, target: str, resolve: Callable[[str], Secret]
    ) -> None:
        env = {name: resolve(ref).reveal() for name, ref in release.launch.secret_env}
        if env:
            body = json.dumps(env).encode()
            write_file(self.transport, f"{target}/secrets.json", body, 0o600)
        if release.launch.api_key is not None:
            key = resolve(release.launch.api_key).reveal()
            body = json.dumps({"api-key": key}).encode()
            write_file(self.transport, f"{target}/secret-args.yaml", body, 0o600)

    def switch(self, digest: str) -> None:
        link_atomically(self.transport, f"releases/{digest}", self.where.current)

    def unlink_current(self) -> None:
        self._run("could not remove the link", sh(_UNLINK, self.where.current))

    def commit(self, digest: str) -> None:
        link_atomically(self.transport, f"releases/{digest}", self.where.committed)

    def proven(self, seen: Observation) -> None:
        """This very start passed its gates; what starts again without a deploy has not."""
        if seen.job is not None and seen.launch is not None:
            body = json.dumps({"nonce": seen.launch.nonce}).encode()
            write_file(self.transport, self.where.proven, body, 0o600)

    def prune(self, keep: int, *never: str | None) -> None:
        """Keep `keep` releases, those named in `never` first, then the youngest."""
        names = list(dict.fromkeys(n for n in never if n))
        self._run("old releases stay", sh(_PRUNE, self.where.releases, str(keep), *names))

    def start(self, op_id: str) -> ServiceState:
        """Start `current`; the guard's record of this start will carry `op_id`."""
        old = [self.where.launch_record]
        if self.kind != self.host.supervisor:
            write_file(self.transport, self.where.kind, self.kind.encode(), 0o600)
        else:
            old.append(self.where.kind)
        write_file(self.transport, self.where.op_id, op_id.encode(), 0o600, instead_of=old)
        return self.orchestrator.submit(self.service.name)

    def stop(self, ran_by: str = "") -> ServiceState:
        """Stop and verify, in whosever hands it is; what is left over is the caller's to judge.

        `ran_by` is whose those are, where the caller knows.
        """
        before = self.run_by(ran_by or self.ran_by())
        if before is not self:
            state = before.orchestrator.cancel(self.service.name)
            if state.left or state.state is not State.DOWN:
                return state
        return self.orchestrator.cancel(self.service.name)

    def taken_from(self, kind: str) -> None:
        """It passed its gates in these hands: the ones before will not start it again."""
        before = self.run_by(kind)
        if before is not self:
            before.orchestrator.forget(self.service.name)

    def golden_gate(
        self,
        digest: str,
        weight_version: str,
        gates: tuple[str, ...],
        golden: Golden | None,
        timeout_s: float,
        *,
        speculative: bool,
    ) -> list[GateResult]:
        """Ask the golden prompts on the host itself, over loopback, and judge the answers.

        `timeout_s` is for one answer: the first one may wait for a compiler.
        """
        answers: list[Mapping[str, object]] = []
        if gates and golden is not None:
            words = [
                self.host.python, *ALONE, f"{self.layout.hostside}/golden.py", self.where.dir,
                str(self.port), f"{self.where.release(digest)}/golden.json", str(timeout_s),
                *(["--ties"] if needs_ties(gates) else []),
            ]  # fmt: skip
            limit = timeout_s * len(golden.prompts) * (2 if needs_ties(gates) else 1) + 30
            beside = self.orchestrator.inside(self.service.name)
            done = beside.run(cmd(*words), deadline_s=limit)
            if not done.ok:
                raise CommandFailed(
                    f"{self.host.name}: the golden prompts could not be asked",
                    rc=done.rc,
                    stderr=done.err,
                )
            answers = json.loads(done.out)["rows"]
        return judge_golden(gates, golden, answers, weight_version, speculative=speculative)

    def staged_gates(self, digest: str) -> tuple[tuple[str, ...], dict[str, object], Golden | None]:
        """Gates, identity and golden prompts that were staged with a release."""
        target = self.where.release(digest)
        raw = read_file(self.transport, f"{target}/gates.json")
        if raw is None:
            raise CommandFailed(f"{self.host.name}: release {digest[:12]} is not staged", rc=1)
        meta = json.loads(raw)
        golden = read_file(self.transport, f"{target}/golden.json")
        parsed = parse_golden(golden.decode(), f"{target}/golden.json") if golden else None
        return tuple(meta["gates"]), dict(meta["identity"]), parsed

    def journal(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Lines in the host's own journal, so that a second operator can read them there."""
        text = "".join(json.dumps(self.redactor.tree(r), default=str) + "\n" for r in rows)
        script = sh('umask 077; cat >> "$1"', self.layout.journal).with_stdin(text.encode())
        self._run("the host's journal could not be written", script)

    def _run(self, what: str, command: Cmd) -> None:
        done = self.transport.run(command)
        if not done.ok:
            raise CommandFailed(f"{self.host.name}: {what}", rc=done.rc, stderr=done.err)


def _links(lines: Sequence[str]) -> Links:
    names = [line.rpartition("/")[2] or None for line in lines]
    current, committed = [*names, None, None][:2]
    return Links(current, committed)


def port_is_foreign(seen: Observation) -> bool:
    """Somebody who is not this service listens on its port."""
    return seen.port.listening and not seen.port.owned


def serves(seen: Observation, digest: str, *, follower: bool = False) -> bool:
    """The engine runs, is this release, says so itself, and is healthy.

    A follower, of an engine on several hosts, answers /health alone: rank 0 speaks for all.
    """
    return (
        seen.engine is State.UP
        and seen.launch is not None
        and seen.launch.release == digest
        and seen.current == digest
        and seen.port.owned
        and seen.health is not None
        and seen.health.status == 200
        and (follower or _said(seen) == seen.launch.weight_version)
    )


def _said(seen: Observation) -> object:
    return seen.model_info.values.get("weight_version") if seen.model_info else None
