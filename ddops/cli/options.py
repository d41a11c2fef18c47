"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


def complete_targets(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names from local files alone; a broken file completes nothing and breaks nothing."""
    from pathlib import Path

    from ddops.config import find_project
    from ddops.errors import DdopsError
    from ddops.inventory import target_names

    try:
        return [n for n in target_names(find_project(Path())) if n.startswith(incomplete)]
    except DdopsError:
        return []


class Number(click.FloatRange):
    """A number between two bounds. NaN is none: it is neither below a bound nor above it."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def targets(*, required: bool) -> Callable[[F], F]:
    """TARGET ... with --limit and --exclude."""

    def decorate(command: F) -> F:
        command = click.option(
            "--exclude", multiple=True, metavar="PATTERN", help="Leave these hosts out."
        )(command)
        command = click.option(
            "--limit", multiple=True, metavar="PATTERN", help="Only these hosts of the targets."
        )(command)
        return click.argument(
            "target", nargs=-1, required=required, shell_complete=complete_targets
        )(command)

    return decorate


#: A day: who waits longer for somebody else's work looks what it is.
_LONGEST_WAIT_S = 86_400.0
lock_wait_option = click.option(
    "--lock-wait", type=Number(0, _LONGEST_WAIT_S), default=0.0, metavar="SECONDS",
    help="Wait for the lock.",
)  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, assume_yes: bool) -> None:
    """Ask on a terminal; without one, `--yes` is required: nothing happens by silence."""
    import sys

    from ddops.errors import UsageError

    if assume_yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "this changes things, and there is no terminal to ask on", next="say --yes"
        )
    if not click.confirm(question, err=True):
        raise click.Abort
