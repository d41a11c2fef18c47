"""Does a host still run what was released there? Each row with what was observed.

Nothing is taken from what is configured alone: a row holds the recorded value, the observed one,
and a verdict; what could not be seen is unknown, which is not "the same".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ddops.command import cmd
from ddops.deploy.code import code_seen
from ddops.deploy.environment import Environment, environment_seen
from ddops.deploy.host import Links, ServiceOnHost
from ddops.deploy.release import Release, release_files, staged_release
from ddops.errors import CommandFailed, DdopsError
from ddops.gates import Observation, judge_g3
from ddops.model import State, Verdict, short

SCHEMA = "ddops.drift/1"
#: Hashing an engine's files takes seconds on a busy host.
DEADLINE_S = 120.0
#: The row of the engine's environment.
ENVIRONMENT = "engine environment"
#: What a release leaves open until it starts on the nodes of a job.
PLACES = ("${rank}", "${dist_addr}")


class Same(Enum):
    """Whether the observed value is the recorded one."""

    YES = "same"
    NO = "drift"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that a release fixes."""

    what: str
    recorded: str
    observed: str
    verdict: Same


def look_for_drift(target: ServiceOnHost, seen: Observation) -> Mapping[str, object]:
    """What `hostside/drift.py` sees of the service, as raw as it comes."""
    pid = seen.pid if seen.engine is State.UP and seen.pid else 0
    script = f"{target.layout.hostside}/drift.py"
    # Where the engine runs, if it does: its words and its environment are that machine's.
    beside = target.orchestrator.inside(target.service.name) if pid else target.transport
    done = beside.run(
        cmd(target.host.python, script, target.where.dir, str(pid)), deadline_s=DEADLINE_S
    )
    if not done.ok:
        raise CommandFailed(
            f"{target.host.name}: drift could not be looked for",
            rc=done.rc,
            stderr=done.err,
            next=f"ddops provision {target.host.name}",
        )
    raw = json.loads(done.out)
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise DdopsError(f"{target.host.name}: drift answered nothing readable")
    return raw


def judge_drift(
    seen: Observation, links: Links, release: Release, files: Mapping[str, str],
    raw: Mapping[str, object], *, follower: bool = False,
) -> list[Row]:  # fmt: skip
    """Every row. `release` is the one that `current` names, `files` its texts for this host."""
    rows = list(_release_rows(seen, links, release, follower))
    rows += _files(files, raw)
    running = seen.launch if seen.engine is State.UP else None
    if running is None:
        same = Same.UNKNOWN if seen.engine is State.UNKNOWN else Same.NO
        rows.append(Row("process", "running", seen.engine_why or seen.engine.value, same))
    else:
        launch = _map(raw.get("launch"))
        rows.append(_argv(launch, raw.get("argv"), running.weight_version))
        rows += _environ(_map(launch.get("env")), raw.get("environ"))
    return [*rows, *_code(raw.get("code"))]


def environment_row(seen: Environment) -> Row:
    """The engine's environment against what its build recorded."""
    if seen.unknown and not seen.wrong:
        return Row(ENVIRONMENT, "as it was built", "; ".join(seen.unknown), Same.UNKNOWN)
    words = "; ".join(seen.wrong) or "whole"
    return Row(ENVIRONMENT, "as it was built", words, _same(not seen.wrong))


def mends(host: str, rows: Sequence[Row]) -> str:
    """The command that mends what drifted: a deploy builds no environment."""
    odd = {r.what for r in rows if r.verdict is not Same.YES}
    if ENVIRONMENT not in odd:
        return f"ddops deploy {host}"
    # Provision builds what the inventory wants: a release of other inputs needs the deploy, too.
    then = f", then ddops deploy {host}" if odd - {ENVIRONMENT, "code"} else ""
    return f"ddops provision {host}{then}"


def judge_unit(found: Mapping[str, object]) -> list[Row]:
    """What the supervisor has of the service: a unit of systemd's, or a program of supervisord's.

    The text counts as it is installed; what systemd adds to it by drop-ins counts too, and so does
    what it has not read yet.
    """
    if found.get("installed") is not True:
        return [Row("unit", "the release's", "not installed", Same.NO)]
    diff = [str(x) for x in _list(found.get("diff"))]
    words = "; ".join(x for x in diff[:6]) + ("; ..." if len(diff) > 6 else "")
    rows = [Row("unit", "the release's", words or "the same, line for line", _same(not diff))]
    if drop_ins := _list(found.get("drop_ins")):
        rows.append(Row("unit drop-ins", "none", ", ".join(map(str, drop_ins)), Same.NO))
    if found.get("reload") is True:
        rows.append(Row("unit loaded", "as installed", "systemd has not read it yet", Same.NO))
    if (enabled := found.get("enabled", "enabled")) != "enabled":
        rows.append(Row("unit at boot", "enabled", str(enabled or "unknown"), Same.NO))
    return rows


def pending_row(wanted: str | None, current: str | None) -> Row:
    """What the inventory would deploy now, against what is current: a change not yet rolled out."""
    if wanted is None:
        return Row("inventory", "?", "the release cannot be rendered here", Same.UNKNOWN)
    now = short(current) if current else "nothing"
    return Row("inventory", short(wanted), now, _same(wanted == current))


