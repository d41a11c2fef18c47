"""Runs command lines as a shell would: through `ddops.cli.root.run`, with nothing of the user's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddops.cli import root as root_module


@dataclass(frozen=True)
class Done:
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """stdout as one JSON document, and nothing else on it."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed


Run = Callable[..., Done]


def runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """A `run` in an empty folder, with an empty home and no DDOPS_ or XDG_ variable."""
    import os

    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    for name in list(os.environ):
        if name.startswith(("DDOPS_", "XDG_", "_DDOPS")):
            monkeypatch.delenv(name)

    def go(*argv: str) -> Done:
        code = root_module.run(list(argv))
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return go
