#!/usr/bin/env python3
"""Writes docs/reference/checks.md from the checks themselves.

.venv/bin/python tools/gen_checks_reference.py            # write it
.venv/bin/python tools/gen_checks_reference.py --check    # exit 1 when it is stale
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from ddops.compat import Check, beside, checks, tables

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "checks.md"
_WORDS = {"B": "blocker", "E": "error", "W": "warning", "I": "information"}
_HEAD = """\
# Checks

Made from the code and its data by `tools/gen_checks_reference.py`; do not edit. One check alone:
`ddops check --explain DRV-03`. How to add one: [add-a-check.md](../how-to/add-a-check.md). What the
chain is: [cuda-chain.md](../explanation/cuda-chain.md).

A failed blocker or error refuses the host (exit 4), and so does UNKNOWN of a check marked
*required*. What needs a failed blocker is SKIP and names it. UNKNOWN is never PASS.
"""

_BESIDE = """\
## beside the chain

Told by `ddops check` alone: of each router of the host, and of the judgement itself. No provision
and no deploy waits for them, so they cannot be waived: a router that does not come up is found by
its own deploy.
"""


def section(check: Check) -> str:
    words = [_WORDS[check.severity]]
    words += ["required"] if check.required else []
    words += [f"only on {' and '.join(check.classes)} hosts"] if check.classes else []
    words += [f"needs {', '.join(check.needs)}"] if check.needs else []
    why = f"\n{check.why}\n" if check.why != check.title else ""
    sources = "\n".join(f"- {s}" for s in check.sources)
    return (
        f"### {check.id}: {check.title}\n\n*{'; '.join(words)}*\n{why}\n"
        f"- looks at: {check.probe}\n- passes when: {check.rule}\n- mend: {check.mend}\n"
        + (f"\nSources:\n\n{sources}\n" if sources else "")
    )


def table_rows() -> str:
    rows = [(n, tables.table(n)) for n in tables.NAMES if n not in ("checks", "beside")]
    body = "\n".join(f"| `{n}.toml` | {t.as_of} | {t.end} | {len(t.rows)} |" for n, t in rows)
    flags = tables.flag_versions()
    return (
        "## Data tables\n\n| table | as of | ends at | rows |\n|---|---|---|---|\n" + body
        + f"\n| `flags/` | released wheels | {flags[-1]} | {len(flags)} releases |\n"
    )  # fmt: skip


def reference() -> str:
    parts = [_HEAD]
    for group, members in groupby(sorted(checks(), key=lambda c: c.group), key=lambda c: c.group):
        parts.append(f"## {group}\n")
        parts += [section(c) for c in members]
    parts += [_BESIDE, *map(section, beside())]
    return "\n".join([*parts, table_rows()])


def main() -> int:
    text = reference()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text else 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"wrote {TARGET}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
