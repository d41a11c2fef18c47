"""A canary secret through every way out of the program: reporters, errors, JSON, tables, traces.

The ledger and the host's process list have canaries of their own (tests/unit, tests/contract).
To see it fail: in ddops/cli/root.py let `run` hand no redactor to the App, or in
ddops/cli/output.py print `value` instead of what the redactor gave back.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from types import ModuleType

import click
import pytest

from ddops.cli import root as root_module
from ddops.cli.app import App
from ddops.cli.output import emit_json, emit_table
from ddops.command import MASK, Redactor, Secret
from ddops.errors import (
    CommandFailed,
    ConfigError,
    DdopsError,
    GateFailed,
    Problem,
    RollbackFailedError,
    UnreachableError,
)
from ddops.events import Event, JsonReporter, Level, Reporter, TeeReporter, TextReporter

#: No well-known shape: only the redactor that was told of it can know it.
CANARY = "xK9-canary/quiet+Otter7"
#: Of a well-known shape: masked though nobody said that it is a secret.
STRAY = "hf_AbCdEfGhIjKlMnOpQrStUvWx"
TEXT = f"saw {CANARY} and {STRAY} in api_key={CANARY}"


def clean(text: str) -> bool:
    return CANARY not in text and STRAY not in text and MASK in text


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("level", Level)
def test_reporters_mask(level: Level, verbose: bool) -> None:
    redactor = Redactor([Secret(CANARY)])
    text, lines = io.StringIO(), io.StringIO()
    tee: Reporter = TeeReporter(
        [TextReporter(text, redactor, verbose=verbose), JsonReporter(lines, redactor)]
    )
    data = {"log": TEXT, "nested": [{"env": {"HF_TOKEN": STRAY}}], CANARY: 1}
    tee.emit(Event("kind", TEXT, TEXT, level, data))
    shown = level is not Level.DETAIL or verbose
    assert clean(text.getvalue()) if shown else text.getvalue() == ""
    assert clean(lines.getvalue())
    assert json.loads(lines.getvalue())["level"] == level.value


def _commands(body: Callable[[App], None]) -> ModuleType:
    """A module with one command, as a command of ddops lives in one."""

    @click.command()
    @click.pass_obj
    def canary(app: App) -> None:
        body(app)

    module = ModuleType("ddops.cli.canary")
    vars(module)["canary"] = canary
    return module


@pytest.fixture
def run_body(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command's body through `ddops.cli.root.run`; its exit code, stdout and stderr."""

    def go(body: Callable[[App], None], *flags: str) -> tuple[int, str, str]:
        monkeypatch.setenv("CANARY", CANARY)
        commands = {**root_module.COMMANDS, "canary": ("canary:canary", "A canary.")}
        monkeypatch.setattr(root_module, "COMMANDS", commands)
        monkeypatch.setitem(sys.modules, "ddops.cli.canary", _commands(body))
        code = root_module.run([*flags, "canary"])
        out, err = capfd.readouterr()
        return code, out, err

    return go


ERRORS: list[Exception] = [
    DdopsError(TEXT, why=TEXT, next=TEXT),
    CommandFailed(TEXT, rc=1, stderr=TEXT),
    GateFailed(TEXT, gate="G3", why=TEXT),
    ConfigError([Problem("f.toml", 1, CANARY, TEXT)], next=TEXT),
    UnreachableError(TEXT, why=TEXT),
    RollbackFailedError(TEXT, why=TEXT),
    RuntimeError(TEXT),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("flags", [(), ("-vv",)], ids=["plain", "-vv"])
def test_printed_errors_mask(
    run_body: Callable[..., tuple[int, str, str]], error: Exception, flags: tuple[str, ...]
) -> None:
    def body(app: App) -> None:
        app.resolve("env:CANARY")
        error.add_note(TEXT)
        raise error from ValueError(TEXT)

    code, out, err = run_body(body, *flags)
    assert (code, out) == (int(getattr(error, "exit_code", 1)), "")
    assert clean(err)
    assert ("Traceback" in err) is bool(flags)


def test_json_and_tables_on_stdout_mask(run_body: Callable[..., tuple[int, str, str]]) -> None:
    def body(app: App) -> None:
        app.resolve("env:CANARY")
        emit_json("canary", {"text": TEXT, "argv": ["--api-key", CANARY], "api_key": "short"})
        emit_table(("A", "B"), [(CANARY, TEXT)])
        app.warn(TEXT)

    code, out, err = run_body(body)
    assert code == 0
    document = json.loads(out[: out.rindex("}") + 1])
    assert document["data"]["argv"] == ["--api-key", MASK]
    assert document["data"]["api_key"] == MASK
    assert clean(out)
    assert clean(err)


def test_a_hosts_escape_sequences_do_not_reach_the_terminal(
    run_body: Callable[..., tuple[int, str, str]],
) -> None:
    def body(app: App) -> None:
        emit_table(("A", "B"), [("\x1b[31mred", "\x07\udcff")])
        emit_json("canary", {"name": "caf\xe9 \udcff \x1b[2J"})
        raise CommandFailed("it failed", rc=1, stderr="\x1b]0;title\x07 \udcff")

    code, out, err = run_body(body)
    assert code == 1
    assert "\x1b" not in out + err
    assert "\x07" not in out + err
    assert json.loads(out[out.index("{") :])["data"]["name"] == "caf\xe9 \udcff \x1b[2J"
