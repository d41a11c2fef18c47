"""The root command: hints, exit codes, verbosity, and where errors end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from ddops import __version__, errors
from ddops.cli import root as root_module
from ddops.cli.app import App, end_together
from ddops.errors import ConfigError, DdopsError, ExitCode, PartialError, Problem
from ddops.events import Event, Level, ListReporter
from tests.unit.cli_support import Run, runner

COMMANDS = list(root_module.COMMANDS)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(tmp_path, monkeypatch, capfd)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[App], object]], None]:
    """Make `ddops try` a command that runs the given body."""

    def make(body: Callable[[App], object]) -> None:
        @click.command()
        @click.pass_obj
        def attempt(app: App) -> None:
            body(app)

        module = ModuleType("ddops.cli.attempt")
        vars(module)["attempt"] = attempt
        monkeypatch.setitem(sys.modules, "ddops.cli.attempt", module)
        known = {**root_module.COMMANDS, "try": ("attempt:attempt", "Try it.")}
        monkeypatch.setattr(root_module, "COMMANDS", known)

    return make


def raising(error: BaseException) -> Callable[[App], object]:
    def body(_app: App) -> None:
        raise error

    return body


def test_help_goes_to_stdout_and_names_every_command(run: Run) -> None:
    done = run("--help")
    assert (done.code, done.err) == (0, "")
    assert all(f"\n  {name} " in done.out for name in COMMANDS)
    assert run("-h").out == done.out
    assert max(len(line) for line in done.out.splitlines()) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help_fits_80_columns(run: Run, name: str) -> None:
    done = run(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_version(run: Run) -> None:
    assert run("--version").out == f"ddops, version {__version__}\n"


def test_without_a_command_it_shows_its_help() -> None:
    result = CliRunner().invoke(root_module.root, [])
    assert "Commands:" in result.output


@pytest.mark.parametrize(
    ("typed", "meant"), [("dploy", "deploy"), ("statu", "status"), ("provison", "provision")]
)
def test_a_mistyped_command_gets_the_nearest(run: Run, typed: str, meant: str) -> None:
    done = run(typed, "lab")
    assert (done.code, done.out) == (2, "")
    assert f"No such command {typed!r}. Did you mean {meant!r}?" in done.err


def test_a_word_like_no_command_gets_no_guess(run: Run) -> None:
    done = run("zzzzzz")
    assert done.code == 2
    assert "Did you mean" not in done.err


@pytest.mark.parametrize(
    "argv", [("deploy",), ("deploy", "x", "--nope"), ("lab", "up", "--hosts", "x"), ("-z",)]
)
def test_wrong_usage_is_2(run: Run, argv: tuple[str, ...]) -> None:
    done = run(*argv)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err


def classes() -> list[type[DdopsError]]:
    found = [v for v in vars(errors).values() if isinstance(v, type)]
    return [c for c in found if issubclass(c, DdopsError)]


def make(cls: type[DdopsError]) -> DdopsError:
    if cls is ConfigError:
        return ConfigError([Problem("a.toml", 3, "hosts", "wrong")], next="mend it")
    extra = {"CommandFailed": {"rc": 9}, "GateFailed": {"gate": "G3"}}.get(cls.__name__, {})
    return cls("it broke", why="a wire", next="mend it", **extra)  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", classes(), ids=lambda c: c.__name__)
def test_each_error_ends_with_its_code_and_three_lines(
    run: Run, command: Callable[..., None], cls: type[DdopsError]
) -> None:
    command(raising(make(cls)))
    done = run("try")
    assert (done.code, done.out) == (int(cls.exit_code), "")
    lines = done.err.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[-1] == "next: mend it"
    assert len(lines) == (2 if cls is ConfigError else 3)


def test_notes_are_told(run: Run, command: Callable[..., None]) -> None:
    error = DdopsError("it broke")
    error.add_note("and the lock stays")
    command(raising(error))
    assert run("try").err == "error: it broke\nnote: and the lock stays\n"


def test_a_fault_of_ours_says_so_without_a_traceback(
    run: Run, command: Callable[..., None]
) -> None:
    command(raising(ZeroDivisionError("oops")))
    done = run("try")
    assert done.code == int(ExitCode.FAILED)
    assert done.err == (
        "error: a fault in ddops itself: ZeroDivisionError: oops\n"
        "next: run it again with -vv and report what it prints\n"
    )


@pytest.mark.parametrize(
    "argv", [("-vv", "try"), ("try", "-vv"), ("-v", "try", "-v"), ("try", "-v", "--verbose")]
)
@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), DdopsError("it broke")])
def test_a_traceback_only_when_asked(
    run: Run, command: Callable[..., None], argv: tuple[str, ...], error: Exception
) -> None:
    command(raising(error))
    assert "Traceback" in run(*argv).err
    assert "Traceback" not in run("try", "-v").err


def test_debug_by_variable(
    run: Run, command: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    command(raising(DdopsError("it broke")))
    monkeypatch.setenv("DDOPS_DEBUG", "1")
    assert "Traceback" in run("try").err
    monkeypatch.setenv("DDOPS_DEBUG", "0")
    assert "Traceback" not in run("try").err


def speak(app: App) -> None:
    app.report.emit(Event("x", "a detail", level=Level.DETAIL))
    app.say("a fact")
    app.warn("a warning")


def test_verbosity_before_and_behind_the_command(run: Run, command: Callable[..., None]) -> None:
    command(speak)
    plain = "a fact\nwarning: a warning\n"
    assert run("try").err == plain
    assert run("-v", "try").err == run("try", "-v").err == "a detail\n" + plain
    assert run("-q", "try").err == run("try", "-q").err == "warning: a warning\n"
    assert run("try").out == "", "narration is not data"


def test_help_shows_the_option_behind_each_command_once(run: Run) -> None:
    run("lab", "up", "--help")
    assert run("lab", "up", "--help").out.count("--verbose") == 1
    assert run("lab", "up", "--help").out.count("--quiet") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_is_130(run: Run, command: Callable[..., None], error: BaseException) -> None:
    command(raising(error))
    done = run("try")
    # click itself ends the line that holds the terminal's ^C
    assert (done.code, done.out, done.err.lstrip("\n")) == (130, "", "stopped\n")


def test_transports_are_closed_whatever_happens(run: Run, command: Callable[..., None]) -> None:
    from ddops.transport import FakeTransport

    opened = [FakeTransport("a"), FakeTransport("b")]

    def body(app: App) -> None:
        app._open.extend(opened)
        raise DdopsError("it broke")

    command(body)
    assert run("try").code == 1
    assert all(t.closed for t in opened)


def test_a_missing_project_folder(run: Run) -> None:
    done = run("--project", "nowhere", "host", "list")
    assert done.code == 2
    assert "no such folder" in done.err


def test_nothing_is_coloured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NO_COLOR", "1"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
        for argv in (("--help",), ("host", "list"), ("nosuch",), ("config", "show")):
            done = run(*argv)
            assert "\x1b" not in done.out + done.err


ROOT = Path(root_module.__file__).resolve().parents[2]


def start(code: str, tmp_path: Path, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, stdout=stdout, stderr=subprocess.PIPE
    )


def test_a_reader_that_goes_away_gets_no_traceback(tmp_path: Path) -> None:
    """`ddops config schema | true`."""
    code = "import sys; from ddops.cli.root import run; sys.exit(run(['config', 'schema']))"
    child = start(code, tmp_path)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    said = child.stderr.read().decode()
    child.stderr.close()
    assert child.wait(30) == 0, "the command did what it was asked for"
    assert said == ""


def test_ctrl_c_ends_with_130_and_one_word(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from ddops.cli import root\n"
        "def main(*a, **k):\n    print('ready', flush=True); time.sleep(30)\n"
        "root.root.main = main\n"
        "sys.exit(root.run(['status']))"
    )
    child = start(code, tmp_path)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (130, b"", b"stopped\n")


def test_outcomes_of_several_hosts() -> None:
    report = ListReporter()
    end_together([("a", 1), ("b", None)], report)
    with pytest.raises(errors.LockHeldError):
        end_together([("a", errors.LockHeldError("a: locked"))], report)
    with pytest.raises(PartialError) as mixed:
        end_together([("a", errors.UnreachableError("a: no")), ("b", 1)], report)
    assert mixed.value.exit_code is ExitCode.PARTIAL
    assert mixed.value.lines() == ["1 of 2 hosts failed: a", "why: 1 went through"]
    down = [(n, errors.UnreachableError("no")) for n in "ab"]
    with pytest.raises(PartialError) as alike:
        end_together(down, report)
    assert alike.value.exit_code is ExitCode.UNREACHABLE
    with pytest.raises(PartialError) as unlike:
        end_together([*down, ("c", errors.RefusedError("no"))], report)
    assert unlike.value.exit_code is ExitCode.PARTIAL
    with pytest.raises(ZeroDivisionError):
        end_together([("a", ZeroDivisionError()), ("b", 1)], report)
    told = [(e.host, e.message) for e in report.events]
    assert ("a", "no") in told
    assert ("", "a: no") in told, "a message that names its host is not prefixed again"
