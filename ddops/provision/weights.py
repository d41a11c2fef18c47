"""Weights on a host: from a folder here, from another machine by rsync, or from a hub.

Each is pinned: a folder by its content, rsync by `sha256:` and the digest of its content, a hub by
a commit. What was cut short goes on from there; nothing is served that was not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddops.command import cmd, sh
from ddops.errors import CommandFailed, ConfigError, DdopsError, Problem, RefusedError
from ddops.hostside import source
from ddops.plan import Change, Proposal
from ddops.provision.side import NOTHING, HostSide, Query
from ddops.transport import treehash

#: Up to this size a folder goes in one piece; see steps.TreeStep.
SMALL_BYTES = 64 << 20
PIECE = 16 << 20
#: A terabyte over a slow line.
FETCH_DEADLINE_S = 24 * 3600.0
HUB = "https://huggingface.co"
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")

# $1 file, $2 where the piece belongs, $3 its size. A file that is not as long as the piece's place
# has been written to by somebody else.
_PUT = """\
export LC_ALL=C
have=$(wc -c < "$1" 2>/dev/null || echo 0)
[ "$have" -eq "$2" ] || { echo "$1 has $have bytes, not $2" >&2; exit 1; }
cat >> "$1" || exit 1
have=$(wc -c < "$1")
[ "$have" -eq $(($2 + $3)) ] || { echo "input ended at $have of $(($2 + $3)) bytes" >&2; exit 1; }
"""


@dataclass(frozen=True, slots=True)
class WeightsStep:
    """One model's weights at `path`. `want` names their content; see hostside/weights.py."""

    id: str
    title: str
    side: HostSide
    path: str
    want: str
    origin: Folder | Rsync | Hub

    def query(self) -> Query:
        return {"weights": [self.path]}

    def observe(self) -> Proposal:
        seen = self.side.state(weights=[self.path])["weights"][self.path]
        if not isinstance(seen, Mapping):
            return Proposal(Change.CREATE, (f"{self.origin.words} -> {self.path}", self.want))
        lines = [f"changed since they were checked: {p}" for p in _list(seen.get("changed"))]
        if seen.get("want") == self.want and not lines:
            return NOTHING
        if seen.get("want") != self.want:
            lines.append(f"{self.path}: {seen.get('want') or 'not checked yet'} -> {self.want}")
        if seen.get("partial"):
            lines.append("goes on with what was brought before")
        return Proposal(Change.UPDATE, tuple(lines))

    def apply(self) -> None:
        try:
            self.origin.bring(self.side, self.path, self.want)
        except RefusedError as error:
            raise DdopsError(
                f"{self.side.transport.host}: {self.title} did not arrive",
                why=error.what,
                next=f"ddops provision {self.side.transport.host}: it goes on from there",
            ) from error


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine, sent in pieces."""

    folder: Path

    @property
    def words(self) -> str:
        return f"send {self.folder.name}"

    def bring(self, side: HostSide, path: str, want: str) -> None:
        files = {}
        for name, mode in sorted(treehash.walk(self.folder)):
            full = (self.folder / name).resolve()  # a hub's cache is links: the host gets files
            files[name] = {
                "size": full.stat().st_size,
                "sha256": treehash.content_digest(full, mode & 0o7777),
            }
        have = ask(side, "have", path=path, files=files)["have"]
        for name, want_file in files.items():
            at = int(have[name]) if isinstance(have, dict) else 0
            self._send(side, name, f"{path}.partial/{name}", at, int(str(want_file["size"])))
        ask(side, "finish", path=path, files=files, want=want)

    def _send(self, side: HostSide, name: str, place: str, at: int, size: int) -> None:
        with (self.folder / name).open("rb") as f:
            f.seek(at)
            while at < size or (size == 0 and at == 0):
                piece = f.read(PIECE)
                command = sh(_PUT, place, str(at), str(len(piece))).with_stdin(piece)
                done = side.transport.run(command, deadline_s=600.0)
                if not done.ok:
                    raise CommandFailed(
                        f"{side.transport.host}: {name} stopped at byte {at}",
                        rc=done.rc, stderr=done.err,
                    )  # fmt: skip
                at += len(piece)
                if not piece:
                    return


@dataclass(frozen=True, slots=True)
class Rsync:
    """Pulled by the host itself, with its own keys."""

    source: str

    @property
    def words(self) -> str:
        return f"rsync {self.source}"

    def bring(self, side: HostSide, path: str, want: str) -> None:
        ask(side, "rsync", path=path, source=self.source, want=want)


@dataclass(frozen=True, slots=True)
class Hub:
    """Pulled by the host itself, with its own login to the hub where it has one."""

    repo: str
    commit: str
    endpoint: str

    @property
    def words(self) -> str:
        return f"hub {self.repo} at {self.commit[:12]}"

    def bring(self, side: HostSide, path: str, want: str) -> None:
        ask(side, "hub", path=path, source=self.repo, commit=self.commit, want=want,
            endpoint=self.endpoint)  # fmt: skip


def fetched(
    text: str, model: str, revision: str | None, key: str, endpoint: object
) -> tuple[str, Rsync | Hub] | None:
    """What a source of `rsync:` or `hub:` wants, and where from; None for a folder's name."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in ("rsync", "hub"):
        return None
    pin = revision or ""
    if kind == "rsync":
        if not rest or rest.startswith("-"):
            raise _unpinned(key, f"expected rsync:HOST:/PATH, got {text!r}")
        if not _DIGEST.match(pin):
            raise _unpinned(key, 'rsync needs a pin: the revision "sha256:..." of the content')
        return pin, Rsync(rest)
    if not _COMMIT.match(pin):
        raise _unpinned(key, "a hub needs a pin: the revision, a commit of 40 hex digits")
    repo = rest or model
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise _unpinned(key, f"expected hub:ORG/NAME, got {text!r}")
    return f"hub:{repo}@{pin}", Hub(repo, pin, str(endpoint or HUB))


def folder_bytes(folder: Path) -> int:
    return sum((folder / name).lstat().st_size for name, _ in treehash.walk(folder))


def ask(side: HostSide, verb: str, **more: object) -> dict[str, object]:
    """One call of hostside/weights.py; a refusal there is one here."""
    spec = json.dumps({"verb": verb, **more}).encode()
    done = side.transport.run(
        cmd(side.python, "-c", source("weights"), stdin=spec), deadline_s=FETCH_DEADLINE_S,
        limit=64 << 20,
    )  # fmt: skip
    if not done.ok:
        raise CommandFailed(f"{side.transport.host}: the weights' script failed", rc=done.rc,
                            stderr=done.err)  # fmt: skip
    answer: dict[str, object] = json.loads(done.out)
    if answer["state"] != "ok":
        raise RefusedError(str(answer["why"]))
    return answer


def _unpinned(key: str, what: str) -> ConfigError:
    return ConfigError([Problem("service", 0, key, what)], next="mend the service's file")


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
