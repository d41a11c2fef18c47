"""The managed tree of one host: each verb is one call of hostside/tree.py."""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddops.command import python, sh
from ddops.config.files import read_data
from ddops.errors import CommandFailed, DdopsError, LockHeldError, RefusedError
from ddops.hostside import joined
from ddops.inventory.model import Host
from ddops.layout import HostLayout
from ddops.transport import Transport
from ddops.transport.files import make_dirs
from ddops.tree.series import Series

DEADLINE_S = 1800.0
PIECE = 32 << 20
#: A bigger wheel is refused: it is read whole.
MOST_WHEEL = 1 << 30
#: Linux takes words of 128 KiB, and sshd hands over a whole command as one.
MOST_WORD = 96_000
_APPEND = """
export LC_ALL=C; umask 077
[ "$2" -eq 0 ] && : > "$1"
cat >> "$1" || exit 1
have=$(wc -c < "$1")
[ "$have" -eq "$3" ] || { echo "input ended at $have of $3 bytes" >&2; exit 1; }
"""
_REMOVE = 'rm -f -- "$1"'


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a tree comes from. `want` is a commit, or the sha256 of a wheel."""

    kind: str
    source: str
    want: str
    engine: str
    prefix: str = ""
    wheel: Path | None = None


@dataclass(frozen=True, slots=True)
class ManagedTree:
    """`<engine_dir>/tree` on one host, or the folder `at`."""

    transport: Transport
    host: Host
    at: str | None = None

    @property
    def layout(self) -> HostLayout:
        return HostLayout(self.host.engine_dir)

    @property
    def place(self) -> str:
        return self.at or self.layout.tree

    def init(self, upstream: Upstream) -> dict[str, object]:
        """Make the tree at its pin; the same pin again changes nothing."""
        with_path = self._sent(upstream)
        try:
            return self._ask("init", **with_path)
        finally:
            self._drop(with_path)

    def status(self, series: Series, services: Sequence[str]) -> dict[str, object]:
        """Pin, patches, hand edits, and the running code against them. Changes nothing."""
        where = {s: self.layout.service(s).dir for s in services}
        return self._ask("status", patches=_packed(series), services=where)

    def apply(
        self, series: Series, *, back: bool = False, only: Sequence[str] = (), check: bool = False
    ) -> dict[str, object]:
        """The series into the tree, or out of it; all or none. `check` writes nothing."""
        verb = "reverse" if back else "apply"
        return self._ask(verb, patches=_packed(series), only=list(only), check=check)

    def make_code(self, env: str, digest: str, series: Series) -> dict[str, object]:
        """An environment's package with a series on it, here; whole already, edits are put back."""
        return self._ask("code", env=env, digest=digest, engine=series.engine,
                         series=series.digest, patches=_packed(series))  # fmt: skip

    def export(self, series: Series) -> list[tuple[str, bytes]]:
        """Name and bytes of a patch for each commit and for hand edits outside the series."""
        return _patches(self._ask("export", patches=_packed(series)))

    def rebase(
        self, series: Series, upstream: Upstream
    ) -> tuple[list[Mapping[str, object]], list[tuple[str, bytes]]]:
        """How the series fits another upstream, and the patches as they would be there."""
        with_path = self._sent(upstream)
        try:
            answer = self._ask("rebase", patches=_packed(series), **with_path)
        finally:
            self._drop(with_path)
        rows = answer["rows"]
        return (rows if isinstance(rows, list) else []), _patches(answer)

    def _sent(self, upstream: Upstream) -> dict[str, object]:
        spec: dict[str, object] = {
            "kind": upstream.kind, "source": upstream.source, "want": upstream.want,
            "engine": upstream.engine, "prefix": upstream.prefix, "path": upstream.source,
        }  # fmt: skip
        if upstream.wheel is None:
            return spec
        folder = f"{self.layout.state}/incoming"
        make_dirs(self.transport, self.layout.state, folder, mode=0o700)
        target = f"{folder}/{secrets.token_hex(6)}.whl"
        data = read_data(upstream.wheel, most=MOST_WHEEL)
        for start in range(0, max(1, len(data)), PIECE):
            piece = data[start : start + PIECE]
            command = sh(_APPEND, target, str(start), str(start + len(piece))).with_stdin(piece)
            done = self.transport.run(command, deadline_s=600.0)
            if not done.ok:
                raise CommandFailed(f"{self.host.name}: {upstream.wheel.name} did not arrive",
                                    rc=done.rc, stderr=done.err)  # fmt: skip
        return {**spec, "path": target, "sent": True}

    def _drop(self, spec: Mapping[str, object]) -> None:
        if spec.get("sent"):
            self.transport.run(sh(_REMOVE, str(spec["path"])))

    def _ask(self, verb: str, **more: object) -> dict[str, object]:
        spec = json.dumps({"verb": verb, "tree": self.place, **more})
        word = base64.b64encode(zlib.compress(spec.encode(), 9)).decode()
        text = joined("tree_git", "tree_run", "tree")
        if len(word) > MOST_WORD:  # with the script, on standard input: nothing is left there
            first, _, rest = text.partition("\n")
            text, word = f"{first}\nLONG = {word!r}\n{rest}", "LONG"
        script = python(text, word, interpreter=self.host.python)
        done = self.transport.run(script, deadline_s=DEADLINE_S, limit=64 << 20)
        if not done.ok:
            raise CommandFailed(
                f"{self.host.name}: the tree's script failed", rc=done.rc,
                why="\n".join(done.err.strip().splitlines()[-3:]),
                next=f"ddops check {self.host.name}",
            )  # fmt: skip
        answer: dict[str, object] = json.loads(done.out)
        if answer["state"] != "ok":
            raise refusal(self.host.name, self.place, answer)
        return answer


