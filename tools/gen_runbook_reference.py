#!/usr/bin/env python3
"""Writes docs/reference/runbook-steps.md from the catalogues of steps and conditions.

.venv/bin/python tools/gen_runbook_reference.py            # write it
.venv/bin/python tools/gen_runbook_reference.py --check    # exit 1 when it is stale
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ddops.runbook.conditions import CONDITIONS
from ddops.runbook.model import ParamTable, RunbookTable, StepTable
from ddops.runbook.steps import REMEDIES, STEPS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "runbook-steps.md"
_HEAD = """\
# Steps and conditions of runbooks

Made from the catalogues in `ddops/runbook/` by `tools/gen_runbook_reference.py`; do not edit.
How to use them: [Run a runbook](../how-to/run-a-runbook.md). Why they are so:
[0015](../adr/0015-runbooks.md).

A file is `runbooks/NAME.toml`. `${name}` in a text is the value of a parameter, in a loop `${host}`
is its host, `$${` is a plain `${`. A field whose whole text is one `${name}` gets the parameter's
typed value.
"""
_STEPS = """\
`step` is the word, the other keys are its own. In a loop, a step without `host` is about the
loop's."""
_TRUTH = """\
All conditions of a list must hold. The answer may be "not known", as for a host that does not
answer: that stops the run in `require`, `skip_if` and `verify` alike. A condition without `host` is
about the host of its step.
"""


def reference() -> str:
    """The whole page."""
    parts = [_HEAD, "## The file\n"]
    for title, cls in (("Top level", RunbookTable), ("params.NAME", ParamTable),
                       ("steps", StepTable)):  # fmt: skip
        parts += [f"### {title}\n", *_described(cls)]
    remedies = ", ".join(f"`{r}`" for r in REMEDIES)
    parts += ["## Steps: `do`\n", f"{_STEPS} In `on_failure` may stand {remedies}.\n"]
    for word, cls in STEPS.items():
        parts += [f"### {word}\n", *_described(cls)]
    parts += ["## Conditions: `skip_if`, `require`, `verify`\n", _TRUTH]
    for word, cls in CONDITIONS.items():
        parts += [f"### {word}\n", *_described(cls)]
    return "\n".join(parts)


def _described(cls: type[Any]) -> Iterator[str]:
    words = [" ".join(p.split()) for p in (cls.__doc__ or "").split("\n\n")]
    yield "\n\n".join(words) + "\n"
    schema = msgspec.json.schema(cls)
    root = schema["$defs"][cls.__name__]
    rows = [
        f"| `{name}` | {_type(row, schema['$defs'])} | "
        f"{'yes' if name in root.get('required', ()) else _default(row)} |"
        for name, row in root["properties"].items()
    ]
    yield "\n".join(["| key | what it may be | needed |", "|---|---|---|", *rows]) + "\n"


def _type(row: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    if "anyOf" in row:
        kinds = [_type(r, defs) for r in row["anyOf"] if r.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in row:
        return ", ".join(f"`{v}`" for v in row["enum"] if v is not None)
    if "$ref" in row:
        return "a table, see below"
    if row.get("type") == "array":
        return f"list of {_type(row.get('items', {}), defs)}"
    if row.get("type") == "object":
        return "a table"
    words = {"string": "text", "integer": "whole number", "number": "number",
             "boolean": "true or false"}  # fmt: skip
    return str(row.get("description") or words.get(str(row.get("type")), "value"))


def _default(row: Mapping[str, Any]) -> str:
    value = row.get("default")
    if value in (None, "", [], {}, ()):
        return "no"
    return f"no, `{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> int:
    text = reference()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text else 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"wrote {TARGET}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
