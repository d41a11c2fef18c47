#!/usr/bin/env python3
"""Option tables of SGLang releases for the flag linter, read out of released wheels.

    tools/gen_flag_tables.py WHEEL_OR_FOLDER ...     writes ddops/compat/data/flags/sglang-V.toml

Get the wheels with `pip download --no-deps sglang==V`. Nothing of a wheel is run: options are
found in its syntax trees, as annotated fields (`name: A[type, Arg(...)]`) and as
`parser.add_argument("--name", ...)`. Only option names and fixed choices are kept.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "ddops" / "compat" / "data" / "flags"
#: Below this, the reader has missed a release's way of declaring options.
FEWEST = 250


@dataclass
class Option:
    """`value` is False for switches. `choices` is None where they are made at run time."""

    names: list[str]
    value: bool = True
    choices: list[str] | None = None
    deprecated: bool = field(default=False)


def main(argv: list[str]) -> int:
    if not argv:
        print(__doc__, file=sys.stderr)
        return 2
    OUT.mkdir(exist_ok=True)
    for name in argv:
        path = Path(name)
        if path.suffix != ".whl":
            write(path)
            continue
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as wheel:
            wanted = [n for n in wheel.namelist() if n.endswith(".py") and "/srt/" in n]
            wanted += [n for n in wheel.namelist() if n.endswith("dist-info/METADATA")]
            wheel.extractall(folder, wanted)
            write(Path(folder))
    return 0


def write(folder: Path) -> None:
    """One release's table."""
    (metadata,) = folder.glob("sglang-*.dist-info/METADATA")
    found = re.search(r"^Version: (\S+)", metadata.read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise SystemExit(f"no version in {metadata}")
    version = found.group(1)
    options = collect(folder / "sglang" / "srt")
    if len(options) < FEWEST:
        raise SystemExit(f"{version}: only {len(options)} options found")
    text = [
        "# Made by tools/gen_flag_tables.py from the released wheel: names and choices only.",
        f'version = "{version}"',
        f"options = {json.dumps(sorted(n for o in options for n in o.names))}".replace(
            ", ", ",\n  "
        ).replace("[", "[\n  ", 1)[:-1]
        + ",\n]",
        "switches = "
        + json.dumps(sorted(n for o in options if not o.value for n in o.names)).replace(
            ", ", ",\n  "
        ),
        f"deprecated = {json.dumps(sorted(n for o in options if o.deprecated for n in o.names))}",
        "",
        "[choices]",
    ]
    for option in sorted(options, key=lambda o: o.names[0]):
        if option.choices:
            text.append(f"{json.dumps(option.names[0])} = {json.dumps(option.choices)}")
    target = OUT / f"sglang-{version}.toml"
    target.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(f"{target.name}: {len(options)} options")


def collect(srt: Path) -> list[Option]:
    """Options of the server's command line."""
    files = [srt / "server_args.py", *sorted((srt / "arg_groups").rglob("*.py"))]
    trees = [ast.parse(f.read_text(encoding="utf-8")) for f in files]
    constants = dict(c for t in trees for c in lists(t))
    out: dict[str, Option] = {}
    for tree in trees:
        for option in [*fields(tree, constants), *calls(tree, constants)]:
            out.setdefault(option.names[0], option)
    return list(out.values())


def lists(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Module-level lists of texts: choices are often kept in one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = texts(node.value, {})
            if values:
                yield node.targets[0].id, values


def texts(node: ast.expr | None, constants: dict[str, list[str]]) -> list[str] | None:
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        values = [e.value for e in node.elts if isinstance(e, ast.Constant)]
        if len(values) == len(node.elts) and all(isinstance(v, str) for v in values):
            return sorted(str(v) for v in values)
    return None


def fields(tree: ast.Module, constants: dict[str, list[str]]) -> Iterator[Option]:
    """`name: A[type, "help"]` and `name: A[type, Arg(...)]`."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        note = node.annotation
        if not (isinstance(note, ast.Subscript) and name_of(note.value) in ("A", "Annotated")):
            continue
        parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
        args = {
            k.arg: k.value
            for p in parts
            if isinstance(p, ast.Call) and name_of(p.func).endswith("Arg")
            for k in p.keywords
        }
        if not any(
            isinstance(p, ast.Constant | ast.JoinedStr | ast.Call | ast.BinOp) for p in parts[1:]
        ):
            continue
        if is_true(args.get("no_cli")):
            continue
        own = args.get("cli_name")
        name = str(own.value) if isinstance(own, ast.Constant) else dashed(node.target.id)
        names = [name, *(texts_in_order(args.get("aliases")) or [])]
        switch = "bool" in ast.unparse(parts[0]) and args.get("type_parser") is None
        action = name_of(args["action"]) if "action" in args else ""
        if action.endswith("BooleanOptionalAction"):
            names += [f"--no-{n[2:]}" for n in names]
        literal = literals(parts[0])
        yield Option(
            names, not switch and "StoreTrue" not in action,
            texts(args.get("choices"), constants) or literal, "Deprecated" in action,
        )  # fmt: skip


def literals(node: ast.expr) -> list[str] | None:
    """`Literal["a", "b"]` anywhere in a type."""
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and name_of(part.value).endswith("Literal"):
            elts = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
            values = [e.value for e in elts if isinstance(e, ast.Constant)]
            if all(isinstance(v, str) for v in values):
                return sorted(str(v) for v in values)
    return None


def calls(tree: ast.Module, constants: dict[str, list[str]]) -> Iterator[Option]:
    """`parser.add_argument("--name", ...)`."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and name_of(node.func).endswith("add_argument")):
            continue
        names = [
            a.value
            for a in node.args
            if isinstance(a, ast.Constant) and isinstance(a.value, str) and a.value[:1] == "-"
        ]
        if not names:
            continue
        args = {k.arg: k.value for k in node.keywords}
        action = ast.unparse(args["action"]) if "action" in args else ""
        if "BooleanOptional" in action:
            names += [f"--no-{n[2:]}" for n in names]
        switch = "store_" in action or "StoreTrue" in action or "BooleanOptional" in action
        yield Option(
            names, not switch, texts(args.get("choices"), constants), "Deprecated" in action
        )


def texts_in_order(node: ast.expr | None) -> list[str] | None:
    if isinstance(node, ast.List | ast.Tuple):
        return [str(e.value) for e in node.elts if isinstance(e, ast.Constant)]
    return None


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{name_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