def refusal(host: str, tree: str, answer: Mapping[str, object]) -> DdopsError:
    """The error that an answer other than `ok` means. Pure."""
    why = str(answer.get("why", ""))
    match answer["state"]:
        case "unmanaged":
            return RefusedError(f"{host}: {tree} is no tree that ddops made",
                                why=why, next=f"ddops tree init {host}")  # fmt: skip
        case "there":
            return RefusedError(f"{host}: {tree} is there and is another one", why=why,
                                next=f"ddops snapshot {host}, then move it away")  # fmt: skip
        case "busy":
            return LockHeldError(f"{host}: {tree}: {why}", next="wait for it, then again")
        case "no-wheel" | "no-package" | "no-commit":
            return RefusedError(f"{host}: that is no SGLang tree", why=why,
                                next="name another source: ddops tree init --help")  # fmt: skip
        case "no-git":
            return RefusedError(
                f"{host}: git is not installed there", why=why,
                next="install git on the host (Debian: apt-get install git)",
            )  # fmt: skip
        case "edited":
            paths = answer["paths"]
            listed = ", ".join(map(str, paths[:8])) if isinstance(paths, list) else ""
            return RefusedError(
                f"{host}: files that the series touches were edited by hand: {listed}",
                why="nothing was changed; a patch never overwrites an edit",
                next=f"ddops tree export {host}, or commit the edits in {tree}",
            )
        case "conflict":
            return RefusedError(
                f"{host}: the series does not fit: {'; '.join(conflict_lines(answer))}",
                why="nothing was changed: all of a series is applied, or none",
                next=f"mend the patch, or: ddops tree rebase {host} --onto VERSION",
            )
    return CommandFailed(f"{host}: git {answer.get('command', '')} failed", rc=1, stderr=why)


def conflict_lines(answer: Mapping[str, object]) -> list[str]:
    """One line for each hunk that does not fit."""
    rows = answer["patches"]
    out = []
    for row in rows if isinstance(rows, list) else []:
        for hunk in row["hunks"]:
            number = f" hunk {hunk['hunk']}" if hunk["hunk"] else ""
            where = f" (lines {hunk['range']})" if hunk.get("range") else ""
            out.append(f"{row['name']}: {hunk['file']}{number}{where}: {hunk['why']}")
    return out


def _packed(series: Series) -> list[dict[str, str]]:
    return [{"name": p.name, "data": base64.b64encode(p.data).decode()} for p in series.patches]


def _patches(answer: Mapping[str, object]) -> list[tuple[str, bytes]]:
    rows = answer["patches"]
    return [(str(r["name"]), base64.b64decode(r["data"])) for r in rows] if isinstance(
        rows, list) else []  # fmt: skip
