"""Reads `ddops ...` command lines out of prose and judges them against the real commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from ddops.cli.root import root

_FENCE = re.compile(r"^[ \t]*(```|~~~)([^\n]*)\n(.*?)^[ \t]*\1", re.DOTALL | re.MULTILINE)
#: Blocks that hold output: there a command stands behind a `$`.
_OUTPUT = ("text", "console", "json", "toml", "ini")
_INLINE = re.compile(r"(?<!`)`(ddops(?: [^`\n]*)?)`(?!`)")
#: Where one command of a shell line ends and what follows is not part of it.
_ENDS = re.compile(r"\s(?:&&|\|\|?|;|#|>{1,2}|2>|<)(?:\s|$)|[;)]\s*$")


def found_in(markdown: str) -> Iterator[str]:
    """Every command line of ddops: lines of fenced blocks that start with it, and inline code."""
    rest = markdown
    for match in _FENCE.finditer(markdown):
        shown = match.group(2).strip() in _OUTPUT
        for line in match.group(3).replace("\\\n", " ").splitlines():
            if line.strip().startswith("$") or not shown:
                yield from _in_line(line)
        rest = rest.replace(match.group(0), "")
    for line in rest.splitlines():
        if line.startswith("    "):  # an indented block
            yield from _in_line(line)
    for match in _INLINE.finditer(rest):
        yield from _in_line(match.group(1))


def _in_line(line: str) -> Iterator[str]:
    line = line.strip().removeprefix("$").strip()
    for part in re.split(r"\s(?:&&|\|\|)\s", line):
        text = part.strip()
        if text == "ddops" or text.startswith("ddops "):
            yield _ENDS.split(text, maxsplit=1)[0].strip()


#: Stands for a value that is not known: right wherever a value may be.
ANY = "ANY"


def fault(line: str, *, whole: bool = True) -> str:
    """What is wrong with a command line; empty when it is right.

    Names of commands and options, their values' types, and, when `whole`, missing arguments.
    Nothing is run.
    """
    try:
        words = shlex.split(line)[1:]
    except ValueError as error:
        return f"no shell words: {error}"
    try:
        return _judge(root, "ddops", words, None, whole)
    except click.ClickException as error:
        return error.format_message()


def _judge(
    command: click.Command, name: str, words: list[str], parent: click.Context | None, whole: bool
) -> str:
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        help_option_names=command.context_settings.get("help_option_names"),
        allow_interspersed_args=not isinstance(command, click.Group),
    )
    given, rest, _ = command.make_parser(context).parse_args(list(words))
    whole = whole and not {"-h", "--help"} & set(words)
    for param in command.get_params(context):
        value = given.get(param.name or "")
        if value == ANY:
            continue
        empty = value is None or value == () or type(value).__name__ == "Sentinel"
        if not empty:
            param.type_cast_value(context, value)
        elif param.required and whole:
            return f"{context.command_path}: {param.name} is missing"
    if not isinstance(command, click.Group):
        return f"unexpected words: {rest}" if rest else ""
    if not rest or rest == ["..."]:
        return ""
    child = command.get_command(context, rest[0])
    if child is None:
        return f"{context.command_path} has no command {rest[0]!r}"
    return _judge(child, rest[0], rest[1:], context, whole)
