#!/usr/bin/env python3
"""Writes docs/reference/cli.md from the commands' own help.

    .venv/bin/python tools/gen_cli_reference.py            # write it
    .venv/bin/python tools/gen_cli_reference.py --check    # exit 1 when it is stale

What each command says of itself with --help is the only source; nothing here adds words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ddops.cli.root import root

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
WIDTH = 80
_HEAD = """\
# Commands

Made from `--help` by `tools/gen_cli_reference.py`; do not edit. stdout is data, stderr is
narration. What the exit codes mean: [exit-codes.md](exit-codes.md). The JSON documents:
[events-and-json.md](events-and-json.md).
"""


def walk(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Each command with its full name and context, the parent before its children."""
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=command.context_settings.get("help_option_names"),
    )
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from walk(found, child, context)


def reference() -> str:
    """The whole page."""
    parts = [_HEAD]
    for path, command, context in walk(root, "ddops"):
        depth = "##" if path.count(" ") < 2 else "###"
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        parts.append(f"{depth} {path}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def main() -> int:
    text = reference()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text else 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    print(f"wrote {TARGET}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
