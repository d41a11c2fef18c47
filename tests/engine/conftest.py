"""One lab with the real SGLang on CPU for the whole tier: building it is what costs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
#: A start of the real engine takes 15 to 40 s on two busy cores; building its environment minutes.
COMMAND_LIMIT_S = 1500


@dataclass(frozen=True, slots=True)
class Done:
    """A finished `ddops` command."""

    rc: int
    out: str
    err: str

    def data(self) -> object:
        return json.loads(self.out)["data"]


@dataclass(frozen=True, slots=True)
class EngineLab:
    """A project with a lab that runs the real engine."""

    root: Path

    def ddops(self, *words: str, ok: bool = True) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "ddops", "--project", str(self.root), *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "DDOPS_READY_QUIET_S": "1"},
            check=False,
        )
        if ok:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return Done(done.returncode, done.stdout, done.stderr)

    @property
    def engine_dir(self) -> Path:
        return self.root / ".ddops/lab/hosts/lab1/engine"

    def env_python(self) -> Path:
        return next(self.engine_dir.glob("env/*/bin/python"))

    def log(self) -> str:
        return (self.engine_dir / ".ddops/services/tiny/log/engine.log").read_text()


@pytest.fixture(scope="session")
def engine_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineLab]:
    if not (shutil.which("sshd") or Path("/usr/sbin/sshd").exists()):
        pytest.skip("no sshd on this machine: `make system` installs it")
    root = tmp_path_factory.mktemp("engine")
    (root / "ddops.toml").write_text("[settings]\nload_budget_s = 300\n")
    lab = EngineLab(root)
    lab.ddops("lab", "up")
    try:
        lab.ddops("check", "lab")
        lab.ddops("provision", "lab")
        yield lab
    finally:
        lab.ddops("lab", "down")


@pytest.fixture(scope="session")
def engine_python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of the lab's engine environment.

    `DDOPS_ENGINE_PYTHON` names one that was built before, to try a test without building it anew.
    """
    if built := os.environ.get("DDOPS_ENGINE_PYTHON"):
        return Path(built)
    lab: EngineLab = request.getfixturevalue("engine_lab")
    return lab.env_python()
