"""The documents say what the program is: commands, options, exit codes, places.

To see it fail: rename an option in ddops/cli (the reference is stale, and pages that use it are
named), or add a member to `errors.ExitCode`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ddops.cli.check import HEADER
from ddops.cli.root import COMMANDS, root
from ddops.compat import beside, checks
from ddops.errors import DdopsError, ExitCode
from ddops.layout import HostLayout
from tests.guards.commandline import ANY, fault, found_in
from tests.guards.source import ROOT, modules, python, tracked, tree

#: Commands whose help needs no example: they take no argument that has to be explained.
PLAIN = ("ddops host list", "ddops config paths", "ddops lab down", "ddops lab status")


def pages() -> list[str]:
    return [n for n in tracked() if n.endswith(".md") and (n.startswith("docs/") or "/" not in n)]


def leaves(command: click.Command = root, path: str = "ddops") -> list[tuple[str, click.Command]]:
    """Every command that does something, with its full name."""
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    return [
        leaf
        for name in command.list_commands(context)
        if (found := command.get_command(context, name)) is not None
        for leaf in leaves(found, f"{path} {name}")
    ]


def test_the_reference_is_fresh() -> None:
    done = python("tools/gen_cli_reference.py", "--check", env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, "stale: .venv/bin/python tools/gen_cli_reference.py"


def test_the_reference_has_every_command() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    assert not [path for path, _ in leaves() if f"# {path}\n" not in text]


@pytest.mark.parametrize(("path", "command"), leaves(), ids=[p for p, _ in leaves()])
def test_every_command_helps(path: str, command: click.Command) -> None:
    text = command.help or ""
    assert len(text.split()) >= 4
    assert (path in PLAIN) is (path not in text), "an example, or a place in PLAIN; not both"
    unexplained = [
        p.name for p in command.params if isinstance(p, click.Option) and not (p.help or "").strip()
    ]
    assert not unexplained


def test_the_root_help_says_what_the_command_says() -> None:
    """COMMANDS repeats a line for each command, so that help need not load it."""
    for name, (_, line) in COMMANDS.items():
        assert line.endswith((".", "?"))
        assert len(line) <= 60, name


def test_examples_in_help_are_right() -> None:
    wrong = {}
    for path, command in leaves():
        for line in (command.help or "").splitlines():
            text = line.strip()
            if text.startswith("ddops ") and (why := fault(text.split(" > ")[0])):
                wrong[f"{path}: {text}"] = why
    assert not wrong


def test_commands_in_documents_are_right() -> None:
    lines = {(n, li) for n in pages() for li in found_in((ROOT / n).read_text(encoding="utf-8"))}
    assert len(lines) > 20, "the pages hold command lines"
    wrong = {
        f"{name}: {line}": why
        for name, line in sorted(lines)
        # Inline code may name a command without its arguments; an option that is wrong is wrong.
        if name != "docs/reference/cli.md" and (why := fault(line, whole=False))
    }
    assert not wrong


def test_a_wrong_command_in_a_document_is_found() -> None:
    text = "Type `ddops dploy lab`.\n```sh\nddops lab up --gpu b400 && ddops status\n```\n"
    lines = list(found_in(text))
    assert lines == ["ddops lab up --gpu b400", "ddops status", "ddops dploy lab"]
    assert [bool(fault(line)) for line in lines] == [True, False, True]


#: Where a command of ours begins in a hint: at its start, or behind words and a colon.
_OURS = re.compile(r"(?:^|: )(ddops .+)")
#: A hint may go on in words: behind a comma, or behind the last option.
_IN_WORDS = re.compile(r"[,;(]|\s{2,}|\s#")
#: Programs of others; what follows on their line are their options.
_FOREIGN = re.compile(r"\b(?:pip|aiperf|nvidia-smi|squeue|restic)\b(?:(?!, |;).)*")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
#: Modules that no command is written in, and the commands whose users read their hints.
ASKED_BY = {
    "ddops/ledger/export.py": "ddops ledger export",
    "ddops/ledger/retract.py": "ddops ledger retract",
    "ddops/report/bundle.py": "ddops bundle",
    "ddops/restore/release.py": "ddops restore",
    "ddops/runbook/bind.py": "ddops runbook run",
}


def nexts() -> list[tuple[Path, int, str]]:
    """Place and text of every `next=` in the code."""
    return [
        (path, node.value.lineno, text)
        for path in modules("ddops")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.keyword) and node.arg == "next"
        for text in _texts(node.value)
    ]


def hints() -> list[tuple[str, str]]:
    """Place and text of every command of ours that a `next=` tells people to type."""
    found = ((path, line, _OURS.search(text)) for path, line, text in nexts())
    return [(f"{path}:{line}", match.group(1)) for path, line, match in found if match]


def bare_options(text: str) -> list[str]:
    """The options that a hint names without a command: those of the command at hand."""
    ours = _OURS.search(text)
    if ours:
        text = text[: ours.start(1)] + text[ours.start(1) + len(_line(ours.group(1))) :]
    return _OPTION.findall(_FOREIGN.sub("", text))


def _line(hint: str) -> str:
    return _IN_WORDS.split(hint)[0]


def lacking(path: Path, options: list[str]) -> list[str]:
    """Commands that can show a hint of this module, and take none of the options it names."""
    every = dict(leaves())
    name = path.as_posix()
    if name == "ddops/inventory/targets.py":  # a choice of hosts by TARGET ... and its options
        asked = {c for c, made in every.items() if any(p.name == "exclude" for p in made.params)}
    elif name == "ddops/cli/options.py":  # `confirm`, called by commands and by their helpers
        asking = [p for p in modules("ddops/cli") if "confirm(" in _source(p)]
        having = {m for m in asking if any(_module(c) == m.as_posix() for c in every.values())}
        return [line for m in sorted(having) for line in lacking(m, options)]
    elif name in ASKED_BY:
        asked = {ASKED_BY[name]}
    else:
        asked = {c for c, made in every.items() if _module(made) == name}
        # Several commands in one module: one of them at least knows the option.
        if any(set(options) <= _options(every[c]) for c in asked):
            return []
    return sorted(c for c in asked if not set(options) <= _options(every[c])) or (
        [] if asked else [f"{name}: a library cannot know the command at hand; see ASKED_BY"]
    )


def _options(command: click.Command) -> set[str]:
    return {o for p in command.params for o in (*p.opts, *p.secondary_opts)}


def _module(command: click.Command) -> str:
    return getattr(command.callback, "__module__", "").replace(".", "/") + ".py"


def _source(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _texts(node: ast.expr) -> list[str]:
    """The texts an expression may come to; a value put into one stands as `ANY`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        parts = [str(v.value) if isinstance(v, ast.Constant) else ANY for v in node.values]
        return ["".join(parts)]
    if isinstance(node, ast.IfExp):
        return _texts(node.body) + _texts(node.orelse)
    return []


