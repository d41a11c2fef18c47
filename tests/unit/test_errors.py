"""The error tree: exit codes, and what every message says."""

from __future__ import annotations

import pytest

from ddops import errors
from ddops.errors import CommandFailed, ConfigError, DdopsError, ExitCode, GateFailed, Problem

CODES = {
    "DdopsError": 1,
    "CommandFailed": 1,
    "GateFailed": 1,
    "UsageError": 2,
    "ConfigError": 2,
    "UnreachableError": 3,
    "HostKeyError": 3,
    "DeadlineExceeded": 3,
    "TransportLost": 3,
    "RefusedError": 4,
    "RolledBackError": 5,
    "RollbackFailedError": 6,
    "LockHeldError": 7,
    "PendingError": 8,
    "PartialError": 9,
    "Interrupted": 130,
}


def test_every_class_has_its_documented_code() -> None:
    found = {
        name: int(value.exit_code)
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, DdopsError)
    }
    assert found == CODES
    assert set(CODES.values()) | {0} == {int(code) for code in ExitCode}


@pytest.mark.parametrize("name", CODES)
def test_the_docstring_draws_the_tree(name: str) -> None:
    line = next(li for li in (errors.__doc__ or "").splitlines() if f" {name} " in f"{li} ")
    assert f" {CODES[name]} " in f"{line} "


def test_lines_say_what_why_and_next() -> None:
    error = DdopsError("it broke", why="a wire", next="ddops mend")
    assert error.lines() == ["it broke", "why: a wire", "next: ddops mend"]
    assert str(error) == "it broke; why: a wire; next: ddops mend"
    assert DdopsError("it broke").lines() == ["it broke"]


def test_a_failed_command_brings_its_last_words() -> None:
    error = CommandFailed("no", rc=3, stderr="x" * 3000 + "end\n")
    assert (error.rc, error.why[-3:], len(error.why)) == (3, "end", 2000)
    assert CommandFailed("no", rc=3, stderr="y", why="because").why == "because"


def test_a_failed_gate_names_it() -> None:
    assert GateFailed("no", gate="G3").gate == "G3"


def test_all_problems_of_a_file_are_told() -> None:
    problems = [Problem("a.toml", 3, "hosts.x", "bad"), Problem("a.toml", 0, "", "worse")]
    error = ConfigError(problems, next="ddops config schema")
    assert error.lines() == [
        "a.toml:3: hosts.x: bad",
        "a.toml: worse",
        "next: ddops config schema",
    ]
    assert error.problems == tuple(problems)
    assert "a.toml: worse" in str(error)
