"""git here, by plumbing: a bare repository of our own that no configuration of a user touches."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddops.errors import CommandFailed, DdopsError, RefusedError

#: A first pack of a big tree, on a slow disk.
DEADLINE_S = 900.0
_IDENTITY = ("AUTHOR", "COMMITTER")
_DAMAGED = ("corrupt", "inflate", "hash mismatch", "mismatch", "unable to unpack", "bad object",
            "missing blob", "missing tree", "is empty", "unable to read")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a tree object. `mode` is git's, such as `100755` or `120000`."""

    mode: str
    kind: str
    name: str
    path: bytes


@dataclass(frozen=True, slots=True)
class Repo:
    """A bare repository in a folder here. Made on first use, mode 0700."""

    dir: Path

    def ensure(self) -> None:
        """Make it whole or not at all; two at once are fine."""
        if (self.dir / "HEAD").exists():
            return
        self.dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self.dir.with_name(f"{self.dir.name}.{secrets.token_hex(6)}.partial")
        self._git(["git", "init", "-q", "--bare", "--template=", str(fresh)], cwd=self.dir.parent)
        config = ("gc.auto=0", "pack.compression=1", "pack.window=0", "core.looseCompression=1",
                  "core.protectNTFS=false", "core.protectHFS=false", "core.logAllRefUpdates=false",
                  "core.fsyncMethod=fsync")  # fmt: skip
        for item in config:
            key, _, value = item.partition("=")
            self._git(["git", "--git-dir", str(fresh), "config", key, value], cwd=self.dir.parent)
        fresh.chmod(0o700)
        try:
            fresh.rename(self.dir)
        except OSError:
            shutil.rmtree(fresh)
            if not (self.dir / "HEAD").exists():
                raise

    def run(self, *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        """A git command's output. Raises CommandFailed with git's own words."""
        return self._git(["git", "--git-dir", str(self.dir), *words], stdin=stdin, env=env)

    def text(self, *words: str, stdin: bytes = b"") -> str:
        return self.run(*words, stdin=stdin).decode("utf-8", "surrogateescape").strip()

    def has(self, name: str) -> bool:
        try:
            self.run("cat-file", "-e", name)
        except CommandFailed:
            return False
        return True

    def refs(self, prefix: str) -> dict[str, str]:
        """Names behind `prefix` with the object each points at."""
        if not self.dir.exists():
            return {}
        lines = self.text("for-each-ref", "--format=%(refname) %(objectname)", prefix).splitlines()
        rows = (line.split(" ") for line in lines if line)
        return {name.removeprefix(prefix).lstrip("/"): oid for name, oid in rows}

    def set_ref(self, name: str, oid: str) -> None:
        self.run("update-ref", name, oid)

    def drop_refs(self, names: Sequence[str]) -> None:
        lines = "".join(f"delete {n}\n" for n in names)
        self.run("update-ref", "--stdin", stdin=lines.encode())

    def add_files(self, files: Mapping[str, bytes], workdir: Path) -> str:
        """A tree object that holds these files; names may have one folder before them."""
        paths = []
        for number, data in enumerate(files.values()):
            path = workdir / f"{number}.blob"
            path.write_bytes(data)
            paths.append(path)
        listed = "\n".join(str(p) for p in paths).encode() + b"\n"
        oids = self.text("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=listed).split()
        folders: dict[str, list[bytes]] = {"": []}
        for name, oid in zip(files, oids, strict=True):
            folder, _, leaf = name.rpartition("/")
            folders.setdefault(folder, []).append(f"100644 blob {oid}\t{leaf}\0".encode())
        for folder, lines in folders.items():
            if folder:
                oid = self.text("mktree", "-z", stdin=b"".join(lines))
                folders[""].append(f"040000 tree {oid}\t{folder}\0".encode())
        return self.text("mktree", "-z", stdin=b"".join(folders[""]))

    def commit(self, tree: str, message: str, at: int, parents: Sequence[str] = ()) -> str:
        """A commit whose id depends on its arguments alone."""
        env: dict[str, str] = {}
        for who in _IDENTITY:
            env |= {f"GIT_{who}_NAME": "ddops", f"GIT_{who}_EMAIL": "ddops@localhost",
                    f"GIT_{who}_DATE": f"@{at} +0000"}  # fmt: skip
        words = [w for p in parents for w in ("-p", p)]
        made = self.run("commit-tree", tree, *words, stdin=f"{message}\n".encode(), env=env)
        return made.decode().strip()

    def take_pack(self, pack: bytes | Path) -> None:
        """Add a pack's objects; each one's hash is computed from what arrived."""
        words = ("index-pack", "--stdin", "--strict", "--fix-thin")
        if isinstance(pack, bytes):
            self.run(*words, stdin=pack)
            return
        with pack.open("rb") as stream:
            self._git(["git", "--git-dir", str(self.dir), *words], stdin=stream.fileno())

    def make_pack(self, names: Sequence[str]) -> bytes:
        """A pack of exactly these objects."""
        listed = "\n".join(sorted(set(names))).encode() + b"\n"
        return self.run("pack-objects", "-q", "--stdout", "--delta-base-offset", stdin=listed)

    def new_objects(self, commit: str, base: str | None) -> list[str]:
        """Objects of `commit` that whoever has `base` lacks; too many are no fault."""
        if base is None:
            return self.text("rev-list", "--objects", "--no-object-names", commit).split()
        words = ("diff-tree", "-r", "-t", "-z", "--no-renames", "--raw", base, commit)
        fields = (f.split(b" ") for f in self.run(*words).split(b"\0")[::2])
        changed = {w[3].decode() for w in fields if len(w) == 5 and w[4] != b"D"}
        return [commit, self.text("rev-parse", f"{commit}^{{tree}}"), *changed]

    def ls(self, treeish: str) -> list[Entry]:
        """All files of a tree, recursively."""
        rows = (r for r in self.run("ls-tree", "-r", "-z", treeish).split(b"\0") if r)
        out = []
        for row in rows:
            meta, _, path = row.partition(b"\t")
            mode, kind, name = meta.decode().split()
            out.append(Entry(mode, kind, name, path))
        return out

    def blob(self, name: str) -> bytes:
        return self.run("cat-file", "blob", name)

    def blobs(self, names: Sequence[str]) -> list[bytes]:
        """Many blobs by one process. Raises CommandFailed when one is not there."""
        if not names:
            return []
        out = self.run("cat-file", "--batch", stdin="".join(f"{n}\n" for n in names).encode())
        found, at = [], 0
        for name in names:
            end = out.index(b"\n", at)
            words = out[at:end].split(b" ")
            if words[-1] == b"missing":
                raise CommandFailed(f"git: no object {name}", rc=1, next="ddops snapshot verify")
            size = int(words[-1])
            found.append(out[end + 1 : end + 1 + size])
            at = end + 2 + size
        return found

    def fsck(self, *names: str) -> None:
        """Read every object back and hash it; raises DdopsError naming what is wrong."""
        try:
            self.run("fsck", "--full", "--no-dangling", "--no-progress", *names)
        except CommandFailed as error:
            raise DdopsError(
                f"{self.dir}: objects are damaged or missing",
                why=error.why,
                next="ddops snapshot verify",
            ) from error

    def _git(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | int = b"",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> bytes:
        data, handle = (stdin, None) if isinstance(stdin, bytes) else (None, stdin)
        try:
            done = subprocess.run(
                argv, capture_output=True, check=False, timeout=DEADLINE_S, cwd=cwd,
                env=clean_env(env), input=data, stdin=handle,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise RefusedError(
                "git is not installed here", why="snapshots are kept in a git repository",
                next="install git (Debian: apt-get install git)",
            ) from error  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise DdopsError(f"git {argv[3]}: no end within {DEADLINE_S:g} s") from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise CommandFailed(f"git {' '.join(argv[3:5])} failed", rc=done.returncode,
                                stderr=said)  # fmt: skip
        return done.stdout


def clean_env(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without anything that would steer git elsewhere."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    fixed = {"LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
             "GIT_TERMINAL_PROMPT": "0"}  # fmt: skip
    return {**kept, **fixed, **(more or {})}


def is_damage(words: str) -> bool:
    """Whether git's words speak of an object that is not what it was."""
    low = words.lower()
    return any(w in low for w in _DAMAGED)
