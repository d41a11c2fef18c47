"""Files and words of people reach the program in one place each.

To see it fail: write `path.read_text()` into ddops/tree/series.py, or take `refuse_empty` out of
ddops/cli/root.py.
"""

from __future__ import annotations

import click
import pytest

from ddops.cli import root as root_module
from tests.guards.source import calls, modules, tree
from tests.guards.test_docs import leaves

#: Modules that read what no person wrote, and why theirs need not go through `ddops.config.files`.
OWN = {
    "ddops/bench/coding_tasks.py": "the shipped tasks",
    "ddops/bench/prompts.py": "reads bytes, with errors of its own",
    "ddops/bench/target.py": "prompts of a suite, read with it",
    "ddops/compat/tables.py": "the package's own data",
    "ddops/lab/boot.py": "the lab's own files, /proc",
    "ddops/lab/booted.py": "/proc",
    "ddops/lab/control.py": "the lab's own files",
    "ddops/lab/holder.py": "the lab's own files",
    "ddops/lab/host.py": "the lab's own files",
    "ddops/lab/needs.py": "/proc",
    "ddops/lab/processes.py": "/proc",
    "ddops/lab/slurm.py": "the lab's own files",
    "ddops/lock.py": "/proc",
    "ddops/provision/envs.py": "files that were copied together for a digest",
    "ddops/restore/tree.py": "a snapshot's own objects",
    "ddops/transport/files.py": "a folder that is sent, byte by byte",
    "ddops/transport/hostkeys.py": "ssh's own files, read as ssh does",
}
TYPES = (click.types.StringParamType, click.Path)


def readers() -> set[str]:
    found = set()
    for path in modules("ddops"):
        names = {c.func.attr for c in calls(tree(path)) if hasattr(c.func, "attr")}
        if names & {"read_text", "read_bytes"} and "hostside" not in path.parts:
            found.add(str(path))
    return found


def test_files_of_people_are_read_by_one_reader() -> None:
    assert "ddops/config/files.py" not in readers()
    assert readers() <= set(OWN), "ddops.config.files.read_text, or a place in OWN with its reason"


def options() -> list[tuple[str, click.Option]]:
    return [
        (path, p)
        for path, command in leaves()
        for p in command.params
        if isinstance(p, click.Option)
    ]


TEXTS = [(p, o.opts[-1]) for p, o in options() if isinstance(o.type, TYPES)]


def test_there_are_options_of_text() -> None:
    assert ("ddops deploy", "--profile") in TEXTS
    assert len(TEXTS) > 40


@pytest.mark.parametrize(("path", "option"), TEXTS, ids=lambda x: str(x))
def test_an_empty_text_is_never_taken_for_not_given(
    path: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root_module.run([*path.split()[1:], option, ""]) == 2
    assert f"{option}': it is empty" in capsys.readouterr().err.replace(" / '-o", "")


def test_every_whole_number_has_an_upper_bound() -> None:
    """A Python number has none, and SQLite takes 64 bits."""
    params = [(path, p) for path, command in leaves() for p in command.params]
    open_ended = {
        f"{path} {p.name}"
        for path, p in params
        if isinstance(p.type, click.types.IntParamType)
        and not (isinstance(p, click.Option) and p.count)
        and getattr(p.type, "max", None) is None
    }
    assert open_ended == {"ddops lab up hosts"}, "a lab judges its own size; else ddops.cli.given"