def test_what_errors_tell_people_to_type_is_right() -> None:
    found = hints()
    assert len(found) > 20
    wrong = {}
    for place, text in found:
        line = _line(text).strip().replace("'", "")
        if why := fault(line, whole="--project" not in line):
            wrong[f"{place}: {text}"] = why
    assert not wrong


def test_an_option_that_an_error_names_is_one_of_the_command_at_hand() -> None:
    found = [(p, n, t, named) for p, n, t in nexts() if (named := bare_options(t))]
    assert len(found) > 10
    wrong = {f"{p}:{n}: {t}": why for p, n, t, named in found if (why := lacking(p, named))}
    assert not wrong


def test_an_option_of_another_command_is_found() -> None:
    assert bare_options("wait for it (--lock-wait SECONDS)") == ["--lock-wait"]
    assert bare_options("see: ddops lock release ANY --stale, or take --out") == ["--out"]
    assert bare_options("pip install --force-reinstall 'x==1'") == []
    assert lacking(Path("ddops/lock.py"), ["--lock-wait"])
    assert lacking(Path("ddops/cli/bench.py"), ["--lock-wait"])
    assert not lacking(Path("ddops/cli/bench.py"), ["--levels"])


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    rows = {int(m) for m in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert rows == {int(code) for code in ExitCode}
    for code in ExitCode:
        assert re.search(rf"\b{int(code)} \w", root.epilog or ""), f"{code!r} in ddops --help"


def test_every_error_class_is_in_the_table_of_exit_codes() -> None:
    text = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    todo, missing = [DdopsError], []
    while todo:
        one = todo.pop()
        todo += [c for c in one.__subclasses__() if c.__module__ == "ddops.errors"]
        row = re.search(rf"^\| (\d+) \|.*`{one.__name__}`", text, re.MULTILINE)
        if row is None or int(row.group(1)) != int(one.exit_code):
            missing.append(one.__name__)
    assert not missing


def test_every_place_on_a_host_is_documented() -> None:
    text = (ROOT / "docs/reference/layout-on-a-host.md").read_text(encoding="utf-8")
    layout = HostLayout("/opt/ddops")
    service = layout.service("k26")
    paths = [
        layout.state, layout.hostside, layout.lib, layout.lock, layout.journal, layout.models,
        layout.supervisor_conf, service.current, service.committed, service.op_id, service.log,
        service.launch_record, service.program, service.releases,
    ]  # fmt: skip
    missing = [p for p in paths if not re.search(rf"[`/]{re.escape(Path(p).name)}[`/]", text)]
    assert not missing


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for name in pages():
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not ((ROOT / name).parent / target).exists():
                broken.append(f"{name}: {target}")
    assert not broken


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/.-]+\.md", text))
    have = {n.removeprefix("docs/") for n in pages() if n.startswith("docs/")}
    assert listed == have


