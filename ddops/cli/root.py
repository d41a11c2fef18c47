"""The root command, its lazily loaded children, and the one place where errors end."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ddops import __version__
from ddops.cli.streams import outlets
from ddops.command import Redactor
from ddops.errors import DdopsError, ExitCode

#: Name, where it lives, and its line in `--help`: so that help and completion import nothing.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("init:init", "Make a project here: ddops.toml, inventory, folders."),
    "host": ("host:host", "List hosts; show and pin a host's key."),
    "probe": ("probe:probe", "Collect a host's facts."),
    "check": ("check:check", "Judge hosts: can they run what they are for?"),
    "plan": ("plan:plan", "What provision would do, shown and kept."),
    "provision": ("provision:provision", "Prepare hosts: plan, show, then do exactly that."),
    "deploy": ("deploy:deploy", "Make a release live, gated; take it back when it fails."),
    "rollback": ("rollback:rollback", "Back to the last other release that passed here."),
    "tree": ("tree:tree", "A host's SGLang source tree and the patches on it."),
    "snapshot": ("snapshot:snapshot", "Take a source tree with all that belongs to it."),
    "restore": ("restore:restore", "Bring a snapshot back onto a host, gated."),
    "status": ("status:status", "What runs where, as observed."),
    "board": ("board:board", "A live view of hosts, runs and tasks."),
    "drift": ("drift:drift", "Does a host still run what was released there?"),
    "lab": ("lab:lab", "Real hosts on loopback to try things on."),
    "bench": ("bench:bench", "Measure a service, correctness first."),
    "recommend": ("recommend:recommend", "Which configuration to run, and how sure that is."),
    "report": ("report:report", "What was found, what it rests on, and what fell."),
    "bundle": ("bundle:bundle", "One redacted archive for somebody who shall help."),
    "ledger": ("ledger:ledger", "What was recorded: deployments, evidence, the chain."),
    "runbook": ("runbook:runbook", "Ordered steps, journaled, approved, resumed."),
    "task": ("task:task", "What the team has to do, and how it stands."),
    "lock": ("lock:lock", "Who is at work on a host."),
    "config": ("config:config", "Settings and where they come from."),
    "completion": ("completion:completion", "Shell completion script."),
}


class LazyGroup(click.Group):
    """Loads a command's module when the command is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        loaded = getattr(importlib.import_module(f"ddops.cli.{module}"), name)
        if not isinstance(loaded, click.Command):
            raise TypeError(f"{cmd_name} is no command")
        return _with_verbosity(loaded)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


_SPEAKING: tuple[tuple[list[str], dict[str, Any], str], ...] = (
    (["-v", "--verbose"], {"count": True}, "Say more; twice: tracebacks too."),
    (["-q", "--quiet"], {"is_flag": True}, "Say only warnings and errors."),
)


def _speak(ctx: click.Context, param: click.Parameter, value: int) -> None:
    if value:
        ctx.obj.speak(**{str(param.name): True})


def _with_verbosity(command: click.Command) -> click.Command:
    """People type -v and -q where they are: behind the command as well as before it."""
    if isinstance(command, click.Group):
        for child in command.commands.values():
            _with_verbosity(child)
        return command

    for flags, how, text in _SPEAKING:
        if not any(flags[0] in p.opts for p in command.params):
            option = click.Option(flags, expose_value=False, callback=_speak, help=text, **how)
            command.params.append(option)
    return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 refused, 5 rolled back,"
    " 6 rollback failed, 7 locked, 8 changes pending, 9 partial, 130 interrupted.",
)
@click.version_option(__version__, prog_name="ddops")
@click.option("--project", metavar="DIR", help="Work as if started in DIR.")
@click.option("-v", "--verbose", count=True, help="Say more; twice: tracebacks too.")
@click.option("-q", "--quiet", is_flag=True, help="Say only warnings and errors.")
@click.pass_context
def root(ctx: click.Context, project: str | None, verbose: int, quiet: bool) -> None:
    """Prove, deploy, trace and withdraw: ops for patched SGLang."""
    from ddops.cli.app import App

    # `run` hands in its own redactor, so that an error it prints is masked like all else.
    redactor = ctx.obj if isinstance(ctx.obj, Redactor) else Redactor()
    ctx.obj = App(project or ".", verbose=verbose, quiet=quiet, redactor=redactor)
    ctx.call_on_close(ctx.obj.close)


def run(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code. stderr gets what, why and next."""
    with outlets() as out:
        code = _run(argv)
        out.flush()
        # A reader that went away (`| head`) has what it wanted; any other loss is one.
        if code == 0 and out.error is not None and not isinstance(out.error, BrokenPipeError):
            lost = DdopsError(
                "stdout cannot be written, and what was shown is not whole",
                why=out.error.strerror or str(out.error),
                next="run it again with another place for its output",
            )
            _tell(lost, Redactor(), argv)
            return int(ExitCode.FAILED)
    return code


def _run(argv: Sequence[str]) -> int:
    redact = Redactor()
    try:
        result = root.main(args=list(argv), prog_name="ddops", standalone_mode=False, obj=redact)
        return int(result) if isinstance(result, int) else 0
    except DdopsError as error:
        _tell(error, redact, argv)
        return int(error.exit_code)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return int(ExitCode.USAGE)
    except (KeyboardInterrupt, click.Abort):
        print("stopped", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except Exception as error:  # the last boundary: a fault of ours, said as such
        print(redact(f"error: a fault in ddops itself: {type(error).__name__}: {error}"),
              file=sys.stderr)  # fmt: skip
        print("next: run it again with -vv and report what it prints", file=sys.stderr)
        if _wants_trace(argv):
            print(redact(traceback.format_exc()), file=sys.stderr)
        return int(ExitCode.FAILED)


def _tell(error: DdopsError, redact: Redactor, argv: Sequence[str]) -> None:
    from ddops.events import Event, Level, TextReporter

    first, *rest = error.lines()
    report = TextReporter(sys.stderr, redact)  # masks, and keeps a host's escape sequences out
    report.emit(Event("error", first, level=Level.ERROR))
    for line in rest:
        report.emit(Event("error", line))
    for note in getattr(error, "__notes__", ()):
        report.emit(Event("error", f"note: {note}"))
    if _wants_trace(argv):
        report.emit(Event("error", "".join(traceback.format_exception(error))))


def _wants_trace(argv: Sequence[str]) -> bool:
    return (
        os.environ.get("DDOPS_DEBUG", "") not in ("", "0")
        or "-vv" in argv
        or sum(a in ("-v", "--verbose") for a in argv) > 1
    )
