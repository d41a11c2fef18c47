"""A tree on this machine, and the host-side script run on it as a host would run it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddops.gitio import clean_env
from ddops.hostside import joined

SNAP = joined("snap_git", "snap_scan", "snap_history", "snap")
LAY = joined("snap_git", "snap_lay")


@dataclass
class Tree:
    """`root` is the work tree, `git_dir` ours."""

    root: Path
    git_dir: Path
    more: dict[str, object] = field(default_factory=dict)

    def write(self, name: str | bytes, data: bytes = b"x\n", mode: int = 0o644) -> Path:
        path = self.root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
        return path

    def spec(self, **changes: object) -> dict[str, object]:
        base: dict[str, object] = {
            "git_dir": str(self.git_dir), "tree": str(self.root), "have": [], "allow": [],
            "large_bytes": 100_000, "inline_bytes": 4 << 20, "at": 1_700_000_000,
            "lock_wait_s": 5, "rounds": 6,
        }  # fmt: skip
        return {**base, **self.more, **changes}

    def start(self, **changes: object) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(
            [sys.executable, "-", json.dumps(self.spec(**changes))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert made.stdin is not None
        made.stdin.write(SNAP.encode())
        made.stdin.close()
        made.stdin = None
        return made

    def snap(self, **changes: object) -> dict[str, object]:
        return finish(self.start(**changes))

    def git(self, *words: str, stdin: bytes = b"") -> bytes:
        """Our folder, asked by git itself."""
        return git("--git-dir", str(self.git_dir), *words, stdin=stdin)

    def ls(self, treeish: object) -> dict[bytes, tuple[str, str]]:
        """Path to mode and object of all files."""
        out = {}
        for row in self.git("ls-tree", "-r", "-z", str(treeish)).split(b"\0"):
            if row:
                meta, _, path = row.partition(b"\t")
                mode, _, oid = meta.decode().split()
                out[path] = (mode, oid)
        return out

    def content(self, treeish: object, path: str) -> bytes:
        return self.git("cat-file", "blob", f"{treeish}:{path}")


def finish(process: subprocess.Popen[bytes]) -> dict[str, object]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode(errors="replace")
    value: dict[str, object] = json.loads(out)
    return value


def git(*words: str, stdin: bytes = b"", cwd: Path | None = None) -> bytes:
    who = {f"GIT_{w}_{k}": "t" for w in ("AUTHOR", "COMMITTER") for k in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *words], input=stdin, capture_output=True, check=False, cwd=cwd,
        env={**clean_env(), **who},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def lay(spec: dict[str, object]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-", json.dumps(spec)], input=LAY.encode(), capture_output=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    value: dict[str, object] = json.loads(done.stdout)
    return value


def pack_of(answer: dict[str, object]) -> bytes:
    told = answer["pack"]
    assert isinstance(told, dict)
    return base64.b64decode(str(told["data"]))


def fingerprint(root: Path) -> list[tuple[object, ...]]:
    """Everything of a folder that a snapshot must leave alone: bytes, modes, times, inodes."""
    out: list[tuple[object, ...]] = []
    for path in sorted(root.rglob("*"), key=os.fsencode):
        found = path.lstat()
        data = os.fsencode(path.readlink()) if path.is_symlink() else b""
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
        out.append((path, found.st_mode, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, data))
    return out


def paths(rows: object) -> Sequence[str]:
    assert isinstance(rows, list)
    return [str(r["path"] if isinstance(r, dict) else r) for r in rows]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    if shutil.which("git") is None:
        pytest.skip("git is not installed: `make system` installs it")
    made = Tree(tmp_path / "work", tmp_path / "state" / "trees" / "t.git")
    made.root.mkdir()
    made.write("sglang/__init__.py", b"__version__ = '1'\n")
    made.write("sglang/srt/server.py", b"print('serve')\n")
    return made
