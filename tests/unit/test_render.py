"""Templates: strict, sandboxed, looked up, and closed to values that would start a new line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from jinja2.exceptions import SecurityError

from ddops.errors import ConfigError
from ddops.render import render, render_text


def test_values_are_filled_in() -> None:
    assert render_text("a={{ a }}\n", {"a": 1}) == "a=1\n"


def test_an_unknown_name_is_an_error_that_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text("one\n{{ nobody }}\n")
    with pytest.raises(ConfigError, match=r"t\.j2:2: template: 'nobody' is undefined"):
        render(lambda name: tmp_path / Path(name).name, "t.j2", {})


def test_a_broken_template_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text("one\ntwo\n{% if %}\n")
    with pytest.raises(ConfigError, match=r"t\.j2:3"):
        render(lambda name: tmp_path / Path(name).name, "t.j2", {})


@pytest.mark.parametrize("value", ["a\nExecStart=/bin/evil", "a\rb", "a\0b"])
def test_a_value_cannot_begin_a_new_directive(value: str) -> None:
    with pytest.raises(UndefinedError, match="line break"):
        render_text("Description={{ v }}\n", {"v": value})


def test_a_template_cannot_reach_out_of_its_values() -> None:
    with pytest.raises(SecurityError):
        render_text("{{ v.__class__.__mro__ }}", {"v": "x"})
    with pytest.raises(SecurityError):
        render_text("{{ v.append(1) }}", {"v": []})


@pytest.mark.parametrize("value", ["a b", "it's", "$HOME", "`id`", "--x"])
def test_shq_gives_one_word_of_a_shell(value: str) -> None:
    assert shlex.split(render_text("echo {{ v | shq }}", {"v": value})) == ["echo", value]
