"""What a snapshot asks of the host: two scripts, sent and not left there."""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddops.command import Cmd, python, sh
from ddops.errors import CommandFailed, DdopsError, LockHeldError, RefusedError
from ddops.hostside import joined, source
from ddops.inventory.model import Host
from ddops.layout import HostLayout
from ddops.transport import Transport

#: Hashing a big tree for the first time, on a slow disk.
CAPTURE_DEADLINE_S = 1800.0
#: A pack up to this size comes with the answer; a larger one is fetched in pieces.
INLINE_BYTES = 4 << 20
PIECE = 32 << 20
ROUNDS = 6
_SHOWN = 8

_PIECE = """
export LC_ALL=C
tail -c +"$2" -- "$1" | head -c "$3"
"""


@dataclass(frozen=True, slots=True)
class Want:
    """What to take. `tree` is a folder on the host."""

    tree: str
    have: Sequence[str]
    allow: Sequence[str]
    large_bytes: int
    at: int
    lock_wait_s: float


@dataclass(frozen=True, slots=True)
class Source:
    """One host as a source of snapshots."""

    transport: Transport
    host: Host

    @property
    def layout(self) -> HostLayout:
        return HostLayout(self.host.engine_dir)

    def about(self, service: str | None, tree: str | None) -> dict[str, object]:
        """What belongs to the tree; see hostside/snap_about.py."""
        spec = {"engine_dir": self.host.engine_dir, "service": service, "tree": tree}
        script = python(source("snap_about"), json.dumps(spec), interpreter=self.host.python)
        return self._json(script, "ddops.snap-about/1", 120.0, 64 << 20)

    def capture(self, want: Want) -> dict[str, object]:
        """Take the tree into our git folder there. Raises what an answer other than ok means."""
        spec = {
            "git_dir": self.layout.tree_git(want.tree), "tree": want.tree, "have": list(want.have),
            "allow": list(want.allow), "large_bytes": want.large_bytes,
            "inline_bytes": INLINE_BYTES, "at": want.at, "lock_wait_s": want.lock_wait_s,
            "rounds": ROUNDS,
        }  # fmt: skip
        text = joined("snap_git", "snap_scan", "snap_history", "snap")
        script = python(text, json.dumps(spec), interpreter=self.host.python)
        answer = self._json(script, "ddops.snap/1", CAPTURE_DEADLINE_S, 64 << 20)
        if answer["state"] != "ok":
            raise refusal(self.host.name, want.tree, answer)
        return answer

    def fetch(self, path: str, size: int, target: Path) -> None:
        """Copy one file from the host, in pieces; what is there of it already is kept."""
        with target.open("ab") as out:
            while (at := out.tell()) < size:
                command = sh(_PIECE, path, str(at + 1), str(PIECE))
                done = self.transport.run(command, deadline_s=600.0, limit=PIECE + 1)
                if not done.ok or not done.stdout:
                    raise CommandFailed(
                        f"{self.host.name}: {path} ended after {at} of {size} bytes",
                        rc=done.rc, stderr=done.err, next=f"ddops snapshot {self.host.name}",
                    )  # fmt: skip
                out.write(done.stdout)
                out.flush()

    def _json(self, script: Cmd, schema: str, deadline_s: float, limit: int) -> dict[str, object]:
        done = self.transport.run(script, deadline_s=deadline_s, limit=limit)
        if done.rc == 127:
            raise DdopsError(
                f"{self.host.name}: no {self.host.python} on the host",
                next=f"install Python 3.9 or newer, or set python in hosts.toml for"
                f" {self.host.name}",
            )
        if not done.ok or done.truncated:
            raise CommandFailed(
                f"{self.host.name}: the snapshot's script failed", rc=done.rc,
                why=_why(done.err), next=f"ddops check {self.host.name}",
            )  # fmt: skip
        answer: dict[str, object] = json.loads(done.out)
        if answer.get("schema") != schema:
            raise DdopsError(f"{self.host.name}: an answer of an unknown kind",
                             why=f"want {schema}")  # fmt: skip
        return answer


