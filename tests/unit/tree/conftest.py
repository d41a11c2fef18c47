"""A managed tree on this machine, and its host-side script run as a host would run it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddops.hostside import joined
from tests.unit.snapshot.conftest import git

TEXT = joined("tree_git", "tree_run", "tree")
LINES = [f"line {i}\n" for i in range(40)]
HEADER = "What: a test\nWhy: a test\nUpstream: not sent\nTest: this one\n"


@dataclass
class Managed:
    """`root` holds `tree`; `upstream` is a repository to make it from."""

    root: Path
    prefix: str = ""

    @property
    def tree(self) -> Path:
        return self.root / "tree"

    @property
    def upstream(self) -> Path:
        return self.root / "upstream"

    def ask(self, verb: str, **more: object) -> dict[str, object]:
        spec = {"verb": verb, "tree": str(self.tree), "patches": [], "only": [], "check": False,
                "services": {}, **more}  # fmt: skip
        word = base64.b64encode(zlib.compress(json.dumps(spec).encode())).decode()
        done = subprocess.run([sys.executable, "-", word], input=TEXT.encode(),
                              capture_output=True, check=False, timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        value: dict[str, object] = json.loads(done.stdout)
        return value

    def init(self, **more: object) -> dict[str, object]:
        spec: dict[str, object] = {"kind": "git", "source": str(self.upstream), "path": "",
                                   "want": self.pin, "engine": "sglang-0.5.23",
                                   "prefix": self.prefix}  # fmt: skip
        return self.ask("init", **{**spec, **more})

    @property
    def pin(self) -> str:
        return git("rev-parse", "HEAD", cwd=self.upstream).decode().strip()

    def package(self, base: Path | None = None) -> Path:
        return (base or self.tree) / self.prefix / "sglang"

    def patch(self, name: str, edits: Mapping[str, str], message: str = "") -> dict[str, str]:
        """A format-patch of edits on the upstream (and on what was patched before)."""
        for path, text in edits.items():
            target = self.package(self.root / "work") / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        work = self.root / "work"
        git("add", "-A", cwd=work)
        git("commit", "-qm", message or f"{name}\n\n{HEADER}", cwd=work)
        relative = [f"--relative={self.prefix.rstrip('/')}"] if self.prefix else []
        data = git("format-patch", "-1", "--stdout", "--full-index", *relative, cwd=work)
        return {"name": f"{name}.patch", "data": base64.b64encode(data).decode()}

    def read(self, path: str) -> str:
        return (self.package() / path).read_text()

    def git(self, *words: str) -> str:
        return git(*words, cwd=self.tree).decode().strip()


def edited(number: int, text: str, lines: list[str] | None = None) -> str:
    out = list(lines or LINES)
    out[number] = f"{text}\n"
    return "".join(out)


@pytest.fixture(params=["", "python/"], ids=["wheel-like", "checkout"])
def managed(request: pytest.FixtureRequest, tmp_path: Path) -> Managed:
    if shutil.which("git") is None:
        pytest.skip("git is not installed: `make system` installs it")
    made = Managed(tmp_path, request.param)
    package = made.package(made.upstream)
    (package / "srt").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "srt/a.py").write_text("".join(LINES))
    (package / "srt/b.py").write_text("".join(LINES))
    git("init", "-q", cwd=made.upstream)
    git("add", "-A", cwd=made.upstream)
    git("commit", "-qm", "upstream", cwd=made.upstream)
    git("clone", "-q", str(made.upstream), str(tmp_path / "work"))
    return made