def _release_rows(
    seen: Observation, links: Links, release: Release, follower: bool
) -> Iterator[Row]:
    committed = links.committed
    want = short(committed) if committed else "nothing passed its gates"
    now = short(release.digest)
    yield Row("current", want, now, _same(committed == release.digest))
    if seen.engine is State.UP and seen.launch is not None:
        launched = seen.launch.release
        yield Row("launched", now, short(launched), _same(launched == release.digest))
        if follower:
            return
        g3 = judge_g3(seen, release.digest, release.identity)
        verdict = {Verdict.PASS: Same.YES, Verdict.FAIL: Same.NO}.get(g3.verdict, Same.UNKNOWN)
        yield Row("identity", seen.launch.weight_version, g3.message, verdict)


def _files(files: Mapping[str, str], raw: Mapping[str, object]) -> list[Row]:
    have = _map(raw.get("files"))
    want = {n: hashlib.sha256(t.encode()).hexdigest() for n, t in files.items()}
    wrong = sorted(n for n in want if have.get(n) != want[n])
    seen = f"changed: {', '.join(wrong)}" if wrong else f"{len(want)} files as staged"
    return [Row("release files", f"{len(want)} files", seen, _same(not wrong))]


def _argv(launch: Mapping[str, object], argv: object, version: str) -> Row:
    recorded = launch.get("argv")
    if not isinstance(argv, list) or not isinstance(recorded, list):
        return Row("argv", "?", "the process's words cannot be read", Same.UNKNOWN)
    want = [*map(str, recorded), "--weight-version", version]
    if len(argv) == len(want):  # a job's node fills in its own rank and address
        want = [str(a) if w in PLACES else w for w, a in zip(want, argv, strict=True)]
    more, less = _unlike(argv, want), _unlike(want, argv)
    if argv == want:
        return Row("argv", f"{len(want)} words", f"{len(argv)} words, the same", Same.YES)
    if not more and not less:
        return Row("argv", f"{len(want)} words", "the same words in another order", Same.NO)
    return Row("argv", " ".join(less) or "-", " ".join(more) or "-", Same.NO)


def _unlike(some: Sequence[str], other: Sequence[str]) -> list[str]:
    return [w for w in some if w not in other]


def _environ(want: Mapping[str, object], seen: object) -> list[Row]:
    if not isinstance(seen, dict):
        return [Row("environment", f"{len(want)} variables", "cannot be read", Same.UNKNOWN)]
    rows = [
        Row(f"env {name}", str(value), "not set" if seen.get(name) is None else str(seen[name]),
            Same.NO)
        for name, value in sorted(want.items()) if seen.get(name) != value
    ]  # fmt: skip
    rows += [
        Row(f"env {name}", "a secret", "not set", Same.NO)
        for name, there in sorted(seen.items()) if there is False and name not in want
    ]  # fmt: skip
    count = f"{len(seen)} variables"
    return rows or [Row("environment", count, "the same", Same.YES)]


def _code(code: object) -> list[Row]:
    """The engine's own files against their wheels' RECORD."""
    if not isinstance(code, dict):
        return [Row("code", "the environment", "is not there", Same.NO)]
    rows = []
    for name, found in sorted(code.items()):
        one = _map(found)
        if "error" in one:
            rows.append(Row(f"code {name}", "RECORD", str(one["error"]), Same.UNKNOWN))
            continue
        words = [
            f"{kind}: {', '.join(map(str, paths[:3]))}" + (", ..." if len(paths) > 3 else "")
            for kind in ("changed", "missing", "extra")
            if isinstance(paths := one.get(kind), list) and paths
        ]
        verdict = _same(one.get("total") == 0)
        seen = "; ".join(words) or "as their wheel brought them"
        rows.append(Row(f"code {name}", f"{one.get('files')} files", seen, verdict))
    return rows


def _patched(faults: list[str] | None, release: Release) -> list[Row]:
    """The patched code, or the managed tree, that a release runs from."""
    if faults is None:
        return []
    want = f"series {short(str(release.content['series'])) or 'without a patch'}"
    if faults and faults[0].startswith("UNKNOWN"):
        return [Row("engine code", want, faults[0], Same.UNKNOWN)]
    return [Row("engine code", want, "; ".join(faults) or "as it was made", _same(not faults))]


def _same(same: bool) -> Same:
    return Same.YES if same else Same.NO


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _map(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def drift_of(target: ServiceOnHost, seen: Observation, wanted: str | None) -> list[Row]:
    """All rows of one service on one host; a host on which nothing was deployed has one."""
    links = target.links()
    if links.current is None:
        return [pending_row(wanted, None)]
    release = staged_release(links.current, target.staged_files(links.current))
    files = release_files(release, target.host, target.port, target.node)
    raw = look_for_drift(target, seen)
    rows = judge_drift(seen, links, release, files, raw, follower=target.node.rank > 0)
    rows += judge_unit(target.unit_beside(release))
    argv, _ = release.launch.expand({"engine_dir": target.host.engine_dir})
    rows.append(environment_row(environment_seen(target.transport, target.host, argv[0])))
    rows += _patched(code_seen(target, release), release)
    return [*rows, pending_row(wanted, links.current)]