def pack_of(answer: Mapping[str, object]) -> tuple[bytes | None, Mapping[str, object] | None]:
    """The pack that came with an answer, and what is said of it; None twice for nothing new."""
    told = answer["pack"]
    if not isinstance(told, dict):
        return None, None
    data = told.get("data")
    return (base64.b64decode(data) if isinstance(data, str) else None), told


def refusal(host: str, tree: str, answer: Mapping[str, object]) -> DdopsError:
    """The error that an answer other than `ok` means. Pure."""
    match answer["state"]:
        case "large":
            rows = _rows(answer["files"])
            named = ", ".join(f"{_shown(r['path'])} ({_mb(r['bytes'])})" for r in rows[:_SHOWN])
            return RefusedError(
                f"{host}: {len(rows)} large files: {named}{_more(rows)}",
                why="git should not hold them; nothing has left the host",
                next=f"ddops snapshot {host} --allow-file PATH sends one to restic only;"
                " or add it to .gitignore",
            )
        case "secrets":
            rows = _rows(answer["hits"])
            named = ", ".join(f"{_shown(r['path'])}:{r['line']} ({r['rule']})"
                              for r in rows[:_SHOWN])  # fmt: skip
            return RefusedError(
                f"{host}: what looks like secrets: {named}{_more(rows)}",
                why="nothing has left the host; the values are not shown on purpose",
                next=f"move them out, or, if they are none: ddops snapshot {host}"
                " --allow-file PATH",
            )
        case "moving":
            paths = answer["paths"]
            listed = paths if isinstance(paths, list) else []
            return RefusedError(
                f"{host}: the tree is being edited: {', '.join(map(_shown, listed[:_SHOWN]))}",
                why=f"{ROUNDS} looks in a row never saw the same files; a snapshot of a moving"
                " tree would be of a tree that never was",
                next=f"ddops snapshot {host} when the edit is done",
            )
        case "busy":
            return LockHeldError(
                f"{host}: another snapshot of {tree} is at work",
                next=f"ddops snapshot {host} when it is done",
            )
        case "missing":
            return RefusedError(
                f"{host}: no folder {tree}",
                next=f"name the source tree: ddops snapshot {host} --tree PATH",
            )
        case "no-git":
            return RefusedError(
                f"{host}: git is not installed there",
                next="install git on the host (Debian: apt-get install git)",
            )
    return _git_error(host, tree, answer)


def _git_error(host: str, tree: str, answer: Mapping[str, object]) -> DdopsError:
    from ddops.gitio import is_damage

    why = str(answer.get("why", ""))
    if "No space left" in why or "Disk quota" in why:
        return DdopsError(
            f"{host}: the disk is full",
            why=why,
            next=f"free space below {posixpath.dirname(tree)} and run again",
        )
    if is_damage(why):
        return DdopsError(
            f"{host}: the snapshot folder of {tree} is damaged",
            why=why,
            next=f"move {answer.get('git_dir', 'it')} away on {host}: the next snapshot makes"
            " a new one from the tree",
        )
    what = answer.get("command", "git")
    return CommandFailed(f"{host}: {what} failed", rc=_int(answer.get("rc")), stderr=why)


def _rows(value: object) -> list[dict[str, object]]:
    return value if isinstance(value, list) else []


def _more(rows: Sequence[object]) -> str:
    return f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""


def _mb(value: object) -> str:
    return f"{_int(value) / 1e6:.0f} MB"


def _int(value: object) -> int:
    return value if isinstance(value, int) else 1


def _shown(path: object) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode()


def _why(stderr: str) -> str:
    """The last lines of a script's own error: a traceback's end says most."""
    return "\n".join(stderr.strip().splitlines()[-3:])
