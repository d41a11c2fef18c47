"""Shapes that are not written here: shells, joined commands, swallowed errors, long functions.

Each rule is a function of a parsed module, and each is shown a bad sample that it must refuse
(`test_each_rule_can_fail`). To see one fail on the real code: write the sample into ddops/plan.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.guards.source import ROOT, calls, modules, name_of, tree

PACKAGES = ("ddops", "sglang_ddtree")
MAX_MODULE, MAX_FUNCTION = 500, 60

#: Line and what is wrong there.
Finding = tuple[int, str]
Rule = Callable[[ast.Module], Iterator[Finding]]
Function = (ast.FunctionDef, ast.AsyncFunctionDef)

_NEVER_CALLED = (
    "eval", "exec", "compile", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "pickle.loads", "pickle.load", "marshal.loads", "yaml.load",
)  # fmt: skip


def no_shell(module: ast.Module) -> Iterator[Finding]:
    """`shell=True`, and calls that run text."""
    for call in calls(module):
        name = name_of(call.func)
        if name in _NEVER_CALLED:
            yield call.lineno, f"calls {name}"
        for keyword in call.keywords:
            if keyword.arg == "shell" and not _is(keyword.value, False):
                yield call.lineno, "shell=True"


def no_swallowed_errors(module: ast.Module) -> Iterator[Finding]:
    """A bare `except`; `except Exception` or wider whose body does nothing."""
    for node in ast.walk(module):
        if isinstance(node, ast.ExceptHandler):
            wide = {name_of(t) for t in _types(node.type)} & {"Exception", "BaseException"}
            idle = all(isinstance(s, ast.Pass | ast.Continue) or _is_ellipsis(s) for s in node.body)
            if node.type is None:
                yield node.lineno, "bare except"
            elif wide and idle:
                yield node.lineno, "except Exception: pass"
        if isinstance(node, ast.Call) and name_of(node.func).endswith("suppress"):
            names = {name_of(a) for a in node.args}
            if names & {"Exception", "BaseException"}:
                yield node.lineno, "suppress(Exception)"


def no_text_for_a_transport(module: ast.Module) -> Iterator[Finding]:
    """`transport.run` takes a `Cmd`: text there was joined by hand."""
    for call in calls(module):
        name = name_of(call.func)
        receiver = name.rpartition(".")[0].rpartition(".")[2].lstrip("_")
        if name.endswith(".run") and receiver == "transport" and call.args and _text(call.args[0]):
            yield call.lineno, "a transport is given text"


def no_values_in_scripts(module: ast.Module) -> Iterator[Finding]:
    """`sh` and `python` take a fixed script; values are arguments, never part of its text."""
    fixed = {
        t.id
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_constant(node.value)
        for t in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(t, ast.Name)
    }
    imported = {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for call in calls(module):
        name = name_of(call.func)
        if name in ("sh", "command.sh") and call.args:
            script = call.args[0]
            known = name_of(script)
            constant = _is_constant(script) or known in fixed
            # `scripts.WRITE` and an imported NAME in capitals: constants of another module.
            constant = constant or (known.rpartition(".")[2].isupper() and _root(known) in imported)
            if not constant:
                yield call.lineno, "the script of sh() is not a constant"
        if name == "cmd" and [_constant(a) for a in call.args[:2]] in (
            ["sh", "-c"],
            ["bash", "-c"],
        ):
            yield call.lineno, "a shell through cmd(); use sh()"


def no_joined_words(module: ast.Module) -> Iterator[Finding]:
    """Shell text is made in `Cmd.render` alone: nobody else quotes words and joins them."""
    for call in calls(module):
        if name_of(call.func) in ("shlex.quote", "shlex.join", "quote_plus", "pipes.quote"):
            yield call.lineno, f"calls {name_of(call.func)}"


def short_functions(module: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(module):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines >= MAX_FUNCTION:
                yield node.lineno, f"{node.name} has {lines} lines"


def _types(node: ast.expr | None) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node] if node is not None else []


def _is(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is(node.value, ...)


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _is_constant(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _text(node: ast.expr) -> bool:
    """Whether an expression is text for sure: a literal, an f-string, joined or formatted text."""
    if isinstance(node, ast.BinOp):
        return _text(node.left) or _text(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("format", "join", "render") and (
            node.func.attr == "render" or _text(node.func.value)
        )
    return isinstance(node, ast.JoinedStr) or _is_constant(node)


def _root(name: str) -> str:
    return name.partition(".")[0]


@dataclass(frozen=True)
class Guard:
    """A rule, samples it must refuse, and files where it does not hold on purpose, and why."""

    rule: Rule
    samples: tuple[str, ...]
    exceptions: Mapping[str, str] = field(default_factory=dict)


GUARDS = {
    "no shell": Guard(
        no_shell,
        (
            "import subprocess\nsubprocess.run('ls', shell=True)",
            "eval('1')",
            "exec('x = 1')",
            "import os\nos.system('ls')",
        ),
        {"ddops/hostside/coding_case.py": "runs a model's program, in coding_box's sandbox"},
    ),
    "no swallowed error": Guard(
        no_swallowed_errors,
        (
            "try:\n    f()\nexcept:\n    raise",
            "try:\n    f()\nexcept (OSError, Exception):\n    pass",
            "with suppress(Exception):\n    f()",
        ),
        {
            "ddops/transport/ssh_channel.py": "closing a link that goes down: paramiko raises"
            " whatever ended its thread, and the command's status tells what counts",
            "ddops/transport/ssh_link.py": "the same, when a link is broken off",
        },
    ),
    "no text for a transport": Guard(
        no_text_for_a_transport,
        (
            "self._transport.run(f'ls {path}')",
            "transport.run('ls ' + path)",
            "self.side.transport.run(' '.join(words))",
            "transport.run(command.render())",
        ),
    ),
    "no values in scripts": Guard(
        no_values_in_scripts,
        ("sh(f'ls {path}')", "sh('ls ' + path)", "sh(script)", "cmd('sh', '-c', text)"),
        {"ddops/command.py": "where sh() is made"},
    ),
    "no joined words": Guard(
        no_joined_words,
        ("import shlex\nshlex.join(words)", "import shlex\nshlex.quote(word)"),
        {
            "ddops/command.py": "Cmd.render, the one place",
            "ddops/render.py": "the templates' `shq` filter, for the login wrapper of a lab host",
            "ddops/lab/host.py": "the environment file that the login wrapper reads",
            "ddops/cli/deploy.py": "shows a command line to people; it is never run",
            "ddops/config/secrets.py": "a command for people to type, in a message",
            "ddops/snapshot/resticio.py": "restic's option sftp.command, which restic splits again",
        },
    ),
    "short functions": Guard(short_functions, ("def f():\n" + "    pass\n" * MAX_FUNCTION,)),
}


@pytest.mark.parametrize(
    ("name", "sample"), [(name, sample) for name, g in GUARDS.items() for sample in g.samples]
)
def test_each_rule_can_fail(name: str, sample: str) -> None:
    assert list(GUARDS[name].rule(ast.parse(sample)))


@pytest.mark.parametrize("name", GUARDS)
def test_the_code_keeps_each_rule(name: str) -> None:
    guard = GUARDS[name]
    found = {str(p): list(guard.rule(tree(p))) for p in modules(*PACKAGES)}
    wrong = [
        f"{path}:{line}: {what}"
        for path, hits in found.items()
        if path not in guard.exceptions
        for line, what in hits
    ]
    assert not wrong
    assert not [p for p in guard.exceptions if not found.get(p)], "exceptions nobody needs"


def test_rules_let_good_code_pass() -> None:
    good = """
_LOOK = "readlink $1"
def f(transport, path):
    transport.run(sh(_LOOK, path))
    transport.run(sh(scripts.READ, path))
    transport.run(cmd("ls", path))
    subprocess.run(["ls", path], check=False)
    try:
        g()
    except OSError:
        pass
from ddops.transport import scripts
"""
    module = ast.parse(good)
    assert not [hit for guard in GUARDS.values() for hit in guard.rule(module)]


def test_modules_stay_small() -> None:
    sizes = {str(p): (ROOT / p).read_text(encoding="utf-8").count("\n") for p in modules(*PACKAGES)}
    assert not {p: n for p, n in sizes.items() if n >= MAX_MODULE}


def test_every_module_and_public_class_says_what_it_is() -> None:
    missing = []
    for path in modules(*PACKAGES):
        module = tree(path)
        if not ast.get_docstring(module):
            missing.append(str(path))
        missing += [
            f"{path}: {node.name}"
            for node in module.body
            if isinstance(node, ast.ClassDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
            and "hostside" not in path.parts
        ]
    assert not missing
