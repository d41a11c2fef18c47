"""What the command line may give: no empty text for a name, no number beyond what can be meant."""

from __future__ import annotations

import copy
from typing import Any

import click
from click.core import ParameterSource

#: How many, or which one of a list. SQLite's own bound lies far beyond; a Python number has none.
COUNT = click.IntRange(1, 1_000_000)


def refuse_empty(command: click.Command) -> None:
    """An empty text on the command line is an unset variable of a script, never "not given".

    Left alone it would mean the default, or the current folder.
    """
    for param in command.params:
        told = isinstance(param.type, click.types.StringParamType | click.Path)
        if told and "convert" not in vars(param.type):  # a command may be loaded several times
            param.type = _filled(param.type)


def _filled(kind: click.ParamType[Any]) -> click.ParamType[Any]:
    """The same type, which takes no empty text from the command line."""

    def convert(value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "" and param is not None and ctx is not None and _typed(param, ctx):
            raise click.BadParameter("it is empty; leave it out, or give it a value.", ctx, param)
        return kind.convert(value, param, ctx)

    made = copy.copy(kind)
    vars(made)["convert"] = convert
    return made


def _typed(param: click.Parameter, ctx: click.Context) -> bool:
    return ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
