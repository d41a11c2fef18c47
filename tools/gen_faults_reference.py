#!/usr/bin/env python3
"""Writes docs/reference/faults.md from tests/faults.toml, and sees that every named test is there.

.venv/bin/python tools/gen_faults_reference.py            # write it
.venv/bin/python tools/gen_faults_reference.py --check    # exit 1 when it is stale
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "reference" / "faults.md"
_HEAD = """\
# Faults and what comes of them

Made from `tests/faults.toml` by `tools/gen_faults_reference.py`; do not edit. Each row is injected
by the tests it names. Where the fault is real says the folder: `unit` works on made-up input,
`contract` and `lab` on a real sshd and supervisor with the stand-in engine, `systemd` on hosts that
really boot, `slurm` on a real Slurm of one machine, `engine` on the real SGLang on a CPU. No row
was tried on a GPU host; a row whose fault only a GPU host has says so.

| fault | outcome | tests |
|---|---|---|
"""


def rows() -> list[dict[str, object]]:
    return list(tomllib.loads((ROOT / "tests/faults.toml").read_text(encoding="utf-8"))["row"])


def missing() -> list[str]:
    """Tests that a row names and nobody wrote, or wrote under another name."""
    named = {str(t) for row in rows() for t in row["tests"]}  # type: ignore[attr-defined]
    out = []
    for name in sorted(named):
        path, _, function = name.partition("::")
        file = ROOT / path
        tree = ast.parse(file.read_text(encoding="utf-8")) if file.exists() else ast.Module([], [])
        found = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        if function not in found:
            out.append(name)
    return out


def page() -> str:
    lines = []
    for row in rows():
        tests = ", ".join(f"`{t}`" for t in row["tests"])  # type: ignore[attr-defined]
        untried = " (a fault of GPU hosts: not tried on one)" if row.get("gpu") else ""
        cells = (str(row["fault"]), str(row["outcome"]) + untried, tests)
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n")
    return _HEAD + "".join(lines)


def main() -> int:
    gone = missing()
    if gone:
        print("no such test:", *gone, sep="\n  ", file=sys.stderr)
        return 1
    if "--check" in sys.argv[1:]:
        return int(not TARGET.exists() or TARGET.read_text(encoding="utf-8") != page())
    TARGET.write_text(page(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
