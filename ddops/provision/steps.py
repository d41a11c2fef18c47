"""The kinds of provision steps. Each observes with one round trip and applies idempotently."""

from __future__ import annotations

import base64
import difflib
import json
import posixpath
from dataclasses import dataclass
from pathlib import Path

from ddops.command import cmd
from ddops.errors import CommandFailed, DdopsError
from ddops.hostside import joined
from ddops.plan import Change, Proposal
from ddops.provision.envs import EnvRecipe
from ddops.provision.side import NOTHING, HostSide, Query
from ddops.supervise import ProcessSupervisor
from ddops.transport.files import make_dirs, remove_tree, send_tree, tree_digest, write_file

#: Building an engine environment downloads and unpacks gigabytes.
BUILD_DEADLINE_S = 3600.0
#: Which build of torch an environment must have got, whatever the host's pip would rather take.
TORCH_BUILDS = {"sglang": "cuda", "sglang-cpu": "cpu"}
_DIFF_LINES = 60


@dataclass(frozen=True, slots=True)
class DirsStep:
    """Folders with their modes."""

    id: str
    title: str
    side: HostSide
    dirs: tuple[tuple[str, int], ...]

    def query(self) -> Query:
        return {"dirs": [p for p, _ in self.dirs]}

    def observe(self) -> Proposal:
        seen = self.side.state(dirs=[p for p, _ in self.dirs])["dirs"]
        lines = []
        for path, mode in self.dirs:
            if seen[path] is None:
                lines.append(f"make {path} (mode {mode:04o})")
            elif seen[path] == -1:
                raise DdopsError(
                    f"{self.side.transport.host}: {path} is in the way: not a folder",
                    next=f"move it away on {self.side.transport.host}",
                )
            elif seen[path] != mode:
                lines.append(f"mode of {path}: {_mode(seen[path])} -> {mode:04o}")
        return Proposal(Change.CREATE, tuple(lines)) if lines else NOTHING

    def apply(self) -> None:
        for path, mode in self.dirs:
            make_dirs(self.side.transport, path, mode=mode)
            done = self.side.transport.run(cmd("chmod", f"{mode:04o}", path))
            if not done.ok:
                raise CommandFailed(f"chmod {path}", rc=done.rc, stderr=done.err)


@dataclass(frozen=True, slots=True)
class TreeStep:
    """A local folder, the same on the host. `below` is where removing the old one may happen."""

    id: str
    title: str
    side: HostSide
    local: Path
    remote: str
    below: str

    def query(self) -> Query:
        return {"trees": [self.remote]}

    def observe(self) -> Proposal:
        want = tree_digest(self.local)
        have = self._remote_digest()
        if have == want:
            return NOTHING
        if have is None:
            return Proposal(Change.CREATE, (f"send {self.remote} (sha256 {want[:12]})",))
        return Proposal(
            Change.UPDATE, (f"replace {self.remote} (sha256 {have[:12]} -> {want[:12]})",)
        )

    def apply(self) -> None:
        if self._remote_digest() is not None:
            remove_tree(self.side.transport, self.remote, self.below)
        send_tree(self.side.transport, self.local, self.remote)

    def _remote_digest(self) -> str | None:
        found = self.side.state(trees=[self.remote])["trees"][self.remote]
        return None if found is None else str(found)


@dataclass(frozen=True, slots=True)
class FileStep:
    """One text file, shown as a diff."""

    id: str
    title: str
    side: HostSide
    path: str
    content: str
    mode: int = 0o600

    def query(self) -> Query:
        return {"texts": [self.path]}

    def observe(self) -> Proposal:
        seen = self.side.state(texts=[self.path])["texts"][self.path]
        raw = None if seen is None else base64.b64decode(str(seen))
        if raw == self.content.encode():
            return NOTHING
        old = (raw or b"").decode("utf-8", "replace")
        diff = difflib.unified_diff(
            old.splitlines(), self.content.splitlines(), self.path, self.path, lineterm=""
        )
        change = Change.CREATE if raw is None else Change.UPDATE
        return Proposal(change, tuple(diff)[:_DIFF_LINES])

    def apply(self) -> None:
        make_dirs(self.side.transport, posixpath.dirname(self.path))
        write_file(self.side.transport, self.path, self.content.encode(), self.mode)


