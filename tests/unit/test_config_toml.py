"""Files people write: whatever is wrong with one is a ConfigError that names its place."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddops.config.locate import KeyPath, locate
from ddops.config.toml import MAX_BYTES, dotted, parse_toml, read_toml
from ddops.errors import ConfigError


def message(path: Path, base: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read_toml(path, base=base)
    return caught.value.lines()[0]


NESTED = """\
# a comment with [brackets] and "quotes"
top = 1
dotted.key.deep = [
  "a]b",   # ] in a string and in a comment
  '''
[not.a.table]
''',
  { inline = 1, more = [1, 2] },
]
"quo.ted" = \"\"\"
[nor.this]
x = 1
\"\"\"

[table]
a = 1
  [table.'sub "x"'] # indented
  b = { c = { d = 2 } }

[[list]]
n = 1
[list.inner]
m = 2
[[list]]

n = 3
[[list.again]]
o = 4
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("dotted",), 3),
        (("dotted", "key", "deep"), 3),
        (("dotted", "key", "deep", 2, "inline"), 3),
        (("quo.ted",), 10),
        (("table",), 15),
        (("table", "a"), 16),
        (("table", 'sub "x"'), 17),
        (("table", 'sub "x"', "b"), 18),
        (("table", 'sub "x"', "b", "c", "d"), 18),
        (("list",), 20),
        (("list", 0, "n"), 21),
        (("list", 0, "inner"), 22),
        (("list", 0, "inner", "m"), 23),
        (("list", 1), 24),
        (("list", 1, "n"), 26),
        (("list", 1, "again", 0, "o"), 28),
        (("table", "absent"), 15),
        (("nowhere",), 1),
    ],
)
def test_a_key_is_found_on_its_line(path: KeyPath, line: int) -> None:
    tomllib.loads(NESTED)
    assert locate(NESTED).of(path) == line


@pytest.mark.parametrize("ending", ['"""""', '""""', '"""'])
def test_a_text_may_end_in_quotes_of_its_own(ending: str) -> None:
    text = f'a = """x\n{ending}\nb = 1\n'
    assert locate(text).of(("b",)) == 3 and tomllib.loads(text)["b"] == 1


def test_a_path_is_shown_as_it_would_be_written() -> None:
    assert dotted(("hosts", "b300", "groups", 1)) == "hosts.b300.groups[1]"
    assert dotted(("launch", "a b")) == 'launch."a b"'


def test_a_syntax_fault_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text("[hosts.a]\nssh = \n")
    assert message(file, tmp_path) == "hosts.toml:2: not valid TOML: invalid value"


def test_a_file_that_ends_too_early_names_its_last_line(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('a = 1\nb = """\nx\n')
    assert message(file, tmp_path).startswith("a.toml:3: not valid TOML: ")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    for raw, said in (
        (b"a = 1\nb = '\xff'\n", "a.toml:2: not UTF-8 text"),
        (b"\0\1\2", "a.toml: a binary file, expected TOML text"),
        ("\ufeffa = 1".encode(), "a.toml:1: starts with a byte order mark"),
        (b"#" * (MAX_BYTES + 1), "a.toml: larger than 1 MiB; this is not a file of ours"),
        (b"a = " + b"[" * 5000, "a.toml: lists or tables are nested too deeply"),
        (b"a = " + b"9" * 5000, "a.toml: not valid TOML: exceeds the limit"),
        (b"x = 1\n" + b"a." * 200 + b"a = 1", "a.toml:2: more than 128 words joined by dots"),
        (b"x = {" + b"'a' . " * 200 + b"a = 1}", "a.toml:1: more than 128 words joined by dots"),
    ):
        file.write_bytes(raw)
        assert message(file, tmp_path).startswith(said)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "dir.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    assert message(tmp_path / "dir.toml", tmp_path) == (
        "dir.toml: cannot be read: a directory, expected a file"
    )
    assert message(tmp_path / "pipe.toml", tmp_path) == (
        "pipe.toml: cannot be read: not a regular file"
    )
    assert message(tmp_path / "loop.toml", tmp_path).startswith(
        "loop.toml: cannot be read: too many"
    )
    assert message(tmp_path / "no.toml", tmp_path) == (
        "no.toml: cannot be read: no such file or directory"
    )


def test_a_name_that_cannot_be_printed_is_escaped(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n.toml"))
    assert message(file, tmp_path).startswith("\\udcff\\n.toml: cannot be read")


def test_windows_line_ends_do_not_shift_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(b"a = 1\r\n\r\nb = 2\r\n")
    assert read_toml(file).lines.of(("b",)) == 3


@given(st.text())
@example('a = """')
@example("[[")
@example("'''\\")
def test_locating_never_raises(text: str) -> None:
    locate(text).of(("a", 0, "b"))


KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
    st.text(st.characters(codec="utf-8"), max_size=6).map(lambda t: dotted((t,))),
)
VALUES = st.recursive(
    st.one_of(
        st.integers().map(str),
        st.booleans().map(lambda b: str(b).lower()),
        st.just('"""\n[x]\ny = 1 # """'),
        st.just("'''\n#''' # '"),
        st.text(st.characters(codec="utf-8", min_codepoint=32, exclude_characters="'\x7f")).map(
            lambda t: f"'{t}'"
        ),
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda v: "[\n" + ",\n".join(v) + "]"),
    max_leaves=4,
)
LINES = st.lists(
    st.one_of(
        st.tuples(st.lists(KEYS, min_size=1, max_size=3), VALUES).map(
            lambda kv: " . ".join(kv[0]) + " = " + kv[1]
        ),
        st.lists(KEYS, min_size=1, max_size=3).map(lambda k: f"[{'.'.join(k)}] # x"),
        st.lists(KEYS, min_size=1, max_size=3).map(lambda k: f"[[ {'.'.join(k)} ]]"),
        st.just("# [comment] = '"),
    ),
    max_size=6,
)


def leaves(node: object, path: KeyPath = ()) -> list[KeyPath]:
    if isinstance(node, dict):
        return [p for k, v in node.items() for p in [(*path, k), *leaves(v, (*path, k))]]
    if isinstance(node, list) and node and all(isinstance(v, dict) for v in node):
        return [p for i, v in enumerate(node) for p in leaves(v, (*path, i))]
    return []


@settings(max_examples=200)
@given(LINES)
def test_every_key_of_any_valid_file_is_found(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        data = parse_toml(text, Path("x"), "x").data
    except ConfigError:
        return
    found = locate(text)
    rows = text.split("\n")
    for path in leaves(data):
        line = found._at.get(path)
        assert line is not None, (path, text)
        last = [p for p in path if isinstance(p, str)][-1]
        assert dotted((last,)).strip('"')[:1] in rows[line - 1] or not last.isprintable()