@pytest.mark.parametrize("name", ["docs", "README.md", "CHANGELOG.md"])
def test_documents_name_no_outsider(name: str) -> None:
    """No numbers of issues, no talk of sessions: a reader has neither."""
    root_path: Path = ROOT / name
    files = sorted(root_path.rglob("*.md")) if root_path.is_dir() else [root_path]
    talk = re.compile(r"(?<![\w/])#\d+\b|\bissue \d+|\bthis session\b|\bAI agent\b", re.IGNORECASE)
    found = {str(f): m.group(0) for f in files if (m := talk.search(f.read_text("utf-8")))}
    assert not found


def test_the_page_of_faults_is_fresh_and_names_real_tests() -> None:
    tool = ROOT / "tools" / "gen_faults_reference.py"
    done = subprocess.run(
        [sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr or "stale: tools/gen_faults_reference.py"


#: Words of the form of a check's id that are none; GPU-09 is the one that a page lets you add.
NO_CHECKS = {
    "AEON-7", "GLM-5", "GPU-09", "MATH-500", "NAME-VERSION", "NVIDIA-B300", "SHA-1", "SHA-256",
    "TRT-LLM", "UTF-8",
}  # fmt: skip


def test_checks_that_pages_name_are_there() -> None:
    known = {c.id for c in (*checks(), *beside())}
    assert {"ROUTER-ENV", "SIMULATED", "WAIVER"} <= known
    word = re.compile(r"(?<![\w-])[A-Z]+-[A-Z0-9]+(?![\w-])")
    unknown = {
        f"{name}: {found}"
        for name in pages()
        for found in word.findall((ROOT / name).read_text(encoding="utf-8"))
        if found not in known | NO_CHECKS
    }
    assert not unknown


def test_pages_show_the_table_of_checks_as_it_is() -> None:
    shown = {
        f"{name}: {line}"
        for name in pages()
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if {"VERDICT", "CHECK"} <= set(words := line.split())
        and tuple(words) not in (HEADER, HEADER[1:])
    }
    assert not shown
