"""What help, version and completion load: little. How long they take is measured in bench/.

To see it fail: write `import jinja2` at the top of ddops/cli/root.py (heavy modules), or
`from ddops.cli import deploy` there (modules counted). A module is counted when the import
system has loaded it, whoever asked for it.
"""

from __future__ import annotations

import json

import pytest

from tests.guards.source import python

#: Each of them costs tens of milliseconds, and none is needed before a command runs.
HEAVY = (
    "asyncio", "fabric", "invoke", "paramiko", "cryptography", "jinja2", "sqlite3", "sqlite_utils",
    "textual", "msgspec", "ssl", "ddops.inventory", "ddops.transport", "ddops.ledger",
    "ddops.deploy", "ddops.lab.control",
)  # fmt: skip
#: Modules beyond what an empty interpreter has: 83 were seen with Python 3.11 and click 8.5.
BUDGET = 130
ROOT_HELP = (["--help"], ["--version"], ["-h"])
#: A command's own help may make the App, and with it read settings (msgspec), but not more.
COMMAND_HELP = (["deploy", "--help"], ["lab", "up", "--help"], ["config", "--help"])

_PROBE = """
import io, json, sys
before = set(sys.modules)
from ddops.cli.root import run
out, sys.stdout = sys.stdout, io.StringIO()
code = run(sys.argv[1:])
print(json.dumps([code, sorted(set(sys.modules) - before)]), file=out)
"""


def loaded(*argv: str, env: dict[str, str] | None = None) -> list[str]:
    done = python("-c", _PROBE, *argv, env=env)
    assert done.returncode == 0, done.stderr
    code, names = json.loads(done.stdout)
    assert code == 0
    return [str(n) for n in names]


def heavy(names: list[str], allowed: tuple[str, ...] = ()) -> list[str]:
    return [
        n for n in names if any(n == h or n.startswith(f"{h}.") for h in HEAVY if h not in allowed)
    ]


@pytest.mark.parametrize("argv", ROOT_HELP, ids=" ".join)
def test_help_and_version_stay_lean(argv: list[str]) -> None:
    names = loaded(*argv)
    assert not heavy(names)
    assert len(names) <= BUDGET, f"{len(names)} modules: {names}"
    ours = [n for n in names if n.startswith("ddops")]
    wanted = ("ddops.cli.root", "ddops.cli.streams")
    assert not [n for n in ours if n.startswith("ddops.cli.") and n not in wanted], ours


@pytest.mark.parametrize("argv", COMMAND_HELP, ids=" ".join)
def test_a_commands_help_loads_no_host_and_no_ledger(argv: list[str]) -> None:
    assert not heavy(loaded(*argv), allowed=("msgspec",))


@pytest.mark.parametrize("shell", ("bash", "zsh", "fish"))
def test_the_completion_script_is_cheap_to_print(shell: str) -> None:
    assert not heavy(loaded("completion", shell), allowed=("msgspec", "asyncio"))


COMPLETE = """
import json, os, sys
before = set(sys.modules)
from ddops.cli import main
sys.argv = ["ddops"]
try:
    main()
except SystemExit as stop:
    code = stop.code
print(json.dumps([code, sorted(set(sys.modules) - before)]), file=sys.stderr)
"""


def complete(words: str) -> tuple[list[str], list[str]]:
    """What bash would be offered for the last word, and the modules that took."""
    env = {
        "_DDOPS_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = python("-c", COMPLETE, env=env)
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()], names


def test_completing_a_command_loads_nothing_heavy() -> None:
    offered, names = complete("ddops pro")
    assert offered == ["probe", "provision"]
    assert not heavy(names, allowed=("msgspec",))


def test_completing_a_target_reads_local_files_and_no_transport() -> None:
    offered, names = complete("ddops deploy b3")
    assert "b300" in offered
    assert not heavy(names, allowed=("msgspec", "ddops.inventory"))
