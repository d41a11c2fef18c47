"""The repository as the guards see it: tracked files, parsed modules, a fresh interpreter."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked() -> tuple[str, ...]:
    """Files git knows or would add, relative to the root; a checkout without git has none."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    return tuple(sorted({n for n in names if n and (ROOT / n).is_file()}))


@cache
def modules(*packages: str) -> tuple[Path, ...]:
    """Python files of these folders, relative to the root."""
    found = (p.relative_to(ROOT) for name in packages for p in (ROOT / name).rglob("*.py"))
    return tuple(sorted(p for p in found if "__pycache__" not in p.parts))


@cache
def tree(path: Path) -> ast.Module:
    """The parsed module at a path relative to the root."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """Every call below a node."""
    return (n for n in ast.walk(node) if isinstance(n, ast.Call))


def name_of(node: ast.expr) -> str:
    """`a.b.c` of a name or an attribute chain; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = name_of(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return ""


def imports(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every absolute import, wherever it stands."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def python(
    *words: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with a plain environment: nothing of the developer's own settings."""
    base = {"PATH": os.environ["PATH"], "HOME": str(cwd or ROOT), "LANG": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd or ROOT,
        env={**base, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
