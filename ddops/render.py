"""Jinja2, sandboxed and strict: an unknown name is an error, never an empty string.

Templates are looked up in the project first and in the package second. Rendering is pure:
text and values in, text out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from jinja2 import StrictUndefined, TemplateError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ddops.config.files import read_text
from ddops.errors import ConfigError, Problem

#: A text that every reader of YAML takes for one, but for the words that some take for values.
_PLAIN = re.compile(r"[A-Za-z/]([A-Za-z0-9_./-]*[A-Za-z0-9])?")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"])

#: Finds a template by its name below `templates/`; raises when there is none.
Lookup = Callable[[str], Path]


def render(lookup: Lookup, name: str, values: Mapping[str, object]) -> str:
    """Render `templates/<name>`. Errors name the template's file and line."""
    path = lookup(f"templates/{name}")
    text = read_text(path, next="mend the template, or remove it to use the shipped one")
    try:
        return render_text(text, values)
    except TemplateError as error:
        line = getattr(error, "lineno", None) or _line_of(error)
        raise ConfigError(
            [Problem(str(path), line, "", f"template: {error}")],
            next="mend the template, or remove it to use the shipped one",
        ) from error


def render_text(text: str, values: Mapping[str, object]) -> str:
    """Render template text. A value with a line break cannot enter at all."""
    return _environment().from_string(text).render(dict(values))


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """Made once: many hosts are rendered in one run."""
    env = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # nosec: output is unit files and shell, not HTML
        finalize=_one_line,
    )
    env.filters["shq"] = lambda value: shlex.quote(str(value))
    return env


def _one_line(value: object) -> object:
    """A line break in a value would start a new directive in a unit or config file."""
    if isinstance(value, str) and any(c in value for c in "\n\r\0"):
        raise UndefinedError(f"value with a line break or NUL in a template: {value!r}")
    return value


def _line_of(error: BaseException) -> int:
    """The line of a run-time template error, from the innermost template frame; 0 if unknown."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def to_yaml(document: Mapping[str, object]) -> str:
    """One YAML document, keys in the order given.

    Readers differ in what a bare word is (`1e3`, `on`, `0o7`), so texts are quoted unless they can
    only be texts; several lines become a block.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _data: object) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        style = "|" if "\n" in value else None if plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(
        dict(document), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1_000_000
    )
