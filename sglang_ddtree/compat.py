"""The one SGLang that this plugin knows, and whether the installed one is it.

Every function that is hooked, overridden or relied on for its inner order has a fingerprint: a hash
of its source text, read from the files, so that a check imports nothing of SGLang. It takes about
half a second of a processor, so it is made when DDTREE is asked for and not in every server.

The table is renewed by `tools/ddtree_fingerprints.py`, after reading what changed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SGLANG_VERSION = "0.5.23"

#: Dotted module below `sglang.`: names in it, each with the fingerprints that are known good.
Table = Mapping[str, Mapping[str, Sequence[str]]]


def problems() -> list[str]:
    """What differs from the SGLang that the plugin was written for; empty when nothing does."""
    other = version_problem()
    return [other] if other else list(moved())


def version_problem() -> str | None:
    """Why the installed release cannot be the right one, or None. Reads its metadata only."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        return "sglang is not installed here"
    if found != SGLANG_VERSION:
        return f"sglang {found} is installed; DDTREE hooks private functions of {SGLANG_VERSION}"
    return None


def known() -> Table:
    """The table that comes with this package."""
    text = Path(__file__).with_name("fingerprints.toml").read_text(encoding="utf-8")
    table: Table = tomllib.loads(text)
    return table


def moved(table: Table | None = None) -> Iterator[str]:
    """Each function of the table that is gone or has another text."""
    for module, names in (known() if table is None else table).items():
        for name, good in names.items():
            found = fingerprint(module, name)
            if found is None:
                yield f"sglang.{module}.{name} is missing"
            elif found not in good:
                yield f"sglang.{module}.{name} has changed ({found}, known {', '.join(good)})"


def fingerprint(module: str, name: str) -> str | None:
    """12 hex digits of the source of `name` in that module of SGLang, or None when it is gone."""
    source = source_of(module, name)
    if source is None:
        return None
    return hashlib.sha256(textwrap.dedent(source).strip().encode()).hexdigest()[:12]


def source_of(module: str, name: str) -> str | None:
    """The text of a function or class, decorators left out, or None when it is not there."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0])
    file = root.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        return None
    text, node = _parsed(file)
    for part in name.split("."):
        inner = [n for n in getattr(node, "body", []) if getattr(n, "name", None) == part]
        if not inner:
            return None
        node = inner[-1]
    return ast.get_source_segment(text, node)


@cache
def _parsed(file: Path) -> tuple[str, ast.AST]:
    text = file.read_text(encoding="utf-8")
    return text, ast.parse(text)