@dataclass(frozen=True, slots=True)
class EnvStep:
    """The engine environment, built on the host from inputs that already lie there.

    `laid` is a folder inside that somebody is about to lay down: it is not missing.
    """

    id: str
    title: str
    side: HostSide
    recipe: EnvRecipe
    find_links: str | None
    index: str | None
    laid: str = ""

    @property
    def _dir(self) -> str:
        return self.side.layout.env(self.recipe.digest)

    def query(self) -> Query:
        return {"envs": [self._dir]}

    def observe(self) -> Proposal:
        seen = self.side.state(envs=[self._dir])["envs"][self._dir]
        where = self.find_links or self.index or "what the host's pip is set up with"
        build = f"{self._dir} ({self.recipe.kind}), packages from {where}"
        if not isinstance(seen, dict):
            return Proposal(Change.CREATE, (f"build {build}",))
        absent = f"{posixpath.relpath(self.laid, self._dir)} is missing" if self.laid else ""
        wrong = [str(w) for w in seen["wrong"] if w != absent]
        unknown = [str(w) for w in seen["unknown"]]
        if not wrong and unknown:
            return Proposal(Change.UNKNOWN, (f"{self._dir} cannot be looked at", *unknown))
        if not wrong and seen["digest"] != self.recipe.digest:
            wrong = [f"it was built of {str(seen['digest'])[:12]}"]
        if not wrong:
            return NOTHING
        edits = f"an edit by hand there is gone then: ddops snapshot {self.side.transport.host}"
        return Proposal(
            Change.UPDATE,
            (f"build again {build}", *wrong, f"{edits} keeps it",
             "an engine that runs from it may miss files until it is built"),
        )  # fmt: skip

    def apply(self) -> None:
        inputs = self.side.layout.inputs(self.recipe.digest)
        spec = {
            "dir": self._dir,
            "digest": self.recipe.digest,
            "torch": f"{inputs}/torch.txt" if self.recipe.has("torch.txt") else None,
            "lock": f"{inputs}/engine.lock" if self.recipe.has("engine.lock") else None,
            "dists": [f"{inputs}/dists/{n}" for n in self.recipe.parts("dists")],
            "trees": [f"{inputs}/trees/{n}" for n in self.recipe.parts("trees")],
            "torch_build": TORCH_BUILDS.get(self.recipe.kind),
            "find_links": self.find_links,
            "index": self.index,
        }
        script = joined("env_whole", "build_env")
        done = self.side.transport.run(
            cmd(self.side.python, "-c", script, json.dumps(spec)), deadline_s=BUILD_DEADLINE_S
        )
        if not done.ok:
            raise CommandFailed(
                f"{self.side.transport.host}: the engine environment was not built",
                rc=done.rc,
                why=done.err.strip()[-1500:],
                next=f"mend it and run: ddops provision {self.side.transport.host}",
            )


@dataclass(frozen=True, slots=True)
class DaemonStep:
    """supervisord runs, with the configuration that lies there."""

    id: str
    title: str
    side: HostSide

    @property
    def _supervisor(self) -> ProcessSupervisor:
        return ProcessSupervisor(self.side.transport, self.side.layout, self.side.python)

    @property
    def _script(self) -> str:
        return f"{self.side.layout.hostside}/svctl.py"

    def query(self) -> Query:
        return {"files": [self._script]}

    def observe(self) -> Proposal:
        script = self._script
        if self.side.state(files=[script])["files"][script] is None:
            return Proposal(Change.CREATE, ("start supervisord",))
        return (
            NOTHING
            if self._supervisor.daemon_up()
            else Proposal(Change.CREATE, ("start supervisord",))
        )

    def apply(self) -> None:
        self._supervisor.ensure()


@dataclass(frozen=True, slots=True)
class PresentStep:
    """Weights that must already lie on the host; ddops does not bring them."""

    id: str
    title: str
    side: HostSide
    path: str
    what: str

    def query(self) -> Query:
        return {"dirs": [self.path]}

    def observe(self) -> Proposal:
        seen = self.side.state(dirs=[self.path])["dirs"][self.path]
        if isinstance(seen, int) and seen != -1:
            return NOTHING
        return Proposal(Change.UNKNOWN, (f"{self.what} is not at {self.path}",))

    def apply(self) -> None:
        raise DdopsError(
            f"{self.side.transport.host}: {self.what} is not at {self.path}",
            why="the service names no model_source to copy it from",
            next="put it there, or set model_source in the service's file",
        )


def _mode(seen: object) -> str:
    return f"{seen:04o}" if isinstance(seen, int) else "?"
